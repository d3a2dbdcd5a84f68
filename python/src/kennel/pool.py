"""Sessions that are ready before they are needed, each for one use."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from kennel.aio import AsyncSession
from kennel.errors import SessionClosed
from kennel.session import Session


class Pool:
    """Keeps `size` sessions ready. Each is handed out once; a thread prepares the next ones.

    >>> with Pool(2, profile="read-only") as pool:
    ...     with pool.checkout() as s:
    ...         s.run(["echo", "fresh"], text=True).stdout
    'fresh\\n'
    """

    def __init__(self, size: int, **keywords: Any) -> None:
        """`keywords` are those of `kennel.Session`. It returns at once; a session that does not start is an error of
        `checkout`."""
        if size < 1:
            raise ValueError("size must be at least 1")
        self._keywords = keywords
        # Each stands for one session that the thread has to prepare.
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Session | Exception | None] = queue.SimpleQueue()
        self._is_closed = False
        for _ in range(size):
            self._wanted.put(True)
        self._thread = threading.Thread(target=self._fill, name="kennel-pool", daemon=True)
        self._thread.start()

    def _fill(self) -> None:
        while self._wanted.get():
            if self._is_closed:
                break
            try:
                self._ready.put(Session(**self._keywords))
            except Exception as error:
                self._ready.put(error)
        # Wakes a thread that waits for a session.
        self._ready.put(None)

    @contextmanager
    def checkout(self) -> Iterator[Session]:
        """A session that nobody has used. It ends with the block."""
        if self._is_closed:
            raise SessionClosed("the pool is closed")
        session = self._ready.get()
        if session is None:
            self._ready.put(None)
            raise SessionClosed("the pool is closed")
        self._wanted.put(True)
        if isinstance(session, Exception):
            raise session
        with session:
            yield session

    def close(self) -> None:
        """Ends the sessions that nobody has. Those that are handed out go on until their block ends."""
        if self._is_closed:
            return
        self._is_closed = True
        self._wanted.put(False)
        self._thread.join()
        while True:
            session = self._ready.get()
            if session is None:
                self._ready.put(None)
                return
            if isinstance(session, Session):
                session.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncPool:
    """`kennel.Pool` for asyncio: use it with `async with`."""

    def __init__(self, size: int, **keywords: Any) -> None:
        if size < 1:
            raise ValueError("size must be at least 1")
        self._size = size
        self._keywords = keywords
        self._ready: list[asyncio.Task[AsyncSession]] = []
        self._is_closed = False

    def _refill(self) -> None:
        self._ready.append(asyncio.create_task(AsyncSession(**self._keywords).start()))

    @asynccontextmanager
    async def checkout(self) -> AsyncIterator[AsyncSession]:
        """A session that nobody has used. It ends with the block."""
        if self._is_closed or not self._ready:
            raise SessionClosed("the pool is closed, or was not entered")
        task = self._ready.pop(0)
        self._refill()
        try:
            session = await asyncio.shield(task)
        except asyncio.CancelledError:
            self._ready.insert(0, task)
            self._ready.pop().cancel()
            raise
        async with session:
            yield session

    async def close(self) -> None:
        """Ends the sessions that nobody has."""
        self._is_closed = True
        tasks, self._ready = self._ready, []
        for task in tasks:
            task.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, AsyncSession):
                await found.close()

    async def __aenter__(self) -> AsyncPool:
        for _ in range(self._size):
            self._refill()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
