"""One command in a sandbox of its own: `kennel run` as a child process."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from kennel import _calls, _connection, _launch
from kennel._base import PolicyLike
from kennel._calls import DEVNULL, PIPE, Arguments, File
from kennel._wire import Ended
from kennel.errors import SessionError
from kennel.policy import Policy
from kennel.results import Completed


class _OneShot:
    """The child process of one run: its words, its descriptors, and what its end means."""

    def __init__(
        self,
        args: Arguments,
        policy: Policy,
        *,
        shell: bool,
        env: Mapping[str, str] | None,
        cwd: str | os.PathLike[str] | None,
        timeout: float | None,
    ) -> None:
        self.args = args
        self.timeout = timeout
        if cwd is not None:
            policy.cwd = cwd
        if env:
            policy.env.set = {**policy.env.set, **env}
        if timeout is not None:
            policy.limits.timeout = f"{max(1, int(timeout * 1000))}ms"
        self.given = _connection.Descriptors()
        try:
            self.given.add_memfd(policy.to_json().encode())
            self.given.add_memfd(b"")
            given, report = self.given.own
            self.words = [_launch.executable(), "run", "--quiet", "--exit-code", "--policy", f"/dev/fd/{given}"]
            self.words += ["--json", f"/dev/fd/{report}", "--"]
            self.words += [os.fsdecode(word) for word in _calls.words(args, shell)]
        except BaseException:
            self.close()
            raise

    def completed(
        self, status: int, out: bytes | None, err: bytes | None, encoding: tuple[str, str] | None, check: bool
    ) -> Completed[Any]:
        """What `run` returns, or raises."""
        size = os.fstat(self.given.own[1]).st_size
        report = os.pread(self.given.own[1], size, 0)
        if not report:
            said = (err or b"").decode("utf-8", "replace")
            raise _launch.error_of(said, f"kennel run ended with status {status}")
        ended = Completed[bytes]([], 0, report=report).outcome
        message = b"\n".join(line for line in (err or b"").splitlines() if line.startswith(b"kennel: "))
        end = Ended(ended.exit_code, ended.signal or 0, message, len(report), None, None, b"")
        return _calls.completed(self.args, end, report, out, err, encoding=encoding, timeout=self.timeout, check=check)

    def close(self) -> None:
        """Closes the descriptors."""
        _connection.close_all(self.given.own)
        self.given.own.clear()


def run(
    args: Arguments,
    *,
    workspace: str | os.PathLike[str] | None = None,
    allow: Iterable[str] = (),
    profile: str | None = None,
    policy: PolicyLike = None,
    input: bytes | str | None = None,  # noqa: A002
    capture_output: bool = True,
    text: bool | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    timeout: float | None = None,
    check: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    shell: bool = False,
    stdin: File = None,
    stdout: File = None,
    stderr: File = None,
    **policy_keys: Any,
) -> Completed[Any]:
    """Runs one command in a sandbox of its own.

    The first keywords are those of `kennel.Session`, the others those of `Session.run`. For a policy, `env` is the table of
    that name: pass it in `policy`.

    >>> import kennel
    >>> kennel.run(["sh", "-c", "echo hello; touch x"], profile="read-only", text=True).stdout
    'hello\\n'
    """
    if input is not None and stdin is not None:
        raise ValueError("stdin and input arguments may not both be used.")
    decode = _calls.encoding_of(text, encoding, errors)
    chosen = Policy.of(policy, workspace=workspace, allow=allow, profile=profile, **policy_keys)
    shot = _OneShot(args, chosen, shell=shell, env=env, cwd=cwd, timeout=timeout)
    pipe = PIPE if capture_output else None
    try:
        ran = subprocess.run(  # noqa: S603
            shot.words,
            input=None if input is None else _calls.encoded(input, decode),
            stdin=None if input is not None else (DEVNULL if stdin is None else stdin),
            stdout=pipe if stdout is None else stdout,
            stderr=pipe if stderr is None else stderr,
            pass_fds=shot.given.own,
            timeout=None if timeout is None else timeout + 2 * _connection.MARGIN_SECONDS,
            check=False,
        )
        return shot.completed(ran.returncode, ran.stdout, ran.stderr, decode, check)
    except subprocess.TimeoutExpired as late:
        if type(late) is not subprocess.TimeoutExpired:
            raise
        raise SessionError(f"kennel run did not end within {late.timeout:g} s") from None
    finally:
        shot.close()


async def arun(
    args: Arguments,
    *,
    workspace: str | os.PathLike[str] | None = None,
    allow: Iterable[str] = (),
    profile: str | None = None,
    policy: PolicyLike = None,
    input: bytes | str | None = None,  # noqa: A002
    text: bool | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    timeout: float | None = None,
    check: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    shell: bool = False,
    **policy_keys: Any,
) -> Completed[Any]:
    """As `kennel.run`, for asyncio. Output is captured. If the task is cancelled, the command is killed."""
    decode = _calls.encoding_of(text, encoding, errors)
    chosen = Policy.of(policy, workspace=workspace, allow=allow, profile=profile, **policy_keys)
    shot = _OneShot(args, chosen, shell=shell, env=env, cwd=cwd, timeout=timeout)
    try:
        process = await asyncio.create_subprocess_exec(
            *shot.words,
            stdin=DEVNULL if input is None else PIPE,
            stdout=PIPE,
            stderr=PIPE,
            pass_fds=shot.given.own,
        )
        try:
            given = None if input is None else _calls.encoded(input, decode)
            out, err = await process.communicate(given)
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        return shot.completed(process.returncode or 0, out, err, decode, check)
    finally:
        shot.close()
