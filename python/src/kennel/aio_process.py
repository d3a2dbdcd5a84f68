"""A running command of a session, in the shape of `asyncio.subprocess.Process`."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
import weakref
from typing import IO, TYPE_CHECKING

from kennel import _connection, _wire
from kennel._calls import Arguments, Environment, File
from kennel._process import ProcessBase, Streams
from kennel._wire import Argument
from kennel.errors import SessionClosed
from kennel.results import Outcome

if TYPE_CHECKING:
    from kennel.aio import AsyncSession


class AsyncPopen(ProcessBase):
    """A command that runs. `AsyncSession.popen` makes it.

    `stdin` is an `asyncio.StreamWriter`, `stdout` and `stderr` are `asyncio.StreamReader`, each if it is a pipe. With
    `terminal=(rows, columns)`, `stdin` and `stdout` are the other side of its terminal. The command is killed, with
    everything that it started, when this object is closed or gone.
    """

    stdin: asyncio.StreamWriter | None = None
    stdout: asyncio.StreamReader | None = None
    stderr: asyncio.StreamReader | None = None

    _terminal: int | None = None

    def __init__(self, session: AsyncSession, args: Arguments, cwd: Argument | None) -> None:
        super().__init__(session, args, cwd)
        self._loop = asyncio.get_running_loop()
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._error: Exception | None = None
        self._transports: list[asyncio.BaseTransport] = []

    @classmethod
    async def start(
        cls,
        session: AsyncSession,
        args: Arguments,
        *,
        stdin: File = None,
        stdout: File = None,
        stderr: File = None,
        shell: bool = False,
        cwd: Argument | None = None,
        env: Environment = None,
        terminal: tuple[int, int] | None = None,
        limit: int = 1 << 16,
        cold: bool = False,
        _timeout: float | None = None,
    ) -> AsyncPopen:
        """Starts the command. `limit` is that of the `StreamReader`s; `cold` is that of `kennel.Popen`."""
        self = cls(session, args, cwd)
        streams = await self._begin(
            stdin, stdout, stderr, shell=shell, env=env, terminal=terminal, cold=cold, timeout=_timeout
        )
        try:
            self._loop.add_reader(self._connection.fileno(), _arrived, weakref.ref(self))
            if terminal is not None:
                await self._await_terminal(streams)
            await self._connect(streams.ours, limit)
        except BaseException:
            streams.close()
            self.close()
            raise
        return self

    async def _await_terminal(self, streams: Streams) -> None:
        while self._terminal is None:
            if self._end is not None or self._error is not None:
                await self.wait()
                raise _wire.malformed()
            await self._change()
        streams.ours = [os.dup(self._terminal), os.dup(self._terminal), None]

    async def _connect(self, ours: list[int | None], limit: int) -> None:
        for number in range(3):
            descriptor = ours[number]
            if descriptor is None:
                continue
            ours[number] = None
            file: IO[bytes] = open(descriptor, "wb" if number == 0 else "rb", 0)  # noqa: SIM115, ASYNC230
            reader = asyncio.StreamReader(limit, self._loop)
            protocol = _Protocol(reader, loop=self._loop)
            try:
                if number == 0:
                    transport, _ = await self._loop.connect_write_pipe(lambda given=protocol: given, file)  # type: ignore[misc]
                    self.stdin = asyncio.StreamWriter(transport, protocol, None, self._loop)
                else:
                    transport, _ = await self._loop.connect_read_pipe(lambda given=protocol: given, file)  # type: ignore[misc, assignment]
                    setattr(self, "stdout" if number == 1 else "stderr", reader)
            except BaseException:
                file.close()
                raise
            self._transports.append(transport)

    # The end.

    def _arrived(self) -> None:
        """Takes the messages that are there."""
        try:
            while self._connection is not None:
                packet, received = _connection.receive(self._connection)
                try:
                    self._take(packet, received)
                finally:
                    _connection.close_all(received)
        except BlockingIOError:
            pass
        except SessionClosed as error:
            self._fail(self._session._gone(error))
        except Exception as error:
            self._fail(error)
        changed, self._changed = self._changed, self._loop.create_future()
        if not changed.done():
            changed.set_result(None)

    def _take(self, packet: bytes, received: list[int]) -> None:
        super()._take(packet, received)
        if self._end is not None:
            try:
                self._finish()
            except Exception:
                # `wait` raises it again.
                return

    def _take_terminal(self, descriptor: int) -> None:
        self._terminal = descriptor

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._disconnect(kill=True)

    async def _change(self) -> None:
        await asyncio.shield(self._changed)

    async def _wait(self) -> None:
        while self._end is None:
            if self._error is not None:
                raise self._error
            self._connected()
            await self._change()

    async def wait(self) -> int:
        """Waits for the end. It raises the error of a command that did not start."""
        await self._wait()
        return self._finish()

    @property
    def outcome(self) -> Outcome:
        """How the command has ended. Only after `wait`."""
        if self._end is None:
            raise RuntimeError("the command runs: await wait() first")
        return self._outcome()

    # Streams and signals.

    async def communicate(self, input: bytes | None = None) -> tuple[bytes | None, bytes | None]:  # noqa: A002
        """Sends `input` to stdin, reads stdout and stderr to their end, and waits for the command."""
        out, err = await self._communicate(input)
        self._finish()
        return out, err

    async def _communicate(self, given: bytes | None) -> tuple[bytes | None, bytes | None]:
        out, err, _, _ = await asyncio.gather(_all(self.stdout), _all(self.stderr), self._feed(given), self._wait())
        return out, err

    async def _feed(self, given: bytes | None) -> None:
        if self.stdin is None:
            if given is not None:
                raise ValueError("there is no pipe to stdin: use stdin=PIPE")
            return
        try:
            if given:
                self.stdin.write(given)
                await self.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.stdin.close()

    def resize(self, rows: int, columns: int) -> None:
        """Changes the size of the terminal's window. The command gets SIGWINCH."""
        if self._terminal is None:
            raise ValueError("the command has no terminal")
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def close(self) -> None:
        """Closes the streams. If the command still runs, it is killed with everything that it started."""
        for transport in self._transports:
            if not transport.is_closing():
                transport.close()
            if isinstance(transport, asyncio.WriteTransport) and transport.get_write_buffer_size():
                # Nobody reads that any more.
                transport.abort()
        self._disconnect(kill=True)
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _disconnect(self, kill: bool) -> None:
        if self._connection is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._connection.fileno())
        super()._disconnect(kill)

    async def __aenter__(self) -> AsyncPopen:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._connection is not None:
                if self.stdin is not None:
                    self.stdin.close()
                await self._wait()
        finally:
            self.close()


def _arrived(process: weakref.ref[AsyncPopen]) -> None:
    """Messages have arrived. The event loop does not keep the object, so that a command that nobody has is killed."""
    found = process()
    if found is not None:
        found._arrived()


class _Protocol(asyncio.StreamReaderProtocol):
    """Reading from a terminal ends with EIO once nobody has its other side open: that is the end of the stream."""

    def connection_lost(self, exc: Exception | None) -> None:
        is_end = isinstance(exc, OSError) and exc.errno == errno.EIO
        super().connection_lost(None if is_end else exc)


async def _all(reader: asyncio.StreamReader | None) -> bytes | None:
    return None if reader is None else await reader.read()
