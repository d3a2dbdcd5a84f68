"""Commands that stay, and shells that keep their state."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from kennel import _calls, _connection, _files, _questions, _wire
from kennel._base import SessionBase
from kennel._calls import Arguments, Environment
from kennel._wire import Argument
from kennel.errors import TimeoutExpired
from kennel.results import Completed, DetachedInfo

if TYPE_CHECKING:
    from kennel.session import Session

Stream = Literal["stdout", "stderr"]


def detach_packet(
    session: SessionBase, args: Arguments, *, shell: bool, env: Environment, cwd: Argument | None, timeout: float | None
) -> tuple[bytes, bytes]:
    """The packet that starts a command that stays, and its call."""
    call = _wire.call(
        _calls.words(args, shell),
        directory=_calls.directory(cwd, session._directory),
        timeout_ms=_wire.milliseconds(timeout),
        environment=env,
        wishes=_wire.WANTS_REPORT,
    )
    _calls.check_length(call)
    return _wire.request(_wire.DETACH, len(call)), call


def started(packet: bytes, received: list[int], args: Any, cwd: Argument | None) -> int:
    """The number of the command that an answer tells, or the error of one that did not start."""
    end = _wire.ended(packet)
    if end is not None:
        _connection.close_all(received)
        received.clear()
        raise _calls.start_error_without_report(end, args, cwd)
    if _wire.number_of(packet) != _wire.DETACHED:
        raise _wire.malformed()
    return _wire.field(packet)


def start_detached(
    session: Session,
    args: Arguments,
    log: str | os.PathLike[str] | None,
    *,
    shell: bool,
    env: Environment,
    cwd: Argument | None,
    timeout: float | None,
) -> Detached:
    """Starts a command that stays."""
    if session._needs_directory(cwd):
        session._directory = session.describe().directory
    packet, call = detach_packet(session, args, shell=shell, env=env, cwd=cwd, timeout=timeout)
    with _connection.Descriptors() as given:
        given.add_memfd(call)
        if log is not None:
            given.own.append(_files.log_file(log))
            given.sent.append(given.own[-1])
        answer, received = _exchange(session, packet, given.sent)
    try:
        number = started(answer, received, args, cwd)
    finally:
        _connection.close_all(received)
    return Detached(session, number, os.fsdecode(_calls.words(args, shell)[0]))


def _exchange(session: Session, packet: bytes, descriptors: list[int]) -> tuple[bytes, list[int]]:
    """One request, one answer."""
    with session._open() as connection:
        _connection.patience(connection, _connection.QUESTION_SECONDS)
        _connection.send(connection, packet, descriptors)
        try:
            return _connection.receive(connection)
        except BlockingIOError:
            raise _connection.silent(_connection.QUESTION_SECONDS) from None


class Logs(Iterator[tuple[Stream, bytes]]):
    """What a command that stays has written: pairs of the stream and the bytes, in the order in which they arrived."""

    dropped = 0
    """How many bytes came before and are not kept any more."""

    def __init__(self, session: Session, number: int, lines: int | None, follow: bool) -> None:
        self._connection: Any = session._open()
        _connection.send(self._connection, _wire.logs(number, follow, lines))

    def __iter__(self) -> Logs:
        return self

    def __next__(self) -> tuple[Stream, bytes]:
        while self._connection is not None:
            try:
                packet, received = _connection.receive(self._connection)
            except BaseException:
                self.close()
                raise
            try:
                piece = self._take(packet, received)
            finally:
                _connection.close_all(received)
            if piece is not None:
                return piece
        raise StopIteration

    def _take(self, packet: bytes, received: list[int]) -> tuple[Stream, bytes] | None:
        piece, dropped = logged(packet)
        self.dropped += dropped
        if piece is None and not dropped:
            self.close()
        return piece

    def close(self) -> None:
        """Stops reading."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def logged(packet: bytes) -> tuple[tuple[Stream, bytes] | None, int]:
    """What a message of logs tells: a piece, or how many bytes are gone; neither of them at the end."""
    number = _wire.number_of(packet)
    if number == _wire.OUTPUT:
        stream, data = _wire.output(packet)
        return ("stdout" if stream == 1 else "stderr", data), 0
    if number == _wire.DROPPED:
        return None, _wire.dropped(packet)
    if not _wire.is_done(packet):
        raise _connection.refusal(packet)
    return None, 0


class Detached:
    """A command that stays: a server, or a long build. `Session.detach` starts it."""

    def __init__(self, session: Session, number: int, program: str, info: DetachedInfo | None = None) -> None:
        self._session = session
        self.id = number
        """Its number in the session."""
        self.program = program
        self.info = info
        """What `Session.detached` knew about it."""

    def logs(self, lines: int | None = None, follow: bool = False) -> Logs:
        """What it wrote: the last MiB that is kept, or the last `lines` lines. With `follow`, also what it will write.

        >>> import kennel
        >>> with kennel.Session() as s:
        ...     c = s.detach(["seq", "3"])
        ...     b"".join(data for _, data in c.logs(follow=True))
        b'1\\n2\\n3\\n'
        """
        return Logs(self._session, self.id, lines, follow)

    def kill(self, sig: int = signal.SIGTERM) -> None:
        """Sends a signal. It is no error if the command has ended."""
        request = _wire.request(_wire.KILL, self.id, _calls.signal_number(sig))
        packet, received = _exchange(self._session, request, [])
        _connection.close_all(received)
        if not _wire.is_done(packet):
            raise _connection.refusal(packet)

    def wait(self, timeout: float | None = None) -> Completed[bytes]:
        """Waits for its end. After `timeout` seconds it raises `kennel.TimeoutExpired`, and the command goes on."""
        with self._session._open() as connection:
            if timeout is not None:
                _connection.patience(connection, timeout)
            _connection.send(connection, _wire.request(_wire.WAIT, self.id, _wire.WANTS_REPORT | _wire.AS_DATA))
            try:
                packet, received = _connection.receive(connection)
            except BlockingIOError:
                assert timeout is not None
                raise TimeoutExpired(self.program, timeout) from None
        try:
            return waited(packet, received, self.program)
        finally:
            _connection.close_all(received)

    def __repr__(self) -> str:
        return f"<kennel.Detached {self.id} {self.program!r}>"


def waited(packet: bytes, received: list[int], program: str) -> Completed[bytes]:
    """How a command that stays has ended."""
    end = _wire.ended(packet)
    if end is None:
        raise _wire.malformed()
    report = _calls.parts_of(end, received)[0]
    if not report:
        raise _connection.refusal(packet)
    return _calls.completed(program, end, report, None, None, encoding=None, timeout=None, check=False)


def snippet_packet(name: str, snippet: str | bytes, timeout: float | None) -> tuple[bytes, bytes | None]:
    """The packet of a snippet, and what a memfd has to hold if it is too long."""
    call = _wire.call([name, snippet], timeout_ms=_wire.milliseconds(timeout), wishes=_wire.WANTS_REPORT | _wire.COLLECT)
    return _calls.first_packet(call, _wire.SNIPPET, _wire.SNIPPET_IN_MEMFD)


class Shell:
    """A shell that keeps its directory, variables, functions and jobs from one snippet to the next.

    `Session.shell` makes it. Snippets of one shell run one after the other.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.name = name

    def run(
        self,
        snippet: str | bytes,
        *,
        timeout: float | None = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        check: bool = False,
    ) -> Completed[Any]:
        """Runs a snippet. After `timeout` seconds it is interrupted, and the shell keeps its state.

        `directory` of the result is the shell's directory afterwards.
        """
        packet, long_call = snippet_packet(self.name, snippet, timeout)
        with _connection.Descriptors() as given:
            if long_call is not None:
                given.add_memfd(long_call)
            # The shell may need a while to be interrupted, or to be replaced.
            late = None if timeout is None else timeout + _connection.MARGIN_SECONDS
            end, report, out, err = self._session._collect(packet, given.sent, late)
        decode = _calls.encoding_of(text, encoding, errors)
        return _calls.completed(snippet, end, report, out, err, encoding=decode, timeout=timeout, check=check)

    def close(self) -> None:
        """Ends the shell with its jobs."""
        self._session._ask(_questions.end_shell(self.name))

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kennel.Shell {self.name} of {self._session.name}>"
