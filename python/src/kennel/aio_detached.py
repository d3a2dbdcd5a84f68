"""Commands that stay, and shells that keep their state, for asyncio."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from kennel import _calls, _wire
from kennel._detached import DetachedBase, LogsBase, ShellBase, Stream
from kennel.results import Completed

if TYPE_CHECKING:
    from kennel.aio import AsyncSession


class AsyncLogs(LogsBase, AsyncIterator[tuple[Stream, bytes]]):
    """What a command that stays has written, as `kennel.Logs`."""

    def __init__(self, session: AsyncSession, request: bytes) -> None:
        self._session = session
        self._request: bytes | None = request

    def __aiter__(self) -> AsyncLogs:
        return self

    async def __anext__(self) -> tuple[Stream, bytes]:
        if self._request is not None:
            request, self._request = self._request, None
            await self._open(self._session, request)
        piece = await self._next()
        if piece is None:
            raise StopAsyncIteration
        return piece


class AsyncDetached(DetachedBase["AsyncSession"]):
    """A command that stays: a server, or a long build. `AsyncSession.detach` starts it."""

    def logs(self, lines: int | None = None, follow: bool = False) -> AsyncLogs:
        """What it wrote: the last MiB that is kept, or the last `lines` lines. With `follow`, also what it will write."""
        return AsyncLogs(self._session, _wire.logs(self.id, follow, lines))

    async def kill(self, sig: int = signal.SIGTERM) -> None:
        """Sends a signal. It is no error if the command has ended."""
        await self._kill(sig)

    async def wait(self, timeout: float | None = None) -> Completed[bytes]:
        """Waits for its end. After `timeout` seconds it raises `kennel.TimeoutExpired`, and the command goes on."""
        return await self._wait(timeout)


class AsyncShell(ShellBase["AsyncSession"]):
    """A shell that keeps its directory, variables, functions and jobs from one snippet to the next."""

    async def run(
        self,
        snippet: str | bytes,
        *,
        timeout: float | None = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        check: bool = False,
        truncate: bool = False,
    ) -> Completed[Any]:
        """Runs a snippet, as `Shell.run`. If the task is cancelled, the snippet is interrupted."""
        return await self._run(snippet, timeout, _calls.encoding_of(text, encoding, errors), check, truncate)

    async def close(self) -> None:
        """Ends the shell with its jobs."""
        await self._close()

    async def __aenter__(self) -> AsyncShell:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
