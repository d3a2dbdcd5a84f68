"""A session for asyncio. No thread and no process of this program belongs to a command."""

from __future__ import annotations

import asyncio
import builtins
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from kennel import _connection, _loop, _questions, images
from kennel._calls import Arguments, Environment, File
from kennel._session import Collected, PolicyLike, SessionBase
from kennel._wire import Argument
from kennel.aio_detached import AsyncDetached, AsyncShell
from kennel.aio_process import AsyncPopen
from kennel.images import Image
from kennel.policy import Policy
from kennel.results import (
    Change,
    Committed,
    Completed,
    Description,
    Entry,
    Interpreter,
    Process,
    Published,
    Stat,
    Stats,
)


class AsyncSession(SessionBase):
    """`kennel.Session` for asyncio: the same methods, to be awaited.

    If a task is cancelled while it awaits `run`, the command is killed with everything that it started.

    >>> async def main():
    ...     async with AsyncSession() as s:
    ...         runs = [s.run(["echo", str(n)], text=True) for n in range(3)]
    ...         return [done.stdout for done in await asyncio.gather(*runs)]
    >>> asyncio.run(main())
    ['0\\n', '1\\n', '2\\n']
    """

    _io = _loop

    def __init__(
        self,
        workspace: str | os.PathLike[str] | None = None,
        allow: Iterable[str] = (),
        profile: str | None = None,
        policy: PolicyLike = None,
        name: str | None = None,
        *,
        start_timeout: float = 60.0,
        idle: float | None = None,
        **policy_keys: Any,
    ) -> None:
        """The keywords are those of `kennel.Session`. The session starts with `async with`, or with `await start()`."""
        self._given = (policy, {"workspace": workspace, "allow": allow, "profile": profile, **policy_keys})
        self._given_name = name
        self._start_timeout = start_timeout
        self._idle = idle
        self.name = name or ""
        self.socket_path = ""

    async def start(self) -> AsyncSession:
        """Starts the session, and returns it."""
        policy, keys = self._given
        if isinstance(policy, (str, os.PathLike)):
            # Another process reads the file.
            chosen = await asyncio.to_thread(Policy.of, policy, **keys)
        else:
            chosen = Policy.of(policy, **keys)
        await self._start(chosen, self._given_name, self._start_timeout, self._idle)
        return self

    @classmethod
    async def attach(cls, name: str) -> AsyncSession:
        """A session that somebody else has started. `close` does not end it."""
        session = cls.__new__(cls)
        session._attach(name)
        (await session._open()).close()
        return session

    async def close(self) -> None:
        """Ends the session with everything in it. To close it again has no effect."""
        self._is_closed = True
        if self._host is not None and self._end is not None and self._end.alive:
            await _loop.ended(self._host)
        self._close()

    async def __aenter__(self) -> AsyncSession:
        return self if self.socket_path else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Commands.

    async def run(
        self,
        args: Arguments,
        *,
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
        cold: bool = False,
    ) -> Completed[Any]:
        """Runs a command and waits for its end, as `Session.run`."""
        return await self._run(
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
            cold=cold,
        )

    async def _communicate(self, late: float | None, args: Arguments, **keywords: Any) -> Collected:
        process = await AsyncPopen.start(self, args, **keywords)
        try:
            out, err = await asyncio.wait_for(process._communicate(None), late)
            return process._ended(), process._report, out, err
        except asyncio.TimeoutError:
            raise _connection.silent(late or 0) from None
        finally:
            process.close()

    async def popen(self, args: Arguments, **keywords: Any) -> AsyncPopen:
        """Starts a command: see `kennel.AsyncPopen` for the streams, and `AsyncPopen.start` for the keywords."""
        return await AsyncPopen.start(self, args, **keywords)

    def shell(self, name: str = "main") -> AsyncShell:
        """A shell that keeps its state. The first snippet starts it."""
        return AsyncShell(self, name)

    async def detach(
        self,
        args: Arguments,
        log: str | os.PathLike[str] | None = None,
        *,
        shell: bool = False,
        env: Environment = None,
        cwd: Argument | None = None,
        timeout: float | None = None,
    ) -> AsyncDetached:
        """Starts a command that stays, as `Session.detach`."""
        return AsyncDetached(self, *await self._detach(args, log, shell=shell, env=env, cwd=cwd, timeout=timeout))

    async def detached(self) -> builtins.list[AsyncDetached]:
        """Commands that stay, and the last of those that have ended."""
        found = await self._ask(_questions.detached())
        return [AsyncDetached(self, info.id, info.program, info) for info in found]

    # Files.

    async def read(self, path: Argument) -> bytes:
        """The contents of a file."""
        return await self._read(path)

    async def read_text(self, path: Argument, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The contents of a file as text."""
        return (await self.read(path)).decode(encoding, errors)

    async def write(self, path: Argument, data: bytes | bytearray | memoryview, mode: int | None = None) -> None:
        """Writes a file: whole, or not at all."""
        await self._write(path, data, mode)

    async def write_text(
        self, path: Argument, text: str, encoding: str = "utf-8", errors: str = "strict", mode: int | None = None
    ) -> None:
        """Writes text to a file."""
        await self.write(path, text.encode(encoding, errors), mode)

    async def list(self, path: Argument = ".") -> list[Entry]:
        """The entries of a directory, sorted by name."""
        return await self._ask(_questions.entries(path))

    async def stat(self, path: Argument) -> Stat:
        """What is at a path. A link is not followed."""
        return await self._ask(_questions.stat(path))

    async def exists(self, path: Argument) -> bool:
        """Whether something is at a path, as far as commands see."""
        return await self._exists(path)

    async def mkdir(self, path: Argument, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory, as `pathlib.Path.mkdir` does."""
        await self._mkdir(path, parents, exist_ok)

    async def remove(self, path: Argument) -> None:
        """Removes a file, a link or an empty directory."""
        await self._ask(_questions.remove(path))

    async def copy_in(self, host: str | os.PathLike[str], path: Argument) -> None:
        """Copies a file of the host into the session, with its permissions."""
        await self._copy_in(host, path)

    async def copy_out(self, path: Argument, host: str | os.PathLike[str]) -> None:
        """Copies a file of the session to the host. It replaces what is at `host`, also a link, once it is complete."""
        await self._copy_out(path, host)

    # The session.

    async def changes(self) -> builtins.list[Change]:
        """What commands changed in the overlay of the session."""
        return await self._ask(_questions.changes())

    async def commit(self, paths: Iterable[Argument] = (), overwrite: bool = False) -> Committed:
        """Applies changes of the overlay to the workspace."""
        return await self._ask(_questions.commit(paths, overwrite))

    async def discard(self) -> None:
        """Drops the changes of the overlay. The session ends with them."""
        await self._ask(_questions.discard())
        await self.close()

    async def snapshot(self, image: str) -> Image:
        """Stores the image of the session, with what commands changed in it, as `image`."""
        return await asyncio.to_thread(images._snapshot, Path(self.socket_path), image)

    async def stats(self) -> Stats:
        """Numbers: commands that run, commands that have ended."""
        return await self._ask(_questions.stats())

    async def processes(self) -> builtins.list[Process]:
        """The processes of the session's commands, with the interpreters that wait for one."""
        return await self._ask(_questions.processes())

    async def interpreters(self) -> builtins.list[Interpreter]:
        """The interpreters of `warm`: what each does, and why it does not wait for commands if it does not."""
        return await self._ask(_questions.interpreters())

    async def describe(self) -> Description:
        """What the session was prepared with."""
        return await self._ask(_questions.describe())

    async def publish(self, port: str | int) -> Published:
        """Lets programs outside connect to a port inside: `[ADDR:]PORT[:INSIDE]`. Port 0 is one that is free."""
        return await self._ask(_questions.publish(port))

    async def published(self) -> builtins.list[Published]:
        """The published ports."""
        return await self._ask(_questions.published())

    async def connect(self, port: int) -> socket.socket:
        """A TCP connection to a port of the session's own loopback, in non-blocking mode: for `open_connection(sock=…)`."""
        made = await self._connect(port)
        made.setblocking(False)
        return made
