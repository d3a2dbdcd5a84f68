"""One command in a sandbox of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kennel import _calls
from kennel._calls import Arguments, Environment, File
from kennel._session import PolicyLike
from kennel._wire import Argument
from kennel.aio import AsyncSession
from kennel.policy import Policy
from kennel.results import Completed
from kennel.session import Session

if TYPE_CHECKING:
    import ssl


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
    `Session.run`. `env` and `cwd` are those of the command. There is no `warm` and no `cold`: the command is known when the
    sandbox starts.

    >>> import kennel
    >>> kennel.run(["sh", "-c", "echo hello"], profile="read-only", text=True).stdout
    'hello\\n'
    """
    chosen = _policy_of_one(policy, workspace=workspace, allow=allow, profile=profile, **policy_keys)
    with Session(policy=chosen) as session:
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
    keys = {"workspace": workspace, "allow": allow, "profile": profile, **policy_keys}
    if isinstance(policy, (str, os.PathLike)):
        # Another process reads the file.
        chosen = await asyncio.to_thread(_policy_of_one, policy, **keys)
    else:
        chosen = _policy_of_one(policy, **keys)
    async with AsyncSession(policy=chosen) as session:
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


def remote_run(
    url: str,
    args: Arguments,
    *,
    token: str | None = None,
    template: str = "base",
    files: Mapping[str, bytes | str] | None = None,
    outputs: Iterable[str] = (),
    limits: Mapping[str, Any] | None = None,
    allow: Iterable[str] | None = None,
    deny: Iterable[str] = (),
    input: bytes | str | None = None,  # noqa: A002
    text: bool | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    timeout: float = 60.0,
    check: bool = False,
    truncate: bool = False,
    env: Environment = None,
    cwd: Argument | None = None,
    shell: bool = False,
    start_timeout: float = 60.0,
    ssl_context: ssl.SSLContext | None = None,
) -> Completed[Any]:
    """Runs one command in a sandbox of a server, which ends with it: one request, one answer.

    `files` are written before, by their paths; those of `outputs` that are there afterwards are `files` of the result.
    `limits` are as in a policy, each at most that of the template. The others are those of `Remote` and `Remote.run`.

    >>> remote_run(url, ["wc", "-c", "a"], files={"a": b"abc"}, text=True).stdout  # doctest: +SKIP
    '3 a\\n'
    """
    from kennel import _http, _remote, _remote_command

    decode = _calls.encoding_of(text, encoding, errors)
    words, directory, variables = _remote.words_of(args, shell, cwd, env)
    body = {
        "template": template,
        "argv": words,
        "env": variables,
        # As everywhere, 0 is no time, and not all of it.
        "timeout": max(timeout, 0.001),
        "files": [{"path": _remote.text(path), "content": _remote.content(data)} for path, data in (files or {}).items()],
        "outputs": [_remote.text(path) for path in outputs],
        **({} if input is None else {"stdin": _remote.content(_calls.encoded(input, decode))}),
        **({"cwd": directory} if directory else {}),
        **({"limits": dict(limits)} if limits else {}),
        "network": _remote.hosts_of(allow, deny),
    }
    server = _http.Server(url, ssl_context)
    try:
        key, longest = _remote.key_of(token), _remote.LONGEST_RUN
        answer = _remote.admitted(server, "/v1/run", key, body, seconds=start_timeout, late=timeout, longest=longest)
    finally:
        server.close()
    return _remote_command.ran(answer, args, encoding=decode, timeout=timeout, check=check, truncate=truncate, cwd=cwd)


def _policy_of_one(policy: PolicyLike, **keys: Any) -> Policy:
    """The policy of one command. What the command starts ends with it, as with `kennel run`."""
    if "warm" in keys:
        raise TypeError("run() has no keyword 'warm': no interpreter can start before its only command is known")
    chosen = Policy.of(policy, **{"isolation": "command", **keys})
    # A policy of several sessions may have it.
    chosen.warm = {}
    return chosen
