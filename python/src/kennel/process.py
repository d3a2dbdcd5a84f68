"""A running command of a session, in the shape of `subprocess.Popen`."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import select
import selectors
import struct
import subprocess
import termios
import threading
import time
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

from kennel import _calls, _connection, _wire
from kennel._blocking import now
from kennel._calls import Arguments, Environment, File
from kennel._process import ProcessBase
from kennel._wire import Argument
from kennel.errors import SessionClosed
from kennel.results import Denial, Outcome

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


class Popen(ProcessBase):
    """A command that runs. `Session.popen` makes it.

    It has what `subprocess.Popen` has: `args`, `stdin`, `stdout`, `stderr`, `returncode`, `poll`, `wait`, `communicate`,
    `send_signal`, `terminate`, `kill`, and it is a context manager. What differs:

    - The command is killed, with everything that it started, when this object is closed or gone, or this process ends.
    - A `with` block that ends with an exception kills it.
    - That a program was not found is the error of the first method that waits for the end.
    - `terminal=(rows, columns)` gives it a terminal, and `terminal` is then its other side.
    - `cold=True` executes the program, even if an interpreter waits for it.
    """

    stdin: IO[Any] | None = None
    stdout: IO[Any] | None = None
    stderr: IO[Any] | None = None
    terminal: Terminal | None = None

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
        cold: bool = False,
        _timeout: float | None = None,
    ) -> None:
        super().__init__(session, args, cwd)
        self._lock = threading.Lock()
        self._encoding = _calls.encoding_of(text, encoding, errors)
        self._kept: dict[int, list[bytes]] = {}
        self._unsent: memoryview | None = None
        begin = self._begin(stdin, stdout, stderr, shell=shell, env=env, terminal=terminal, cold=cold, timeout=_timeout)
        streams = now(begin)
        try:
            if terminal is not None:
                self._await_terminal()
            self.stdin, self.stdout, self.stderr = self._files(streams.ours, bufsize)
        except BaseException:
            streams.close()
            self._disconnect(kill=True)
            raise

    def _take_terminal(self, descriptor: int) -> None:
        self.terminal = Terminal(descriptor)

    def _await_terminal(self) -> None:
        while self.terminal is None and self._end is None:
            self._receive(None)
        if self.terminal is None:
            self._finish()
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
            connection = self._connected()
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

    def _wait(self, timeout: float | None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while self._end is None:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not self._receive(left):
                return False
        return True

    def poll(self) -> int | None:
        """The exit status, or `None` while the command runs."""
        while self._end is None:
            if not self._receive(0):
                return None
        return self._finish()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end. After `timeout` seconds it raises `subprocess.TimeoutExpired`, and the command goes on."""
        if not self._wait(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self._finish()

    @property
    def outcome(self) -> Outcome:
        """How the command ended. It waits for the end."""
        self._wait(None)
        return self._outcome()

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
        self._finish()
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
                selector.register(self._connected(), selectors.EVENT_READ)
            while self._end is None:
                left = None if until is None else until - time.monotonic()
                if left is not None and left < 0:
                    assert timeout is not None
                    raise subprocess.TimeoutExpired(self.args, timeout, self._joined(1), self._joined(2))
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

    def close(self) -> None:
        """Closes the pipes. If the command still runs, it is killed with everything that it started."""
        for file in (self.stdin, self.stdout, self.stderr, self.terminal):
            _close(file)
        self._disconnect(kill=True)

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
