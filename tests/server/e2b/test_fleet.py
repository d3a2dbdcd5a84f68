"""Two routers and three workers, of which parts are killed: only what ran in a killed host is lost, and that is told."""

import hashlib
import os
import random
import signal
import subprocess
import threading
import time

from conftest import Server, begin_router, wait_until
from load import SANDBOXES, SECONDS, Killed, Program, judge

KEY = "key-of-the-fleet"
HOSTS = "ab"


class Worker(Server):
    """A worker of a fleet, with a name of its own, and the fleet's one key."""

    def __init__(self, place, name: str) -> None:
        place.mkdir()
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        (place / "tokens.toml").write_text(f'[token.fleet]\nsha256 = "{digest}"\n')
        super().__init__(place, f'name = "{name}"\ntokens = "tokens.toml"\norphan = "30s"\n')
        self.name = name

    def kill_all(self) -> None:
        """The front first, so that it starts no other host."""
        self.kill()
        for host in self.hosts():
            os.kill(host, signal.SIGKILL)


class Router:
    """`kennel route`."""

    def __init__(self, place, workers: list[Worker]) -> None:
        place.mkdir()
        self.place, self.workers = place, workers
        self.process: subprocess.Popen | None = None
        self.url = ""

    def start(self) -> None:
        address = self.url.removeprefix("http://") or "127.0.0.1:0"
        self.process, self.url = begin_router([worker.url for worker in self.workers], self.place, address)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)


class Killer:
    """Kills a front, a host, a whole worker or a router, and starts it again."""

    def __init__(self, workers: list[Worker], routers: list[Router]) -> None:
        self.workers, self.routers = workers, routers
        self.killed = Killed()
        self.counts = {kind.__name__: 0 for kind in (self.front, self.host, self.worker, self.router)}
        # By router, when there was nobody to ask.
        self.absent: dict[str, list[tuple[float, float]]] = {router.url: [] for router in routers}

    def strike(self) -> None:
        kind = min(self.counts, key=self.counts.get)
        self.counts[kind] += 1
        getattr(self, kind)()

    def front(self) -> None:
        worker = random.choice(self.workers)
        worker.kill()
        time.sleep(0.2)
        worker.start(worker.address)

    def host(self) -> None:
        worker, index = random.choice(self.workers), random.randrange(len(HOSTS))
        victim = worker.host(index)
        self.killed.note(f"{worker.name}-{HOSTS[index]}")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: worker.host(index) not in (None, victim), "another host takes its place", 30)

    def worker(self) -> None:
        worker = random.choice(self.workers)
        self.killed.note(*(f"{worker.name}-{letter}" for letter in HOSTS))
        worker.kill_all()
        # Every other time it comes back after the routers have given it up.
        time.sleep(7 if self.counts["worker"] % 2 else 0.5)
        worker.start(worker.address)

    def router(self) -> None:
        router = random.choice(self.routers)
        begun = time.monotonic()
        router.kill()
        time.sleep(0.2)
        router.start()
        self.absent[router.url].append((begun, time.monotonic()))


def test_only_sandboxes_of_killed_hosts_and_workers_are_lost(tmp_path):
    workers = [Worker(tmp_path / name, name) for name in ("one", "two", "three")]
    for worker in workers:
        worker.start()
    routers = [Router(tmp_path / f"router{number}", workers) for number in range(2)]
    for router in routers:
        router.start()
    killer = Killer(workers, routers)
    until = time.monotonic() + SECONDS + 10
    programs = [Program(number, until, routers[number % 2].url, KEY) for number in range(SANDBOXES)]
    try:
        for program in programs:
            program.start()
        while time.monotonic() < until - 10:
            time.sleep(1)
            killer.strike()
        print(judge(programs, killer.killed, killer.absent), killer.counts)
    finally:
        for process in (*routers, *workers):
            process.stop()
    for worker in workers:
        assert not list((worker.state / "sandboxes").iterdir())
        assert not worker.hosts()
    assert threading.active_count() == 1
