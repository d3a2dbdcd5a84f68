"""What the contract of a provider asks beyond Inspect's own checks."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

if os.environ.get("KENNEL_MUST_RUN") != "1":
    pytest.importorskip("inspect_ai")

from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    override_sandbox_output_limit,
)
from pydantic import BaseModel

from kennel._launch import executable
from kennel.inspect import KennelSandboxEnvironment as Provider

pytestmark = pytest.mark.anyio

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


async def started(config: str | None = None) -> Provider:
    environments = await Provider.sample_init("test", config, {})
    return environments["default"].as_type(Provider)


async def ended(*environments: Provider) -> None:
    for each in environments:
        await Provider.sample_cleanup("test", None, {"default": each}, interrupted=False)


def test_inspect_finds_the_provider_by_its_entry_point() -> None:
    """In a process that has imported nothing of it, with the entry point that the package declares."""
    declared = re.search(r'^\[project\.entry-points\.inspect_ai\]\nkennel = "(.*)"$', PROJECT.read_text(), re.MULTILINE)
    assert declared
    found = """
import sys
from importlib.metadata import EntryPoint
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
EntryPoint("kennel", sys.argv[1], "inspect_ai").load()
print(registry_find_sandboxenv("kennel").__name__)
"""
    said = subprocess.run([sys.executable, "-c", found, declared[1]], capture_output=True, text=True, check=True)
    assert said.stdout == f"{Provider.__name__}\n"


async def test_output_beyond_the_limit_is_an_error_with_what_fits(shared_env: Provider) -> None:
    with override_sandbox_output_limit(1024, "exec"), pytest.raises(OutputLimitExceededError) as caught:
        await shared_env.exec(["sh", "-c", "yes | head -c 4096; echo careful >&2"])
    assert "1 KiB" in str(caught.value)
    assert caught.value.truncated_output == "y\n" * 512 + "careful\n"


async def test_the_limit_is_10_mib_unless_the_eval_raises_it(shared_env: Provider) -> None:
    command = ["sh", "-c", "head -c 12000000 /dev/zero; echo careful >&2; exit 3"]
    with pytest.raises(OutputLimitExceededError, match="10 MiB"):
        await shared_env.exec(command)
    with override_sandbox_output_limit(20 * 1024 * 1024, "exec"):
        done = await shared_env.exec(command)
    assert (len(done.stdout), done.stderr, done.returncode) == (12_000_000, "careful\n", 3)


async def test_output_beyond_the_cap_of_the_policy_is_an_error_too(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("limits.output = 8\n")
    environment = await started(str(policy))
    try:
        with pytest.raises(OutputLimitExceededError, match="its session"):
            await environment.exec(["seq", "10"])
    finally:
        await ended(environment)


async def test_a_python_of_the_policy_starts_before_its_call(tmp_path: Path) -> None:
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else str(Path(sys.executable).resolve())
    policy = tmp_path / "policy.toml"
    policy.write_text(f'warm."{python}" = ["decimal"]\n')
    environment = await started(str(policy))
    code = "import sys; print('decimal' in sys.modules)"
    try:
        with anyio.fail_after(60):
            while [each.state for each in await environment.session.interpreters()] != ["waiting"]:
                await anyio.sleep(0.01)
        assert (await environment.exec([python, "-"], input=code)).stdout == "True\n"
        # As Inspect's tool `python` does: its shell executes the program.
        done = await environment.exec(["bash", "--login", "-c", f"{python} -"], input=code)
        assert done.stdout == "False\n"
    finally:
        await ended(environment)


async def test_output_that_is_no_utf8_has_replacement_characters(shared_env: Provider) -> None:
    done = await shared_env.exec(["printf", r"\303\050"])
    assert done.stdout == "\ufffd("


async def test_a_file_that_is_no_utf8_is_an_error_as_text(shared_env: Provider) -> None:
    await shared_env.write_file("latin", b"\xc3\x28")
    with pytest.raises(UnicodeDecodeError):
        await shared_env.read_file("latin")


async def test_lines_keep_their_ends(shared_env: Provider) -> None:
    await shared_env.write_file("lines", "one\r\ntwo\n")
    assert await shared_env.read_file("lines") == "one\r\ntwo\n"


async def test_a_timeout_has_the_output_until_then(shared_env: Provider) -> None:
    with pytest.raises(TimeoutError) as caught:
        await shared_env.exec(["sh", "-c", "echo begun; sleep 100"], timeout=1)
    assert getattr(caught.value, "truncated_output", None) == "begun\n"


async def test_a_missing_program_is_a_failed_result(shared_env: Provider) -> None:
    done = await shared_env.exec(["no-such-program"])
    assert (done.success, done.returncode) == (False, 127)
    assert "no-such-program" in done.stderr


async def test_a_command_that_cannot_start_is_a_failed_result(shared_env: Provider) -> None:
    """And what the model reads of it is short, whatever it has sent."""
    for command in (["x" * 1_000_000], ["true", "x" * 1_000_000]):
        done = await shared_env.exec(command)
        assert (done.success, done.returncode) == (False, 126)
        assert "too long" in done.stderr
        assert len(done.stderr) < 3000


async def test_a_missing_directory_is_an_error_that_names_it(shared_env: Provider) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-dir"):
        await shared_env.exec(["true"], cwd="no-such-dir")


@pytest.mark.parametrize("path", ["file/below", "x" * 300, "loop"])
async def test_a_path_that_cannot_exist_is_a_file_that_is_not_found(shared_env: Provider, path: str) -> None:
    await shared_env.write_file("file", "")
    await shared_env.exec(["ln", "-sfn", "loop", "loop"])
    with pytest.raises(FileNotFoundError) as caught:
        await shared_env.read_file(path)
    assert caught.value.filename == path


async def test_a_read_only_place_is_a_missing_permission(shared_env: Provider) -> None:
    with pytest.raises(PermissionError) as caught:
        await shared_env.write_file("/usr/planted", "")
    assert caught.value.filename == "/usr/planted"


async def test_only_the_user_of_the_eval_runs_commands(shared_env: Provider) -> None:
    for user in ("nobody", "12345", "no-such-user"):
        with pytest.raises(SandboxUserUnsupportedError, match=user):
            await shared_env.exec(["true"], user=user)
        with pytest.raises(SandboxUserUnsupportedError):
            await shared_env.connection(user=user)
    assert (await shared_env.exec(["id", "-u"], user=str(os.geteuid()))).stdout == f"{os.geteuid()}\n"


async def test_keys_of_models_are_not_among_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    environment = await started()
    try:
        done = await environment.exec(["sh", "-c", "env; cat /proc/*/environ | tr '\\0' '\\n'"])
    finally:
        await ended(environment)
    assert "PATH=" in done.stdout
    assert "sk-planted" not in done.stdout


async def test_background_processes_and_tmp_last_between_commands(shared_env: Provider) -> None:
    started = await shared_env.exec(["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $! > /tmp/pid"])
    assert started.success
    assert (await shared_env.exec(["sh", "-c", "kill $(cat /tmp/pid)"])).success


async def test_the_connection_is_a_command_that_opens_a_shell(shared_env: Provider) -> None:
    await shared_env.write_file("seen", "from the sandbox")
    connection = await shared_env.connection()
    assert connection.type == "kennel"
    program, *rest = shlex.split(connection.command)
    assert program == "kennel"
    status, shown = await anyio.to_thread.run_sync(typed_at_a_terminal, [executable(), *rest], b"cat seen; exit\n")
    assert b"from the sandbox" in shown
    assert status == 0


def typed_at_a_terminal(command: list[str], text: bytes) -> tuple[int, bytes]:
    ours, theirs = pty.openpty()
    os.write(ours, text)
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        # The kernel says EIO once nobody has the terminal any more.
        with contextlib.suppress(OSError), open(ours, "rb", buffering=0) as terminal:
            while piece := terminal.read(1024):
                shown += piece
    return process.returncode, shown


async def test_samples_do_not_see_each_other_and_leave_nothing() -> None:
    one, two = await started(), await started()
    try:
        await one.write_file("only-mine", "1")
        with pytest.raises(FileNotFoundError):
            await two.read_file("only-mine")
        with pytest.raises(FileNotFoundError):
            await two.read_file(str(one.workspace.path / "only-mine"))
        # A command that takes away its own rights, and nests deeper than Python recurses.
        await one.exec(["sh", "-c", "mkdir -p closed/in; touch closed/in/f; chmod 0 closed/in closed"])
        await two.exec(["sh", "-c", "touch file; chmod 0 ."])
        assert (await one.exec(["mkdir", "-p", "d/" * 1200])).success
    finally:
        await ended(one, two)
    assert not one.workspace.path.exists()
    assert not two.workspace.path.exists()
    with pytest.raises(SandboxUnavailableError):
        await one.exec(["true"])
    with pytest.raises(ConnectionError):
        await one.connection()


@pytest.mark.parametrize("mode", ["0", "777"])
async def test_a_command_cannot_keep_its_workspace(mode: str) -> None:
    environment = await started()
    assert (await environment.exec(["sh", "-c", f"touch file; chmod {mode} ."])).success
    path = environment.workspace.path
    await environment.session.close()
    os.close(environment.workspace._lock)  # as if the eval had died
    await Provider.cli_cleanup(path.name)
    assert not path.exists()


async def test_a_link_that_a_command_planted_leads_the_cleanup_nowhere(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    os.chmod(tmp_path, 0o711)
    environment = await started()
    await environment.exec(["ln", "-s", str(tmp_path), "link"])
    await environment.exec(["sh", "-c", f"mkdir closed; ln -s {shlex.quote(str(tmp_path))} closed/link; chmod 0 closed"])
    await ended(environment)
    assert not environment.workspace.path.exists()
    assert (tmp_path / "kept").exists()
    assert os.stat(tmp_path).st_mode & 0o777 == 0o711


async def test_a_policy_file_decides_what_is_visible(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "data").write_text("granted")
    policy = tmp_path / "policy.toml"
    policy.write_text('[[mounts]]\ntype = "ro"\nsource = "shown"\ntarget = "/data"\n')
    environment = await started(str(policy))
    try:
        assert await environment.read_file("/data/data") == "granted"
        with pytest.raises(PermissionError):
            await environment.write_file("/data/data", "changed")
    finally:
        await ended(environment)


async def test_a_policy_that_cannot_work_is_told_before_the_first_sample(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("limits.memorry = 1\n")
    with pytest.raises(PrerequisiteError) as caught:
        await Provider.task_init("test", str(policy))
    assert "memorry" in str(caught.value.message)
    with pytest.raises(PrerequisiteError) as caught:
        await Provider.task_init("test", str(tmp_path / "none.toml"))
    assert "none.toml" in str(caught.value.message)


async def test_a_configuration_that_is_no_file_is_refused() -> None:
    class OfAnother(BaseModel):
        """The configuration of another provider."""

    with pytest.raises(PrerequisiteError) as caught:
        await Provider.task_init("test", OfAnother())
    assert "policy file" in str(caught.value.message)


def test_another_event_loop_than_that_of_asyncio_is_refused() -> None:
    with pytest.raises(PrerequisiteError) as caught:
        Provider.task_init("test", None).send(None)
    assert "INSPECT_ASYNC_BACKEND" in str(caught.value.message)


async def test_cleanup_removes_what_dead_evals_left_and_only_that(capsys: pytest.CaptureFixture[str]) -> None:
    alive = await started()
    stray = alive.workspace.path.with_name("kennel-inspect-stray")
    other = alive.workspace.path.with_name("kennel-inspect-other")
    try:
        for each in (stray, other):
            each.mkdir(mode=0o700)
            (each / "file").write_text("")
        await Provider.cli_cleanup(stray.name)
        assert capsys.readouterr().out == f"removed {stray}\n"
        assert not stray.exists()
        assert other.exists()
        await Provider.cli_cleanup(None)
        assert not other.exists()
        assert (await alive.exec(["pwd"])).stdout.strip() == str(alive.workspace.path)
    finally:
        for each in (stray, other):
            shutil.rmtree(each, ignore_errors=True)
        await ended(alive)


async def test_a_nul_byte_is_the_error_that_inspect_shows_to_the_model(shared_env: Provider) -> None:
    for call in (shared_env.exec(["echo", "a\0b"]), shared_env.read_file("a\0b"), shared_env.write_file("a\0b", "")):
        with pytest.raises(ValueError, match="embedded null byte"):
            await call
