"""A session for asyncio. No thread and no process of this program belongs to a command."""

from __future__ import annotations

import asyncio
import builtins
import os
import socket
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from kennel import _calls, _connection, _files, _launch, _loop, _questions, _wire
from kennel._base import PolicyLike, SessionBase
from kennel._calls import DEVNULL, PIPE, Arguments, Environment, File
from kennel._questions import Question, T
from kennel._wire import Argument
from kennel.aio_detached import AsyncDetached, AsyncShell
from kennel.aio_process import AsyncPopen
from kennel.detached import detach_packet, started
from kennel.errors import FileError, SessionClosed
from kennel.policy import Policy
from kennel.results import (
    Change,
    Committed,
    Completed,
    Description,
    Entry,
    Process,
    Published,
    Stat,
    Stats,
)

_COLLECT = _wire.WANTS_REPORT | _wire.COLLECT


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
        host = self._begin(chosen, self._given_name, self._idle)
        try:
            self._takes_commands(await _loop.started(host, self._start_timeout))
        except BaseException:
            host.kill()
            raise
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
        env: Environment = None,
        cwd: Argument | None = None,
        shell: bool = False,
        stdin: File = None,
        stdout: File = None,
        stderr: File = None,
    ) -> Completed[Any]:
        """Runs a command and waits for its end, as `Session.run`."""
        if input is not None and stdin is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        await self._know_directory(cwd)
        decode = _calls.encoding_of(text, encoding, errors)
        late = None if timeout is None else timeout + _connection.MARGIN_SECONDS
        with _connection.Descriptors() as given:
            given.add_stdin(None if input is None else _calls.encoded(input, decode), stdin)
            if capture_output:
                stdout = PIPE if stdout is None else stdout
                stderr = PIPE if stderr is None else stderr
            if not stdout == stderr == PIPE:
                process = await AsyncPopen.start(
                    self,
                    args,
                    stdin=given.sent[0] if given.sent else DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    shell=shell,
                    cwd=cwd,
                    env=env,
                    _timeout=timeout,
                )
                try:
                    out, err = await _within(late, process._communicate(None))
                    assert process._end is not None
                    end, report = process._end, process._report
                finally:
                    process.close()
            else:
                packet, long_call = self._packet(args, shell=shell, cwd=cwd, env=env, timeout=timeout, wishes=_COLLECT)
                if long_call is not None:
                    given.add_memfd(long_call)
                end, report, out, err = await self._collect(packet, given.sent, late)
        return _calls.completed(args, end, report, out, err, encoding=decode, timeout=timeout, check=check, cwd=cwd)

    async def _collect(
        self, packet: bytes, descriptors: Sequence[int], timeout: float | None
    ) -> tuple[_wire.Ended, bytes, bytes | None, bytes | None]:
        """Runs a command whose output the session collects: one message, one answer."""
        connection = await self._open()
        try:
            answer, received = await _loop.exchange(connection, packet, descriptors, timeout)
            try:
                end = _wire.ended(answer)
                if end is None:
                    raise _wire.malformed()
                parts = _calls.parts_of(end, received)
            finally:
                _connection.close_all(received)
        except SessionClosed as error:
            _connection.abandon(connection)
            raise self._gone(error) from None
        except BaseException:
            _connection.abandon(connection)
            raise
        connection.close()
        return end, *parts

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
        await self._know_directory(cwd)
        packet, call = detach_packet(self, args, shell=shell, env=env, cwd=cwd, timeout=timeout)
        with _connection.Descriptors() as given, await self._open() as connection:
            given.add_memfd(call)
            if log is not None:
                given.own.append(_files.log_file(log))
                given.sent.append(given.own[-1])
            answer, received = await _loop.exchange(connection, packet, given.sent, _connection.QUESTION_SECONDS)
        try:
            number = started(answer, received, args, cwd)
        finally:
            _connection.close_all(received)
        return AsyncDetached(self, number, os.fsdecode(_calls.words(args, shell)[0]))

    async def detached(self) -> builtins.list[AsyncDetached]:
        """Commands that stay, and the last of those that have ended."""
        found = await self._ask(_questions.detached())
        return [AsyncDetached(self, info.id, info.program, info) for info in found]

    # Files.

    async def read(self, path: Argument) -> bytes:
        """The contents of a file."""
        question = _questions.read(path)
        with await self._asked(question) as asked:
            size = question.result(asked.text).size
            with open(asked.descriptor(), "rb") as file:  # noqa: ASYNC230
                data: bytes = await _loop.off_loop(size, file.read)
        return data

    async def read_text(self, path: Argument, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The contents of a file as text."""
        return (await self.read(path)).decode(encoding, errors)

    async def write(self, path: Argument, data: bytes | bytearray | memoryview, mode: int | None = None) -> None:
        """Writes a file: whole, or not at all."""
        view = memoryview(data).cast("B")
        async with self._writing(path, mode) as descriptor:
            await _loop.off_loop(len(view), lambda: _launch.write_all(descriptor, view))

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
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def mkdir(self, path: Argument, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory, as `pathlib.Path.mkdir` does."""
        try:
            await self._ask(_questions.mkdir(path))
        except FileNotFoundError:
            above = _files.above(path)
            if not parents or not above:
                raise
            await self.mkdir(above, parents=True, exist_ok=True)
            await self.mkdir(path, exist_ok=exist_ok)
        except FileError:
            if not exist_ok or not await self._is_directory(path):
                raise

    async def _is_directory(self, path: Argument) -> bool:
        try:
            return (await self.stat(path)).is_dir
        except FileError:
            return False

    async def remove(self, path: Argument) -> None:
        """Removes a file, a link or an empty directory."""
        await self._ask(_questions.remove(path))

    async def copy_in(self, host: str | os.PathLike[str], path: Argument) -> None:
        """Copies a file of the host into the session, with its permissions."""
        with open(host, "rb") as source:  # noqa: ASYNC230
            found = os.fstat(source.fileno())
            async with self._writing(path, found.st_mode & 0o777) as descriptor:
                await _loop.off_loop(found.st_size, lambda: _files.copy(source.fileno(), descriptor))

    async def copy_out(self, path: Argument, host: str | os.PathLike[str]) -> None:
        """Copies a file of the session to the host. It replaces what is at `host`, also a link, once it is complete."""
        question = _questions.read(path)
        with await self._asked(question) as asked:
            found = question.result(asked.text)
            with _files.replaced(host, found.mode & 0o777) as target:
                await _loop.off_loop(found.size, lambda: _files.copy(asked.received[0], target))

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

    async def stats(self) -> Stats:
        """Numbers: commands that run, commands that have ended."""
        return await self._ask(_questions.stats())

    async def processes(self) -> builtins.list[Process]:
        """The processes of the session's commands."""
        return await self._ask(_questions.processes())

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
        question = _questions.connect(port)
        with await self._asked(question) as asked:
            question.result(asked.text)
            made = socket.socket(fileno=asked.descriptor())
        made.setblocking(False)
        return made

    # Requests.

    async def _know_directory(self, cwd: Argument | None) -> None:
        if self._needs_directory(cwd):
            self._directory = (await self.describe()).directory

    async def _open(self) -> socket.socket:
        self._check_open()
        try:
            return await _loop.connect(self.socket_path)
        except SessionClosed as error:
            raise self._gone(error) from None

    async def _asked(self, question: Question[Any]) -> _connection.Asked:
        packet, long_text = question.packet()
        connection = await self._open()
        try:
            return await _loop.ask(connection, packet, long_text)
        except SessionClosed as error:
            connection.close()
            raise self._gone(error) from None
        except BaseException:
            connection.close()
            raise

    async def _ask(self, question: Question[T]) -> T:
        with await self._asked(question) as asked:
            return question.result(asked.text)

    def _writing(self, path: Argument, mode: int | None) -> _Writing:
        return _Writing(self, _questions.write(path, mode))


class _Writing:
    """A new file of a session, which appears when the block ends without an exception."""

    def __init__(self, session: AsyncSession, question: Question[None]) -> None:
        self._session = session
        self._question = question

    async def __aenter__(self) -> int:
        with await self._session._asked(self._question) as asked:
            self._question.result(asked.text)
            self._descriptor = asked.descriptor()
            self._connection = asked.take_connection()
        return self._descriptor

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        os.close(self._descriptor)
        with self._connection:
            if kind is not None:
                _connection.abandon(self._connection)
                return
            request = _wire.request(_wire.FILE_WRITTEN)
            packet, received = await _loop.exchange(self._connection, request, (), _connection.QUESTION_SECONDS)
            try:
                text = _connection.json_of(packet, received)
            finally:
                _connection.close_all(received)
            self._question.result(text)


async def _within(seconds: float | None, work: Any) -> Any:
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise _connection.silent(seconds or 0) from None
