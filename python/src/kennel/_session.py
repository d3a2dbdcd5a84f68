"""What a session does, for both of its faces. It waits only for what `_io` offers."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kennel import _calls, _connection, _files, _launch, _questions, _wire
from kennel._calls import DEVNULL, PIPE, Arguments, Environment, File
from kennel._questions import Question, T
from kennel._wire import Argument
from kennel.errors import FileError, SessionClosed
from kennel.policy import Policy
from kennel.results import Completed

PolicyLike = Policy | Mapping[str, Any] | str | os.PathLike[str] | None
Collected = tuple[_wire.Ended, bytes, bytes | None, bytes | None]
"""An end, its report, stdout and stderr."""


class SessionBase:
    """A session: a socket's path, and for the process that started it a `Host`.

    `Session` runs the coroutines with `now`, and `AsyncSession` awaits them.
    """

    _io: _connection.Io
    _host: _launch.Host | None = None
    _end: weakref.finalize[Any, Any] | None = None
    _is_closed = False
    _directory: str | None = None
    _kept: list[tuple[socket.socket, float | None]]
    """Connections for further commands, each with how long it waits for answers."""

    name: str
    """The session's name, as `kennel session list` shows it."""
    socket_path: str
    """The path of its socket."""

    def _attach(self, name: str) -> None:
        """Finds a session that runs already, by its name or the path of its socket."""
        path = Path(name) if os.path.isabs(name) else _launch.runtime_directory() / f"{name}.sock"
        _launch.check_directory(path.parent)
        self.name = path.name.removesuffix(".sock")
        self.socket_path = str(path)
        self._kept = _connections_of(self)

    async def _start(self, policy: Policy, name: str | None, timeout: float, idle: float | None) -> None:
        """Starts a session, which is this object's until `_end` is called, this object is gone, or the program ends."""
        host = _launch.Host(policy.to_json().encode(), name, idle)
        self._host = host
        self.name = host.name
        try:
            socket_path = await self._io.started(host, timeout)
            _launch.check_directory(Path(socket_path).parent)
        except BaseException:
            host.kill()
            raise
        self.socket_path = socket_path
        self._kept = _connections_of(self)
        self._end = weakref.finalize(self, host.end)

    def _close(self) -> None:
        self._is_closed = True
        if self in _keeping:
            _close_kept(self._kept)
        if self._end is not None:
            self._end()

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionClosed(f"session {self.name} is closed")

    def _gone(self, error: SessionClosed) -> SessionClosed:
        """The error of a session that has ended, with what its process said."""
        if self._host is not None and self._host.owner == os.getpid() and not self._is_closed:
            status = self._host.process.poll()
            said = self._host.said().strip()
            if status is not None:
                text = f"session {self.name} has ended: status {status}"
                return SessionClosed(f"{text}: {said}" if said else text, hint=error.hint)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process uses the session, and does not end it."""
        return _attached, (type(self), self.socket_path)

    def __repr__(self) -> str:
        state = " closed" if self._is_closed else ""
        return f"<kennel.{type(self).__name__} {self.name}{state}>"

    def _packet(
        self,
        args: Arguments,
        *,
        shell: bool,
        cwd: Argument | None,
        env: Environment,
        timeout: float | None,
        wishes: int,
        terminal: tuple[int, int] | None = None,
    ) -> tuple[bytes, bytes | None]:
        """The packet of a command, and what a memfd has to hold if it is too long."""
        call = _wire.call(
            _calls.words(args, shell),
            directory=_calls.directory(cwd, self._directory),
            timeout_ms=_wire.milliseconds(timeout),
            environment=env,
            wishes=wishes,
            terminal=0 if terminal is None else 7,
            window=0 if terminal is None else terminal[0] << 16 | terminal[1],
        )
        return _calls.first_packet(call, _wire.COMMAND, _wire.COMMAND_IN_MEMFD)

    # Requests.

    async def _open(self) -> socket.socket:
        self._check_open()
        try:
            return await self._io.connect(self.socket_path)
        except SessionClosed as error:
            raise self._gone(error) from None

    async def _exchange(self, packet: bytes, descriptors: Sequence[int] = ()) -> tuple[bytes, list[int]]:
        """One request, one answer with its descriptors, which belong to the caller."""
        with await self._open() as connection:
            return await _connection.exchange(self._io, connection, packet, descriptors, _connection.QUESTION_SECONDS)

    async def _asked(self, question: Question[Any]) -> _connection.Asked:
        """The answer to a question, with its connection."""
        packet, long_text = question.packet()
        connection = await self._open()
        received: list[int] = []
        try:
            with _connection.Descriptors() as given:
                if long_text is not None:
                    given.add_memfd(long_text)
                seconds = _connection.QUESTION_SECONDS
                answer, received = await _connection.exchange(self._io, connection, packet, given.sent, seconds)
            return _connection.Asked(connection, _connection.json_of(answer, received), received)
        except BaseException as error:
            _connection.close_all(received)
            connection.close()
            if isinstance(error, SessionClosed):
                raise self._gone(error) from None
            raise

    async def _ask(self, question: Question[T]) -> T:
        with await self._asked(question) as asked:
            return question.result(asked.text)

    # Commands.

    async def _run(
        self,
        args: Arguments,
        *,
        input: bytes | str | None,  # noqa: A002
        capture_output: bool,
        text: bool | None,
        encoding: str | None,
        errors: str | None,
        timeout: float | None,
        check: bool,
        truncate: bool,
        env: Environment,
        cwd: Argument | None,
        shell: bool,
        stdin: File,
        stdout: File,
        stderr: File,
        cold: bool,
    ) -> Completed[Any]:
        """Runs a command and waits for its end."""
        if input is not None and stdin is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        if capture_output:
            stdout = PIPE if stdout is None else stdout
            stderr = PIPE if stderr is None else stderr
        if cwd is not None:
            await self._know_directory(cwd)
        decode = _calls.encoding_of(text, encoding, errors)
        late = None if timeout is None else timeout + _connection.MARGIN_SECONDS
        if stdout == stderr == PIPE:
            wishes = _wire.WANTS_REPORT | _wire.COLLECT | _wire.KEEPS | (_wire.COLD if cold else 0)
            packet, long_call = self._packet(args, shell=shell, cwd=cwd, env=env, timeout=timeout, wishes=wishes)
            if input is None and stdin is None and long_call is None:
                end, report, out, err = await self._collect(packet, (), late, keeps=True)
            else:
                with _connection.Descriptors() as given:
                    given.add_stdin(None if input is None else _calls.encoded(input, decode), stdin)
                    if long_call is not None:
                        given.add_memfd(long_call)
                    end, report, out, err = await self._collect(packet, given.sent, late, keeps=True)
        else:
            with _connection.Descriptors() as given:
                given.add_stdin(None if input is None else _calls.encoded(input, decode), stdin)
                file = given.sent[0] if given.sent else DEVNULL
                streams = {"stdin": file, "stdout": stdout, "stderr": stderr}
                end, report, out, err = await self._communicate(
                    late, args, **streams, shell=shell, cwd=cwd, env=env, cold=cold, _timeout=timeout
                )
        return _calls.completed(
            args, end, report, out, err, encoding=decode, timeout=timeout, check=check, truncate=truncate, cwd=cwd
        )

    async def _communicate(self, late: float | None, args: Arguments, **keywords: Any) -> Collected:
        """Runs a command with streams of the caller's. `keywords` are those of `popen`."""
        raise NotImplementedError

    async def _collect(
        self, packet: bytes, descriptors: Sequence[int], late: float | None, keeps: bool = False
    ) -> Collected:
        """Runs a command whose output the session collects: one message, one answer.

        `keeps` is whether the packet has the wish that its connection serves another command.
        """
        self._check_open()
        reused = self._reused(late) if keeps else None
        connection = reused or await self._open()
        try:
            if not _connection.send(connection, packet, descriptors) and reused:
                raise _connection.Unread("")
            while True:
                answer, received = await self._io.receive(connection, late)
                try:
                    end = _wire.ended(answer)
                    if end is not None:
                        parts = _calls.parts_of(end, received)
                        break
                    if _wire.number_of(answer) != _wire.STOPPED:
                        raise _wire.malformed()
                finally:
                    _connection.close_all(received)
        except BlockingIOError:
            _connection.abandon(connection)
            raise _connection.silent(late or 0) from None
        except SessionClosed as error:
            _connection.abandon(connection)
            if reused and isinstance(error, _connection.Unread):
                # The session closed it meanwhile, for newer clients.
                return await self._collect(packet, descriptors, late, keeps)
            raise self._gone(error) from None
        except BaseException:
            _connection.abandon(connection)
            raise
        if keeps and end.stdout is not None:
            self._keep(connection, late)
        else:
            connection.close()
        return end, *parts

    def _reused(self, late: float | None) -> socket.socket | None:
        """A connection that has served a request, and serves another one."""
        while True:
            try:
                connection, before = self._kept.pop()
            except IndexError:
                return None
            if _connection.is_open(connection):
                if late is None and before is not None:
                    _connection.patience(connection, None)
                return connection
            connection.close()

    def _keep(self, connection: socket.socket, late: float | None) -> None:
        """Keeps a connection for the next command. A forked process has none of them."""
        if self._is_closed or len(self._kept) >= _MOST_KEPT:
            connection.close()
            return
        self._kept.append((connection, late))
        if self._is_closed:
            _close_kept(self._kept)

    async def _detach(
        self,
        args: Arguments,
        log: str | os.PathLike[str] | None,
        *,
        shell: bool,
        env: Environment,
        cwd: Argument | None,
        timeout: float | None,
    ) -> tuple[int, str]:
        """Starts a command that stays: its number, and its program."""
        await self._know_directory(cwd)
        words = _calls.words(args, shell)
        call = _wire.call(
            words,
            directory=_calls.directory(cwd, self._directory),
            timeout_ms=_wire.milliseconds(timeout),
            environment=env,
            wishes=_wire.WANTS_REPORT,
        )
        _calls.check_length(call)
        with _connection.Descriptors() as given:
            given.add_memfd(call)
            if log is not None:
                given.own.append(_files.log_file(log))
                given.sent.append(given.own[-1])
            answer, received = await self._exchange(_wire.request(_wire.DETACH, len(call)), given.sent)
        _connection.close_all(received)
        end = _wire.ended(answer)
        if end is not None:
            raise _calls.start_error_without_report(end, args, cwd)
        if _wire.number_of(answer) != _wire.DETACHED:
            raise _wire.malformed()
        return _wire.field(answer), os.fsdecode(words[0])

    async def _know_directory(self, cwd: Argument | None) -> None:
        """Asks for the directory of the session if a relative one starts there."""
        if cwd is not None and self._directory is None and not os.path.isabs(os.fspath(cwd)):
            self._directory = (await self._ask(_questions.describe())).directory

    # Files.

    async def _read(self, path: Argument) -> bytes:
        question = _questions.read(path)
        with await self._asked(question) as asked:
            size = question.result(asked.text).size
            with open(asked.descriptor(), "rb") as file:  # noqa: ASYNC230
                return await self._io.off_loop(size, file.read)

    async def _write(self, path: Argument, data: bytes | bytearray | memoryview, mode: int | None) -> None:
        view = memoryview(data).cast("B")
        async with _files.Writing(self, path, mode) as target:
            await self._io.off_loop(len(view), lambda: _launch.write_all(target, view))

    async def _copy_in(self, host: str | os.PathLike[str], path: Argument) -> None:
        with open(host, "rb") as source:  # noqa: ASYNC230
            found = os.fstat(source.fileno())
            async with _files.Writing(self, path, found.st_mode & 0o777) as target:
                await self._io.off_loop(found.st_size, lambda: _files.copy(source.fileno(), target))

    async def _copy_out(self, path: Argument, host: str | os.PathLike[str]) -> None:
        question = _questions.read(path)
        with await self._asked(question) as asked:
            found = question.result(asked.text)
            with _files.replaced(host, found.mode & 0o777) as target:
                await self._io.off_loop(found.size, lambda: _files.copy(asked.received[0], target))

    async def _exists(self, path: Argument) -> bool:
        try:
            await self._ask(_questions.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def _mkdir(self, path: Argument, parents: bool, exist_ok: bool) -> None:
        try:
            await self._ask(_questions.mkdir(path))
        except FileNotFoundError:
            above = _files.above(path)
            if not parents or not above:
                raise
            await self._mkdir(above, True, True)
            await self._mkdir(path, False, exist_ok)
        except FileError:
            # A read-only place gives another errno for a directory that exists.
            if not exist_ok or not await self._is_directory(path):
                raise

    async def _is_directory(self, path: Argument) -> bool:
        try:
            return (await self._ask(_questions.stat(path))).is_dir
        except FileError:
            return False

    async def _connect(self, port: int) -> socket.socket:
        question = _questions.connect(port)
        with await self._asked(question) as asked:
            question.result(asked.text)
            return socket.socket(fileno=asked.descriptor())


_MOST_KEPT = 8
"""How many connections a session keeps: as many commands as usually run side by side."""

_keeping: weakref.WeakSet[SessionBase] = weakref.WeakSet()


def _connections_of(session: SessionBase) -> list[tuple[socket.socket, float | None]]:
    kept: list[tuple[socket.socket, float | None]] = []
    _keeping.add(session)
    weakref.finalize(session, _close_kept, kept)
    return kept


def _close_kept(kept: list[tuple[socket.socket, float | None]]) -> None:
    while True:
        try:
            kept.pop()[0].close()
        except IndexError:
            return


def _forget_kept() -> None:
    """Closes what a forked process has of its parent's connections: the two would read each other's answers."""
    for session in _keeping:
        _close_kept(session._kept)


os.register_at_fork(after_in_child=_forget_kept)


def _attached(kind: type[SessionBase], path: str) -> SessionBase:
    session = kind.__new__(kind)
    session._attach(path)
    return session
