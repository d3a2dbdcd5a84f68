"""What a command costs in a session, against a bare child process, in one run.

    python3 python/bench/run.py [--rounds N] [--quick]

It prints Markdown: medians, with the tenth and ninetieth percentile, and ratios of medians. Rounds of what is compared
alternate, so that what else the machine does meets both. KENNEL names the executable; take a release build.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import kennel

TRUE = ["/bin/true"]
Row = tuple[str, str, str, str]


def times(rounds: int, *works: Callable[[], object]) -> list[list[float]]:
    """Microseconds of each piece of work, one after the other in each round."""
    taken: list[list[float]] = [[] for _ in works]
    for number in range(rounds + rounds // 10 + 2):
        for work, into in zip(works, taken, strict=True):
            start = time.perf_counter()
            work()
            if number >= rounds // 10 + 2:
                into.append((time.perf_counter() - start) * 1e6)
    return taken


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    low, high = (ordered[int(len(ordered) * part)] for part in (0.1, 0.9))
    return f"{statistics.median(ordered):.0f} µs ({low:.0f} to {high:.0f})"


def compared(rounds: int, name: str) -> Iterator[Row]:
    """`session.run` against both ways of `subprocess.run`, for both kinds of isolation."""
    for isolation in ("session", "command"):
        with tempfile.TemporaryDirectory() as workspace, kennel.Session(workspace, isolation=isolation) as session:
            ours, bare, captured = times(
                rounds,
                lambda: session.run(TRUE),
                lambda: subprocess.run(TRUE, check=False),
                lambda: subprocess.run(TRUE, check=False, capture_output=True),
            )
        for other, values in (("subprocess.run", bare), ("subprocess.run(capture_output=True)", captured)):
            ratio = statistics.median(ours) / statistics.median(values)
            yield f"{name}, isolation {isolation}: against `{other}`", spread(ours), spread(values), f"{ratio:.2f}"


@contextmanager
def large_program(resident: int, threads: int) -> Iterator[None]:
    """This process with that much memory in RAM and that many threads."""
    memory = bytearray(resident)
    for page in range(0, resident, 4096):
        memory[page] = 1
    done = threading.Event()
    waiting = [threading.Thread(target=done.wait, daemon=True) for _ in range(threads)]
    for thread in waiting:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in waiting:
            thread.join()
        del memory


async def rate(tasks: int, each: int, command: Callable[[], object]) -> float:
    """Commands per second of so many tasks."""

    async def work() -> None:
        for _ in range(each):
            await command()  # type: ignore[misc]

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return tasks * each / (time.perf_counter() - start)


async def side_by_side(rounds: int, tasks: int, each: int) -> list[Row]:
    """Commands per second of asyncio tasks."""

    async def bare() -> None:
        await (await asyncio.create_subprocess_exec(*TRUE)).wait()

    rows = []
    for isolation in ("session", "command"):
        with tempfile.TemporaryDirectory() as workspace:
            async with kennel.AsyncSession(workspace, isolation=isolation) as session:
                ours: list[float] = []
                theirs: list[float] = []
                for number in range(rounds + 1):
                    found = await rate(tasks, each, lambda: session.run(TRUE)), await rate(tasks, each, bare)
                    # The first round warms up.
                    if number:
                        ours.append(found[0])
                        theirs.append(found[1])
        middle = statistics.median(ours), statistics.median(theirs)
        rows.append(
            (
                f"{tasks} asyncio tasks, isolation {isolation}: against `asyncio.create_subprocess_exec`",
                f"{middle[0]:.0f}/s ({min(ours):.0f} to {max(ours):.0f})",
                f"{middle[1]:.0f}/s ({min(theirs):.0f} to {max(theirs):.0f})",
                f"{middle[0] / middle[1]:.2f}",
            )
        )
    return rows


def main() -> None:
    given = argparse.ArgumentParser(description="What a command costs in a session.")
    given.add_argument("--rounds", type=int, default=1000, help="rounds of each comparison")
    given.add_argument("--quick", action="store_true", help="a few rounds, to see that it works")
    options = given.parse_args()
    rounds = 20 if options.quick else options.rounds
    load = os.getloadavg()[0]

    rows = list(compared(rounds, "small interpreter"))
    resident, threads = (1 << 28, 20) if options.quick else (1 << 30, 200)
    with large_program(resident, threads):
        rows += compared(rounds, f"{resident >> 20} MiB resident, {threads} threads")
    rows += asyncio.run(side_by_side(1 if options.quick else 5, 64, 2 if options.quick else 20))

    print(f"Linux {platform.release()}, Python {platform.python_version()}, {os.cpu_count()} processors,", end=" ")
    print(f"load {load:.2f} before the run; {rounds} rounds; median (p10 to p90)\n")
    print("| what | kennel | other | ratio |")
    print("| --- | ---: | ---: | ---: |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
