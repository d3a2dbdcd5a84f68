"""How long `exec(["true"])` takes: the provider of Kennel against Inspect's own provider `local`, in one run.

    python python/bench/inspect_exec.py [ROUNDS]

The two take turns, so that a machine that is busy for a while disturbs both. `local` starts the command directly, without
any walls.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

from kennel.inspect import KennelSandboxEnvironment

WARM_UP = 20


async def once(sandbox: SandboxEnvironment) -> float:
    begun = time.perf_counter()
    result = await sandbox.exec(["true"])
    took = time.perf_counter() - begun
    if not result.success:
        raise RuntimeError(f"true failed: {result}")
    return took * 1e6


async def main(rounds: int) -> None:
    providers: dict[str, type[SandboxEnvironment]] = {"local": LocalSandboxEnvironment, "kennel": KennelSandboxEnvironment}
    started = {name: await provider.sample_init("bench", None, {}) for name, provider in providers.items()}
    times: dict[str, list[float]] = {name: [] for name in providers}
    for turn in range(rounds + WARM_UP):
        for name, environments in started.items():
            took = await once(environments["default"])
            if turn >= WARM_UP:
                times[name].append(took)
    for name, provider in providers.items():
        await provider.sample_cleanup("bench", None, started[name], False)
    medians = {name: statistics.median(each) for name, each in times.items()}
    for name, median in medians.items():
        print(f"{name:<8} {median:8.0f} µs")
    print(f"kennel / local: {medians['kennel'] / medians['local']:.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
