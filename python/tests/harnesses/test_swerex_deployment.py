"""`examples/swerex_deployment.py`: what SWE-ReX asks of a runtime."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

if os.environ.get("KENNEL_MUST_RUN") != "1":
    pytest.importorskip("swerex")

from examples.swerex_deployment import KennelDeployment, KennelRuntime
from swerex.deployment.hooks.abstract import DeploymentHook
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[KennelDeployment]:
    (tmp_path / "work").mkdir()
    made = KennelDeployment(workspace=str(tmp_path / "work"), isolation="session")
    yield made
    await made.stop()


@pytest.fixture
async def runtime(deployment: KennelDeployment) -> KennelRuntime:
    await deployment.start()
    return deployment.runtime


async def test_a_deployment_starts_and_stops(deployment: KennelDeployment) -> None:
    steps: list[str] = []

    class Hook(DeploymentHook):
        def on_custom_step(self, message: str) -> None:
            steps.append(message)

    deployment.add_hook(Hook())
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime
    assert not await deployment.is_alive()
    await deployment.start()
    assert await deployment.is_alive()
    assert steps
    runtime = deployment.runtime
    await deployment.stop()
    assert not await deployment.is_alive()
    assert not await runtime.is_alive()


async def test_the_state_of_a_session_lasts(runtime: KennelRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="/tmp/rc", content="export FROM_RC=yes\n"))
    await runtime.create_session(CreateBashSessionRequest(startup_source=["/tmp/rc"], startup_timeout=60))
    await runtime.run_in_session(BashAction(command="mkdir -p sub; cd sub; x=7"))
    done = await runtime.run_in_session(BashAction(command="basename $PWD\necho $x $FROM_RC"))
    assert (done.output, done.exit_code) == ("sub\n7 yes\n", 0)


async def test_sessions_are_apart_and_have_names(runtime: KennelRuntime) -> None:
    for name in ("one", "two"):
        await runtime.create_session(CreateBashSessionRequest(session=name))
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest(session="one"))
    await runtime.run_in_session(BashAction(command="x=1", session="one"))
    assert (await runtime.run_in_session(BashAction(command="echo [$x]", session="two"))).output == "[]\n"
    await runtime.close_session(CloseBashSessionRequest(session="one"))
    with pytest.raises(SessionDoesNotExistError):
        await runtime.run_in_session(BashAction(command="true", session="one"))
    await runtime.create_session(CreateBashSessionRequest(session="one"))
    assert (await runtime.run_in_session(BashAction(command="echo [$x]", session="one"))).output == "[]\n"


async def test_a_failure_is_raised_or_told_as_the_action_says(runtime: KennelRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest())
    with pytest.raises(NonZeroExitCodeError, match=r"for a reason: .*exit code 3"):
        await runtime.run_in_session(BashAction(command="(exit 3)", error_msg="for a reason"))
    assert (await runtime.run_in_session(BashAction(command="(exit 3)", check="silent"))).exit_code == 3
    assert (await runtime.run_in_session(BashAction(command="(exit 3)", check="ignore"))).exit_code is None


async def test_a_timeout_leaves_the_session_usable(runtime: KennelRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest())
    with pytest.raises(CommandTimeoutError):
        await runtime.run_in_session(BashAction(command="x=8; sleep 600", timeout=1))
    assert (await runtime.run_in_session(BashAction(command="echo $x"))).output == "8\n"


async def test_what_needs_a_terminal_is_refused(runtime: KennelRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest())
    for action in (
        BashAction(command="gdb", is_interactive_command=True),
        BashAction(command="quit", is_interactive_quit=True),
        BashAction(command="python3", expect=[">>>"]),
    ):
        with pytest.raises(NotImplementedError, match="terminal"):
            await runtime.run_in_session(action)
    with pytest.raises(NotImplementedError, match="timeout"):
        await runtime.run_in_session(BashInterruptAction())


async def test_commands_run_by_themselves(runtime: KennelRuntime) -> None:
    done = await runtime.execute(
        Command(command=["sh", "-c", "echo $MODE; echo e >&2; exit 4"], env={"MODE": "fast"}, cwd="/tmp")
    )
    assert (done.stdout, done.stderr, done.exit_code) == ("fast\n", "e\n", 4)
    done = await runtime.execute(Command(command="echo o; echo e >&2", shell=True, merge_output_streams=True))
    assert (done.stdout, done.stderr) == ("o\ne\n", "")
    with pytest.raises(NonZeroExitCodeError):
        await runtime.execute(Command(command=["false"], check=True))
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "600"], timeout=1))


async def test_files_go_in_and_out(runtime: KennelRuntime, tmp_path: Path) -> None:
    await runtime.write_file(WriteFileRequest(path="made/here/file", content="grüße"))
    assert (await runtime.read_file(ReadFileRequest(path="made/here/file"))).content == "grüße"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="none"))
    given = tmp_path / "given"
    (given / "deep").mkdir(parents=True)
    (given / "deep" / "file").write_text("uploaded")
    (given / "deep" / "tool").write_text("#!/bin/sh\necho ran\n")
    (given / "deep" / "tool").chmod(0o755)
    (given / "link").symlink_to("/etc/passwd")
    await runtime.upload(UploadRequest(source_path=str(given), target_path="up"))
    assert (await runtime.read_file(ReadFileRequest(path="up/deep/file"))).content == "uploaded"
    assert (await runtime.execute(Command(command=["ls", "up"]))).stdout == "deep\n"
    assert (await runtime.execute(Command(command=["up/deep/tool"]))).stdout == "ran\n"
    await runtime.upload(UploadRequest(source_path=str(given / "deep" / "file"), target_path="single"))
    assert (await runtime.read_file(ReadFileRequest(path="single"))).content == "uploaded"
