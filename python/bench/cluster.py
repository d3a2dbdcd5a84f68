"""Commands per second through `kennel.ray` on one machine, against `kennel.Pool` in process, in one run.

    python python/bench/cluster.py [--commands N] [--rounds N] [--per-node N]

Each command has a session of its own on both sides, and as many run at once. Rounds of the two alternate, so that what else
the machine does meets both. It also prints how long a single command takes on its way, one after the other. KENNEL names the
executable; take a release build.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# With a token of its own Ray writes none to the home.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}

import ray

import kennel
import kennel.ray

TRUE = ["/bin/true"]
POLICY: dict[str, Any] = {"profile": "no-network"}


def in_process(once: Callable[[int], None], threads: ThreadPoolExecutor, commands: int) -> float:
    """Commands per second of threads."""
    start = time.perf_counter()
    for _ in threads.map(once, range(commands)):
        pass
    return commands / (time.perf_counter() - start)


async def in_process_async(per_node: int, commands: int) -> float:
    """Commands per second of a pool of asyncio, which is what a node has."""
    slots = asyncio.Semaphore(per_node)
    async with kennel.AsyncPool(per_node, **POLICY) as pool:

        async def once() -> None:
            async with slots, pool.checkout() as session:
                await session.run(TRUE)

        start = time.perf_counter()
        await asyncio.gather(*(once() for _ in range(commands)))
        return commands / (time.perf_counter() - start)


def through_ray(fleet: kennel.ray.Fleet, commands: int) -> float:
    """Commands per second of a fleet."""
    start = time.perf_counter()
    for result in fleet.map([TRUE] * commands):
        result.get()
    return commands / (time.perf_counter() - start)


def spread(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):.0f}{unit} ({min(values):.0f} to {max(values):.0f})"


def one_by_one(fleet: kennel.ray.Fleet, times: int) -> tuple[list[float], list[float]]:
    """Microseconds of a command in a session of a node, and in one of this process."""
    found: tuple[list[float], list[float]] = ([], [])
    with fleet.session() as there, kennel.Session(".", **POLICY) as here:
        for _ in range(times):
            for session, into in ((there, found[0]), (here, found[1])):
                start = time.perf_counter()
                session.run(TRUE)
                into.append((time.perf_counter() - start) * 1e6)
    return found


def alternate(rounds: int, *works: Callable[[], float]) -> list[list[float]]:
    """What the works return, in turn. The first round warms up."""
    found = [[work() for work in works] for _ in range(rounds + 1)][1:]
    return [list(values) for values in zip(*found, strict=True)]


def in_fresh_sessions(options: argparse.Namespace, threads: ThreadPoolExecutor) -> list[list[float]]:
    """Commands per second, each in a session of its own: through Ray, with `Pool`, with `AsyncPool`."""
    with kennel.ray.Fleet(POLICY, per_node=options.per_node) as fleet, kennel.Pool(options.per_node, **POLICY) as pool:

        def once(_: int) -> None:
            with pool.checkout() as session:
                session.run(TRUE)

        number = options.commands
        return alternate(
            options.rounds,
            lambda: through_ray(fleet, number),
            lambda: in_process(once, threads, number),
            lambda: asyncio.run(in_process_async(options.per_node, number)),
        )


def in_one_session(options: argparse.Namespace, threads: ThreadPoolExecutor) -> list[list[float]]:
    """Commands per second, all in one session."""
    with kennel.ray.Fleet(POLICY, per_node=options.per_node, fresh=False) as fleet, kennel.Session(**POLICY) as session:

        def once(_: int) -> None:
            session.run(TRUE)

        number = options.commands * 4
        return alternate(options.rounds, lambda: through_ray(fleet, number), lambda: in_process(once, threads, number))


def row(what: str, unit: str, ours: list[float], others: list[float]) -> str:
    ratio = statistics.median(ours) / statistics.median(others)
    return f"| {what} | {spread(ours, unit)} | {spread(others, unit)} | {ratio:.2f} |"


def main() -> None:
    given = argparse.ArgumentParser(description="Commands per second through kennel.ray.")
    given.add_argument("--commands", type=int, default=2000, help="commands of each round")
    given.add_argument("--rounds", type=int, default=5)
    given.add_argument("--per-node", type=int, default=os.cpu_count() or 1, help="commands that run at once")
    options = given.parse_args()
    load = os.getloadavg()[0]

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    per_node = options.per_node
    with ThreadPoolExecutor(per_node) as threads:
        fresh = in_fresh_sessions(options, threads)
        shared = in_one_session(options, threads)
    with kennel.ray.Fleet(POLICY, per_node=per_node) as fleet:
        there, here = one_by_one(fleet, 300)
    ray.shutdown()

    print(f"Linux {platform.release()}, Python {platform.python_version()}, Ray {ray.__version__},", end=" ")
    print(f"{os.cpu_count()} processors, load {load:.2f} before the run; {per_node} commands at once\n")
    print("| what | kennel.ray | in process | ratio |")
    print("| --- | ---: | ---: | ---: |")
    print(row("commands per second, each in a fresh session, to `kennel.Pool`", "/s", fresh[0], fresh[1]))
    print(row("the same, to `kennel.AsyncPool`", "/s", fresh[0], fresh[2]))
    print(row("commands per second, all in one session", "/s", *shared))
    print(row("a command in an open session, one after the other", " µs", there, here))


if __name__ == "__main__":
    main()
