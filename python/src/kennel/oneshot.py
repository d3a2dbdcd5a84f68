"""One command in a sandbox of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from kennel._calls import Arguments, Environment, File
from kennel._session import PolicyLike
from kennel._wire import Argument
from kennel.aio import AsyncSession
from kennel.results import Completed
from kennel.session import Session


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
    truncate: bool = False,
    env: Environment = None,
    cwd: Argument | None = None,
    shell: bool = False,
    stdin: File = None,
    stdout: File = None,
    stderr: File = None,
    **policy_keys: Any,
) -> Completed[Any]:
    """Runs one command in a sandbox of its own, which ends with it.

    `workspace`, `allow`, `profile`, `policy` and keys of a policy are those of `kennel.Session`, the others those of
    `Session.run`. `env` and `cwd` are those of the command.

    >>> import kennel
    >>> kennel.run(["sh", "-c", "echo hello"], profile="read-only", text=True).stdout
    'hello\\n'
    """
    with Session(workspace, allow, profile, policy, **{**_ONE, **policy_keys}) as session:
        return session.run(
            args,
            input=input,
            capture_output=capture_output,
            text=text,
            encoding=encoding,
            errors=errors,
            timeout=timeout,
            check=check,
            truncate=truncate,
            env=env,
            cwd=cwd,
            shell=shell,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )


async def arun(
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
    truncate: bool = False,
    env: Environment = None,
    cwd: Argument | None = None,
    shell: bool = False,
    stdin: File = None,
    stdout: File = None,
    stderr: File = None,
    **policy_keys: Any,
) -> Completed[Any]:
    """As `kennel.run`, for asyncio. If the task is cancelled, the command is killed."""
    async with AsyncSession(workspace, allow, profile, policy, **{**_ONE, **policy_keys}) as session:
        return await session.run(
            args,
            input=input,
            capture_output=capture_output,
            text=text,
            encoding=encoding,
            errors=errors,
            timeout=timeout,
            check=check,
            truncate=truncate,
            env=env,
            cwd=cwd,
            shell=shell,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )


_ONE = {"isolation": "command"}
"""What the command starts ends with it, as with `kennel run`."""
