#!/usr/bin/env python3
"""A model of a large fleet, fed with figures that were measured on one machine. A simulation, and not a claim.

    benches/fleet.py [--workers 1000] [--sandboxes 1000000] [--routers 10]

It asks what is full first: the placement of sandboxes by numbers that are old, routers, lists, or the queue. The figures
that it takes are those of `cargo bench --package kennel-server`; docs/fleet.md has its answers.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass

ROOM_SECONDS = 1.0
"""How old the numbers of a router get: it asks each worker once a second."""

ATTEMPTS = 3
"""Workers that a router asks for a creation at most."""

CONNECTIONS = 10_000
"""Connections of clients that a router takes."""

PAGE = 100
"""Sandboxes on a page of a list, which every worker is asked for."""

STEP_SECONDS = 0.02


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    fleet = parser.add_argument_group("the fleet")
    fleet.add_argument("--workers", type=int, default=1000)
    fleet.add_argument("--sandboxes", type=int, default=1_000_000)
    fleet.add_argument("--routers", type=int, default=10)
    fleet.add_argument("--life", type=float, default=300, help="seconds that a sandbox lives, on average")
    fleet.add_argument("--requests", type=float, default=0.1, help="requests a second to each sandbox")
    fleet.add_argument("--streams", type=float, default=0.1, help="open streams for each sandbox")
    fleet.add_argument("--seconds", type=float, default=20, help="seconds of placement that are simulated")
    measured = parser.add_argument_group("what was measured")
    measured.add_argument("--room-us", type=float, default=52, help="processor time of a router to ask a worker")
    measured.add_argument("--room-kib", type=float, default=30, help="memory of a router for a worker")
    measured.add_argument("--request-us", type=float, default=178, help="processor time of a router for a request")
    measured.add_argument("--stream-kib", type=float, default=29.8, help="memory of a router for an open stream")
    measured.add_argument("--listed-bytes", type=float, default=268, help="a sandbox in a list")
    measured.add_argument("--life-ms", type=float, default=22, help="processor time of a worker for the life of a sandbox")
    measured.add_argument("--idle-kib", type=float, default=731, help="memory of an idle sandbox, all of the machine's")
    measured.add_argument("--job-ms", type=float, default=1.8, help="processor time of NATS for a job")
    options = parser.parse_args()
    for name, value in vars(options).items():
        if value <= 0:
            parser.error(f"--{name.replace('_', '-')} {value}: say more than 0")
    return options


@dataclass
class Placement:
    """What became of the creations of some seconds."""

    asked: int = 0
    made: int = 0
    refused: int = 0
    least: int = 0
    most: int = 0


class Fleet:
    """Workers with sandboxes on them, and routers that know the room of each as it was up to a second ago."""

    def __init__(self, workers: int, slots: int, fill: float, routers: int) -> None:
        self._draw = random.Random(1)
        self._slots = slots
        spread = math.sqrt(slots * fill * (1 - fill))
        self._load = [min(slots, max(0, round(self._draw.gauss(fill * slots, spread)))) for _ in range(workers)]
        self._tables = [list(self._load) for _ in range(routers)]

    def run(self, fill: float, life: float, seconds: float) -> Placement:
        """As many sandboxes are asked for as keep the fleet as full as it is."""
        done = Placement()
        ticks = round(ROOM_SECONDS / STEP_SECONDS)
        each_step = fill * self._slots * len(self._load) / life * STEP_SECONDS
        owed = over = 0.0
        for tick in range(int(seconds / STEP_SECONDS)):
            for number, table in enumerate(self._tables):
                # Routers do not ask at the same moment.
                if (tick + number * ticks // len(self._tables)) % ticks == 0:
                    table[:] = self._load
            over += sum(self._load) * STEP_SECONDS / life
            self._end(int(over))
            over %= 1
            owed += each_step
            while owed >= 1:
                owed -= 1
                self._create(self._draw.choice(self._tables), done)
        done.least, done.most = min(self._load), max(self._load)
        return done

    def _end(self, count: int) -> None:
        """Sandboxes end where they are: the fuller a worker, the likelier there."""
        while count:
            worker = self._draw.randrange(len(self._load))
            if self._draw.random() * self._slots < self._load[worker]:
                self._load[worker] -= 1
                count -= 1

    def _create(self, table: list[int], done: Placement) -> None:
        """Two workers are drawn, and the emptier one is asked: three times at most."""
        for _ in range(ATTEMPTS):
            one, other = (self._draw.randrange(len(table)) for _ in range(2))
            worker = one if table[one] <= table[other] else other
            done.asked += 1
            if self._load[worker] < self._slots:
                self._load[worker] += 1
                table[worker] += 1
                done.made += 1
                return
            # It has said that it is full.
            table[worker] = self._slots
        done.refused += 1


def main() -> None:
    options = arguments()
    slots = math.ceil(options.sandboxes / options.workers)
    rate = options.sandboxes / options.life
    print(f"{options.workers} workers, {options.sandboxes} sandboxes of {options.life:g} s, {options.routers} routers")

    each = rate / options.workers
    print("\nA worker:")
    print(f"  {each:.1f} creations a second: {each * options.life_ms / 1000:.2f} processors")
    print(f"  {slots} idle sandboxes: {slots * options.idle_kib / 2**20:.2f} GiB")

    print(f"\nPlacement, {rate:.0f} creations a second, by numbers up to {ROOM_SECONDS:g} s old:")
    print("  full   requests per creation   refused   emptiest and fullest worker")
    for fill in (0.5, 0.9, 0.95, 0.99):
        done = Fleet(options.workers, slots, fill, options.routers).run(fill, options.life, options.seconds)
        created = max(1, done.made + done.refused)
        spread = f"{done.least / slots:.1%}, {done.most / slots:.1%}"
        print(f"  {fill:4.0%}   {done.asked / created:21.3f}   {done.refused / created:7.3%}   {spread}")

    requests = options.sandboxes * options.requests
    streams = options.sandboxes * options.streams
    asking = options.workers * options.room_us / ROOM_SECONDS / 1e6
    print("\nA router:")
    print(f"  knows all workers: {options.workers * options.room_kib / 1024:.1f} MiB")
    print(f"  asks them: {asking:.3f} processors, and a whole one with {1e6 * ROOM_SECONDS / options.room_us:.0f} workers")
    print(f"  passes on {1e6 / options.request_us:.0f} requests a second with a processor")
    print(f"\nRouters in all, for {requests:.0f} requests a second and {streams:.0f} open streams:")
    print(f"  processors for requests: {requests * options.request_us / 1e6:.1f}")
    memory = streams * options.stream_kib / 2**20
    print(f"  routers for the connections: {math.ceil(streams / CONNECTIONS)}, with {memory:.1f} GiB")

    pages = math.ceil(options.sandboxes / PAGE)
    page = options.workers * min(PAGE, slots) * options.listed_bytes
    print("\nLists:")
    print(f"  a page of {PAGE}: {options.workers} requests, and {page / 2**20:.0f} MiB from workers")
    print(f"  all {pages} pages: {pages * page / 2**40:.2f} TiB from workers")

    print(f"\nThe queue, if each of the {rate:.0f} creations a second were a job:")
    print(f"  a processor of NATS takes {1000 / options.job_ms:.0f}, so {rate * options.job_ms / 1000:.1f} processors")


if __name__ == "__main__":
    main()
