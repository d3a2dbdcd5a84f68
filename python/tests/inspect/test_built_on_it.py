"""What Inspect builds on a sandbox: services that the sandbox calls, tools that it installs, limits that it shares."""

# A test waits for files and processes of the sandbox, which no event announces.

from __future__ import annotations

import os

import anyio
import pytest

if os.environ.get("KENNEL_MUST_RUN") != "1":
    pytest.importorskip("inspect_ai")

from inspect_ai.tool._sandbox_tools_utils.sandbox import resolve_root_access
from inspect_ai.util import ExecResult, SandboxEnvironment, sandbox_service
from inspect_ai.util._concurrency import init_concurrency
from inspect_ai.util._sandbox._framework_directory import (
    ensure_framework_directory,
    verify_framework_directory,
)
from inspect_ai.util._subprocess import init_max_subprocesses

pytestmark = pytest.mark.anyio

CALL = """
import sys
sys.path.append("/var/tmp/sandbox-services/sums")
import sums
print(sums.call_sums("length", text="x" * 12_000_000))
"""


async def test_a_service_is_called_from_the_sandbox(shared_env: SandboxEnvironment) -> None:
    """Inspect reads the request with `exec`, under a limit that it raises."""
    done: list[ExecResult[str]] = []

    async def length(text: str) -> int:
        return len(text)

    async def call() -> None:
        await started.wait()
        done.append(await shared_env.exec(["python3", "-c", CALL], timeout=60, concurrency=False))

    started = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await sandbox_service("sums", [length], lambda: bool(done), shared_env, started=started)
    assert (done[0].stdout, done[0].stderr) == ("12000000\n", "")


async def test_the_tools_of_inspect_run_as_the_user_of_the_sandbox(shared_env: SandboxEnvironment) -> None:
    """There is no root with privileges, also if root runs the eval, and Inspect is sure of it."""
    assert (await resolve_root_access(shared_env)).state == "unusable"
    await ensure_framework_directory(shared_env, "/var/tmp/.tools", user=None, repair_mode=True)
    await verify_framework_directory(shared_env, "/var/tmp/.tools", user=None)


async def test_commands_count_as_subprocesses_of_the_eval(shared_env: SandboxEnvironment) -> None:
    """With `max_subprocesses` of one, a command waits for the other, unless the call says that it does not count."""
    init_concurrency()
    init_max_subprocesses(1)
    try:
        one_by_one = 'echo begin >> "$0"; sleep 0.2; echo end >> "$0"'
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(shared_env.exec, ["sh", "-c", one_by_one, "log"])
        assert await shared_env.read_file("log") == "begin\nend\nbegin\nend\n"

        meet = 'touch "$0"; until test -e "$1"; do sleep 0.01; done'
        async with anyio.create_task_group() as tasks:
            for names in (["this", "that"], ["that", "this"]):
                tasks.start_soon(_uncounted, shared_env, ["sh", "-c", meet, *names])
    finally:
        init_max_subprocesses()
        init_concurrency()


async def _uncounted(sandbox: SandboxEnvironment, command: list[str]) -> None:
    assert (await sandbox.exec(command, timeout=60, concurrency=False)).success


async def test_a_cancelled_call_leaves_no_command(shared_env: SandboxEnvironment) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shared_env.exec, ["sh", "-c", "touch began; sleep 601 & sleep 602"])
        while not (await shared_env.exec(["test", "-e", "began"])).success:
            await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    with anyio.fail_after(30):
        while "sleep 60" in (await shared_env.exec(["ps", "axww", "-o", "args"])).stdout:
            await anyio.sleep(0.1)
