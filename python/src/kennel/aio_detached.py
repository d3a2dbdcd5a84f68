"""Commands that stay, and shells that keep their state, for asyncio."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from kennel import _calls, _connection, _loop, _questions, _wire
from kennel.detached import Stream, logged, snippet_packet, waited
from kennel.errors import TimeoutExpired
from kennel.results import Completed, DetachedInfo

if TYPE_CHECKING:
    from kennel.aio import AsyncSession


class AsyncLogs(AsyncIterator[tuple[Stream, bytes]]):
    """What a command that stays has written, as `kennel.Logs`."""

    dropped = 0
    """How many bytes came before and are not kept any more."""

    def __init__(self, session: AsyncSession, request: bytes) -> None:
        self._session = session
        self._request: bytes | None = request
        self._connection: Any = None

    def __aiter__(self) -> AsyncLogs:
        return self

    async def __anext__(self) -> tuple[Stream, bytes]:
        if self._request is not None:
            request, self._request = self._request, None
            self._connection = await self._session._open()
            _connection.send(self._connection, request)
        while self._connection is not None:
            try:
                packet, received = await _loop.receive(self._connection, None)
                _connection.close_all(received)
                piece, dropped = logged(packet)
            except BaseException:
                self.close()
                raise
            self.dropped += dropped
            if piece is not None:
                return piece
            if not dropped:
                self.close()
        raise StopAsyncIteration

    def close(self) -> None:
        """Stops reading."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class AsyncDetached:
    """A command that stays: a server, or a long build. `AsyncSession.detach` starts it."""

    def __init__(self, session: AsyncSession, number: int, program: str, info: DetachedInfo | None = None) -> None:
        self._session = session
        self.id = number
        self.program = program
        self.info = info

    def logs(self, lines: int | None = None, follow: bool = False) -> AsyncLogs:
        """What it wrote: the last MiB that is kept, or the last `lines` lines. With `follow`, also what it will write."""
        return AsyncLogs(self._session, _wire.logs(self.id, follow, lines))

    async def kill(self, sig: int = signal.SIGTERM) -> None:
        """Sends a signal. It is no error if the command has ended."""
        request = _wire.request(_wire.KILL, self.id, _calls.signal_number(sig))
        with await self._session._open() as connection:
            packet, received = await _loop.exchange(connection, request, (), _connection.QUESTION_SECONDS)
        _connection.close_all(received)
        if not _wire.is_done(packet):
            raise _connection.refusal(packet)

    async def wait(self, timeout: float | None = None) -> Completed[bytes]:
        """Waits for its end. After `timeout` seconds it raises `kennel.TimeoutExpired`, and the command goes on."""
        with await self._session._open() as connection:
            _connection.send(connection, _wire.request(_wire.WAIT, self.id, _wire.WANTS_REPORT | _wire.AS_DATA))
            if not await _loop.readable(connection.fileno(), timeout):
                assert timeout is not None
                raise TimeoutExpired(self.program, timeout)
            packet, received = await _loop.receive(connection, None)
        try:
            return waited(packet, received, self.program)
        finally:
            _connection.close_all(received)

    def __repr__(self) -> str:
        return f"<kennel.AsyncDetached {self.id} {self.program!r}>"


class AsyncShell:
    """A shell that keeps its directory, variables, functions and jobs from one snippet to the next."""

    def __init__(self, session: AsyncSession, name: str) -> None:
        self._session = session
        self.name = name

    async def run(
        self,
        snippet: str | bytes,
        *,
        timeout: float | None = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        check: bool = False,
    ) -> Completed[Any]:
        """Runs a snippet, as `Shell.run`. If the task is cancelled, the snippet is interrupted."""
        packet, long_call = snippet_packet(self.name, snippet, timeout)
        with _connection.Descriptors() as given:
            if long_call is not None:
                given.add_memfd(long_call)
            late = None if timeout is None else timeout + _connection.MARGIN_SECONDS
            end, report, out, err = await self._session._collect(packet, given.sent, late)
        decode = _calls.encoding_of(text, encoding, errors)
        return _calls.completed(snippet, end, report, out, err, encoding=decode, timeout=timeout, check=check)

    async def close(self) -> None:
        """Ends the shell with its jobs."""
        await self._session._ask(_questions.end_shell(self.name))

    async def __aenter__(self) -> AsyncShell:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
