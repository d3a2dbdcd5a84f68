"""A running command of a session, in the shape of `subprocess.Popen`."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import select
import selectors
import signal
import struct
import subprocess
import termios
import threading
import time
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

from kennel import _calls, _connection, _wire
from kennel._calls import DEVNULL, PIPE, STDOUT, Arguments, Environment, File
from kennel._wire import Argument
from kennel.errors import SessionClosed
from kennel.results import Completed, Denial, Outcome

if TYPE_CHECKING:
    from kennel.session import Session

_PIECE = 1 << 16


class Terminal(io.RawIOBase):
    """The terminal of a command: what it shows, and what you type."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._file = io.FileIO(descriptor, "r+b")

    def fileno(self) -> int:
        return self._file.fileno()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            self._await(select.POLLIN)
            try:
                count = self._file.readinto(buffer)
            except OSError as error:
                # Nobody has the other side open any more.
                if error.errno != errno.EIO:
                    raise
                return 0
            if count is not None:
                return count

    def write(self, data: Any) -> int:
        while True:
            self._await(select.POLLOUT)
            count = self._file.write(data)
            if count is not None:
                return count

    def _await(self, events: int) -> None:
        # The session made this descriptor, and it is non-blocking.
        poll = select.poll()
        poll.register(self._file, events)
        poll.poll()

    def resize(self, rows: int, columns: int) -> None:
        """Changes the size of the window. The command gets SIGWINCH."""
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def close(self) -> None:
        self._file.close()
        super().close()


class Streams:
    """The descriptors of a command's stdin, stdout and stderr, and our ends of its pipes."""

    def __init__(self, stdin: File, stdout: File, stderr: File, is_terminal: bool) -> None:
        self.given = _connection.Descriptors()
        self.ours: list[int | None] = [None, None, None]
        try:
            if is_terminal:
                if (stdin, stdout, stderr) != (None, None, None):
                    raise ValueError("a command with a terminal has its streams there")
                for _ in range(3):
                    self.given.add_null(os.O_RDWR)
                return
            self._add_input(stdin)
            self._add_output(1, stdout)
            self._add_output(2, stderr)
        except BaseException:
            self.close()
            raise

    def _add_input(self, stdin: File) -> None:
        if stdin is None or stdin == DEVNULL:
            self.given.add_null()
        elif stdin == PIPE:
            theirs, self.ours[0] = os.pipe()
            self._add(theirs)
        else:
            self.given.sent.append(_calls.number_of(stdin))

    def _add_output(self, number: int, file: File) -> None:
        if file is None:
            self.given.sent.append(number)
        elif file == DEVNULL:
            self.given.add_null(os.O_WRONLY)
        elif file == PIPE:
            self.ours[number], theirs = os.pipe()
            self._add(theirs)
        elif file == STDOUT:
            if number == 1:
                raise ValueError("STDOUT can only be used for stderr")
            self.given.sent.append(self.given.sent[1])
        else:
            self.given.sent.append(_calls.number_of(file))

    def _add(self, descriptor: int) -> None:
        self.given.own.append(descriptor)
        self.given.sent.append(descriptor)

    def close(self) -> None:
        """Closes everything."""
        _connection.close_all(self.given.own + [each for each in self.ours if each is not None])
        self.given.own.clear()
        self.ours = [None, None, None]


class Popen:
    """A command that runs. `Session.popen` makes it.

    It has what `subprocess.Popen` has: `args`, `stdin`, `stdout`, `stderr`, `returncode`, `poll`, `wait`, `communicate`,
    `send_signal`, `terminate`, `kill`, and it is a context manager. What differs:

    - The command is killed, with everything that it started, when this object is closed or gone, or this process ends.
    - A `with` block that ends with an exception kills it.
    - That a program was not found is the error of the first method that waits for the end.
    - `terminal=(rows, columns)` gives it a terminal, and `terminal` is then its other side.
    """

    returncode: int | None = None
    """The exit status; negative if a signal ended the command; `None` while it runs."""
    stdin: IO[Any] | None = None
    stdout: IO[Any] | None = None
    stderr: IO[Any] | None = None
    terminal: Terminal | None = None

    _connection: Any = None
    _end: _wire.Ended | None = None
    _report = b""

    def __init__(
        self,
        session: Session,
        args: Arguments,
        *,
        bufsize: int = -1,
        stdin: File = None,
        stdout: File = None,
        stderr: File = None,
        shell: bool = False,
        cwd: Argument | None = None,
        env: Environment = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        terminal: tuple[int, int] | None = None,
        _timeout: float | None = None,
    ) -> None:
        self.args = args
        self._creator = os.getpid()
        self._cwd = cwd
        self._session = session
        self._lock = threading.Lock()
        self._encoding = _calls.encoding_of(text, encoding, errors)
        self._kept: dict[int, list[bytes]] = {}
        self._unsent: memoryview | None = None
        if session._needs_directory(cwd):
            session._directory = session.describe().directory
        packet, long_call = session._packet(
            args,
            shell=shell,
            cwd=cwd,
            env=env,
            timeout=_timeout,
            wishes=_wire.WANTS_REPORT | _wire.UNMARKED,
            terminal=terminal,
        )
        streams = Streams(stdin, stdout, stderr, terminal is not None)
        try:
            if long_call is not None:
                streams.given.add_memfd(long_call)
            self._connection = session._open()
            _connection.send(self._connection, packet, streams.given.sent)
            with streams.given:
                pass
            if terminal is not None:
                self._await_terminal()
            self.stdin, self.stdout, self.stderr = self._files(streams.ours, bufsize)
        except BaseException:
            streams.close()
            self._abandon()
            raise

    def _await_terminal(self) -> None:
        while self.terminal is None and self._end is None:
            self._receive(None)
        if self.terminal is None:
            self._raise_if_failed()
            raise _wire.malformed()

    def _files(self, ours: list[int | None], bufsize: int) -> list[IO[Any] | None]:
        files: list[IO[Any] | None] = []
        for number, descriptor in enumerate(ours):
            if descriptor is None:
                files.append(None)
                continue
            by_line = bufsize == 1 and self._encoding is not None
            file: IO[Any] = open(descriptor, "wb" if number == 0 else "rb", -1 if by_line else bufsize)  # noqa: SIM115
            if self._encoding is not None:
                encoding, errors = self._encoding
                buffered = cast("io.BufferedWriter", file)
                file = io.TextIOWrapper(buffered, encoding, errors, write_through=True, line_buffering=by_line)
            files.append(file)
            ours[number] = None
        return files

    # The end.

    def _receive(self, timeout: float | None) -> bool:
        """Takes the next message; false if there is none in time."""
        with self._lock:
            if self._end is not None:
                return True
            connection = self._connection
            if connection is None:
                raise SessionClosed("the command was closed")
            if timeout is not None and not _is_readable(connection, timeout):
                return False
            try:
                packet, received = _connection.receive(connection)
            except SessionClosed as error:
                raise self._session._gone(error) from None
            try:
                self._take(packet, received)
            finally:
                _connection.close_all(received)
            return True

    def _take(self, packet: bytes, received: list[int]) -> None:
        end = _wire.ended(packet)
        if end is not None:
            self._report = _calls.parts_of(end, received)[0]
            self._end = end
            self._connection.close()
            self._connection = None
        elif _wire.number_of(packet) == _wire.TERMINAL and received and self.terminal is None:
            self.terminal = Terminal(received.pop())
            give_terminal(self._connection)
        elif _wire.number_of(packet) != _wire.STOPPED:
            raise _wire.malformed()

    def _wait(self, timeout: float | None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while self._end is None:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not self._receive(left):
                return False
        return True

    def _end_with_report(self) -> tuple[_wire.Ended, bytes]:
        assert self._end is not None
        return self._end, self._report

    def _raise_if_failed(self) -> int:
        """Sets and returns the exit status, or raises the error of a command that did not start."""
        end, report = self._end_with_report()
        done = _calls.completed(self.args, end, report, None, None, encoding=None, timeout=None, check=False, cwd=self._cwd)
        self.returncode = done.returncode
        return done.returncode

    def poll(self) -> int | None:
        """The exit status, or `None` while the command runs."""
        while self._end is None:
            if not self._receive(0):
                return None
        return self._raise_if_failed()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end. After `timeout` seconds it raises `subprocess.TimeoutExpired`, and the command goes on."""
        if not self._wait(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._words(), timeout)
        return self._raise_if_failed()

    def _words(self) -> Any:
        return self.args

    @property
    def outcome(self) -> Outcome:
        """How the command ended. It waits for the end."""
        self._wait(None)
        end, report = self._end_with_report()
        if not report:
            return Completed(self.args, self._raise_if_failed(), message=end.message).outcome
        return Outcome.parse(report, end.message.decode("utf-8", "replace").strip())

    @property
    def denials(self) -> list[Denial]:
        """What was refused. It waits for the end."""
        return self.outcome.denials

    # Streams.

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002
        """Sends `input` to stdin, reads stdout and stderr to their end, and waits for the command.

        After `timeout` seconds it raises `subprocess.TimeoutExpired`, and the command goes on: call it again, and nothing of
        the output is lost.
        """
        if input is not None and self._unsent is None:
            if self.stdin is None:
                raise ValueError("there is no pipe to stdin: use stdin=PIPE")
            self._unsent = memoryview(_calls.encoded(input, self._encoding))
        out, err = self._communicate(timeout)
        self._raise_if_failed()
        return _calls.decoded(out, self._encoding), _calls.decoded(err, self._encoding)

    def _communicate(self, timeout: float | None) -> tuple[bytes | None, bytes | None]:
        until = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None and not self.stdin.closed:
            _flush(self.stdin)
            if not self._unsent:
                _close(self.stdin)
        with selectors.PollSelector() as selector:
            if self._unsent and self.stdin is not None and not self.stdin.closed:
                os.set_blocking(self.stdin.fileno(), False)
                selector.register(self.stdin, selectors.EVENT_WRITE)
            for number, file in ((1, self.stdout), (2, self.stderr)):
                if file is not None:
                    self._kept.setdefault(number, [])
                    if not file.closed:
                        selector.register(file, selectors.EVENT_READ, number)
            if self._end is None:
                if self._connection is None:
                    raise SessionClosed("the command was closed")
                selector.register(self._connection, selectors.EVENT_READ)
            while self._end is None:
                left = None if until is None else until - time.monotonic()
                if left is not None and left < 0:
                    assert timeout is not None
                    raise subprocess.TimeoutExpired(self._words(), timeout, self._joined(1), self._joined(2))
                for key, _ in selector.select(left):
                    self._serve(selector, key)
        self._drain()
        return self._joined(1), self._joined(2)

    def _serve(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if key.data is not None:
            piece = os.read(key.fd, _PIECE)
            if piece:
                self._kept[key.data].append(piece)
            else:
                selector.unregister(key.fileobj)
                cast("IO[Any]", key.fileobj).close()
        elif key.fileobj is self.stdin:
            assert self._unsent is not None
            try:
                self._unsent = self._unsent[os.write(key.fd, self._unsent[:_PIECE]) :]
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._unsent = self._unsent[:0]
            if not self._unsent:
                selector.unregister(key.fileobj)
                _close(self.stdin)
        else:
            self._receive(0)

    def _drain(self) -> None:
        """Reads what the pipes still hold. The session has written everything before it told the end."""
        for number, file in ((1, self.stdout), (2, self.stderr)):
            if file is None or file.closed:
                continue
            os.set_blocking(file.fileno(), False)
            try:
                while piece := os.read(file.fileno(), _PIECE):
                    self._kept[number].append(piece)
            except BlockingIOError:
                pass
            file.close()
        _close(self.stdin)

    def _joined(self, number: int) -> bytes | None:
        kept = self._kept.get(number)
        return None if kept is None else b"".join(kept)

    # Signals.

    def send_signal(self, sig: int) -> None:
        """Sends a signal to the command. It is no error if the command has ended."""
        number = _calls.signal_number(sig)
        connection = self._connection
        if connection is not None and self._end is None:
            _connection.send(connection, _wire.request(_wire.SIGNAL, number))

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Closes the pipes. If the command still runs, it is killed with everything that it started."""
        for file in (self.stdin, self.stdout, self.stderr, self.terminal):
            _close(file)
        self._abandon()

    def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._creator == os.getpid():
            _connection.abandon(connection)
        else:
            connection.close()

    def __enter__(self) -> Popen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None and self._connection is not None:
                for file in (self.stdout, self.stderr, self.stdin, self.terminal):
                    _close(file)
                self._wait(None)
        finally:
            self.close()

    def __del__(self) -> None:
        if self._connection is not None:
            self._abandon()

    def __repr__(self) -> str:
        return f"<kennel.Popen {self.args!r} returncode={self.returncode}>"


def give_terminal(connection: Any) -> None:
    """Lets the command read from its terminal. If it has tried to before, it was stopped, and goes on."""
    _connection.send(connection, _wire.request(_wire.FOREGROUND, 1))
    _connection.send(connection, _wire.request(_wire.SIGNAL, signal.SIGCONT))


def _is_readable(connection: Any, timeout: float) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def _flush(file: IO[Any]) -> None:
    try:
        file.flush()
    except BrokenPipeError:
        pass


def _close(file: Any) -> None:
    if file is not None:
        try:
            file.close()
        except BrokenPipeError:
            pass


__all__ = ["Popen", "Streams", "Terminal"]
