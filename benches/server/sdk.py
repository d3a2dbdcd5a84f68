"""Measures E2B's client against the server that the environment names. Prints `net`: a command less is_running, in ms."""

import concurrent.futures
import statistics
import time

from e2b import Sandbox


def timed(call):
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def life():
    sandbox = Sandbox.create()
    sandbox.commands.run("true")
    sandbox.kill()


sandbox = Sandbox.create()
for _ in range(20):
    sandbox.commands.run("true")
run, running = [], []
for _ in range(300):
    run.append(timed(lambda: sandbox.commands.run("true")))
    running.append(timed(sandbox.is_running))
sandbox.kill()
print(f"E2B's client: commands.run p50 {statistics.median(run):.2f} ms, is_running {statistics.median(running):.2f} ms")
print(f"net {statistics.median(run) - statistics.median(running):.3f}")
lives = [timed(life) for _ in range(120)][20:]
print(f"E2B's client: create, first command, kill p50 {statistics.median(lives):.2f} ms")
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    list(pool.map(lambda _: life(), range(32)))
    begun = time.perf_counter()
    list(pool.map(lambda _: life(), range(320)))
    print(f"E2B's client: 16 at once {320 / (time.perf_counter() - begun):.0f} a second")
