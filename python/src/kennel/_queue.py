"""The queue of jobs in NATS, as `kennel serve --nats` has it: jobs are published, and results are looked up.

nats-py is for asyncio. It runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kennel import _connect
from kennel.errors import Error, SessionClosed, SessionError, Unsupported

T = TypeVar("T")

LARGE = 512 << 10
"""From this size on, in bytes, bodies are objects."""

_PIECE = 128 << 10
"""The longest piece of an object, in bytes, as NATS has it."""

_BESIDE = 4 << 10
"""What a message has beside a body, in bytes: its headers."""

_LONGEST = 256 << 20
"""The longest answer, in bytes."""

_LOOK_SECONDS = 5.0
"""How often results are looked for of which nobody has told: NATS may have been away."""

_AT_ONCE = 64
"""The most requests at once."""

_TRY_SECONDS = 60.0
"""How long a job is sent again while NATS is away."""


@dataclass(frozen=True)
class Job:
    """A job with its id."""

    index: int
    id: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Found:
    """The outcome of a job: its line, and the answer of its command. Or why nobody can read it."""

    id: str
    line: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    error: Error | None = None


def new_id() -> str:
    """An id that no other job has."""
    return secrets.token_hex(16)


def is_id(text: Any) -> bool:
    """Whether a job may have this id.

    >>> is_id("a-1_B"), is_id("a.b"), is_id("")
    (True, False, False)
    """
    return isinstance(text, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,128}", text, re.ASCII) is not None


async def _each(call: Callable[[T], Coroutine[Any, Any, None]], items: Iterable[T]) -> None:
    """Calls it with each, many at once. If one fails, or this is cancelled, so are the others."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(item: T) -> None:
        async with turns:
            await call(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class Jobs:
    """A connection to NATS, and the jobs that somebody waits for."""

    def __init__(self, prefix: str, options: dict[str, Any], seconds: float) -> None:
        try:
            import nats
        except ImportError:
            raise Unsupported("kennel.Fleet needs nats-py", hint="pip install nats-py") from None
        self._nats = nats
        self._prefix = prefix
        self._options = options
        # Workers tell on the subject of this name.
        self._name = secrets.token_hex(16)
        self._waiting: dict[str, queue.SimpleQueue[Found]] = {}
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kennel-fleet", daemon=True)
        self._thread.start()
        try:
            self._call(self._open(seconds), seconds + 5)
        except BaseException:
            self.close()
            raise

    def _call(self, coroutine: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Runs it in the thread of NATS."""
        if self._is_closed:
            coroutine.close()
            raise SessionClosed("the fleet is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    async def _open(self, seconds: float) -> None:
        async def ignore(_: Exception) -> None:
            """Each is told by the call that it belongs to."""

        options = {"error_cb": ignore, "max_reconnect_attempts": -1, "reconnect_time_wait": 0.2, **self._options}
        try:
            self._client = await asyncio.wait_for(self._nats.connect(**options), seconds)
        except Exception as error:
            servers = ", ".join(self._options["servers"])
            raise SessionError(f"NATS at {servers}: {str(error) or 'no answer'}") from error
        self._stream = self._client.jetstream(timeout=5)
        try:
            self._results = await self._stream.key_value(f"{self._prefix}-results")
            self._cancelled = await self._stream.key_value(f"{self._prefix}-cancelled")
            self._bodies = await self._stream.object_store(f"{self._prefix}-bodies")
        except Exception as error:
            raise SessionError(
                f"NATS has no queue {self._prefix}: {error}",
                hint="start a worker first, which makes it: kennel serve --nats URL",
            ) from error
        await self._client.subscribe(f"{self._prefix}.done.{self._name}", cb=self._told)
        self._looking = self._loop.create_task(self._look())

    def send(self, jobs: list[Job], arrived: queue.SimpleQueue[Found]) -> None:
        """Publishes jobs. What becomes of each arrives there."""
        for job in jobs:
            if job.id in self._waiting:
                raise ValueError(f"job {job.id} is waited for already")
        bodies = [json.dumps(job.body).encode() for job in jobs]
        for job in jobs:
            self._waiting[job.id] = arrived
        try:
            self._call(self._publish_all(jobs, bodies))
        except BaseException:
            self.forget(jobs)
            self.cancel([job.id for job in jobs])
            raise

    async def _publish_all(self, jobs: list[Job], bodies: list[bytes]) -> None:
        await _each(lambda pair: self._publish(*pair), zip(jobs, bodies, strict=True))

    async def _publish(self, job: Job, body: bytes) -> None:
        """Publishes a job until NATS has it: to do it again is safe, as it has an id."""
        headers = {"Nats-Msg-Id": job.id, "Kennel-Notify": self._name}
        until = time.monotonic() + _TRY_SECONDS
        while True:
            try:
                room = max(self._client.max_payload - _BESIDE, 1)
                if len(body) > min(LARGE, room):
                    await self._put(f"job-{job.id}", body, min(_PIECE, room))
                    headers["Kennel-Body"] = "object"
                payload = b"" if "Kennel-Body" in headers else body
                await self._stream.publish(f"{self._prefix}.jobs", payload, headers=headers)
                return
            except Exception as error:
                if time.monotonic() > until:
                    raise SessionError(f"job {job.id}: NATS does not take it: {str(error) or 'no answer'}") from error
            await asyncio.sleep(0.2)

    async def _told(self, message: Any) -> None:
        """A worker tells that a job has a result."""
        await self._find(message.data.decode("ascii", "replace"))

    async def _look(self) -> None:
        """Looks for results of which nobody has told."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await _each(self._find, list(self._waiting))

    async def _find(self, name: str) -> None:
        arrived = self._waiting.get(name)
        if arrived is None:
            return
        try:
            found = await self._outcome(name)
        except (self._nats.errors.Error, asyncio.TimeoutError, OSError):
            # There is none yet, or NATS is away: it is looked for again.
            return
        except Error as error:
            found = Found(name, error=error)
        if found is not None and self._waiting.pop(name, None) is not None:
            arrived.put(found)

    async def _outcome(self, name: str) -> Found | None:
        entry = await self._results.get(name)
        head, _, rest = (entry.value or b"").partition(b"\n")
        line = _connect.parsed(head)
        if line.get("object"):
            rest = await self._object(_connect.text_of(line, "object"))
        return Found(name, line, _connect.parsed(rest) if line.get("outcome") == "done" else {})

    async def _put(self, name: str, body: bytes, piece: int) -> None:
        from nats.js.api import ObjectMeta, ObjectMetaOptions

        await self._bodies.put(name, body, ObjectMeta(options=ObjectMetaOptions(max_chunk_size=piece)))

    async def _object(self, name: str) -> bytes:
        """Reads an object by itself: everybody who may send jobs writes there, and nats-py follows links.

        One piece after the other: a subscription would wait for one that is missing.
        """
        bucket = f"{self._prefix}-bodies"
        try:
            info = await self._bodies.get_info(name)
        except self._nats.js.errors.BadObjectMetaError:
            raise _connect.malformed() from None
        if info.is_link():
            raise SessionError(f"a result is a link: object {name} of {bucket}")
        size, nuid = info.size or 0, info.nuid
        if (info.bucket, info.name) != (bucket, name) or not is_id(nuid) or not isinstance(size, int) or size > _LONGEST:
            raise _connect.malformed()
        data, after = bytearray(), 0
        while len(data) < size:
            subject = f"$O.{bucket}.C.{nuid}"
            piece = await self._stream.get_msg(f"OBJ_{bucket}", seq=after + 1, subject=subject, next=True)
            if not piece.data or len(data) + len(piece.data) > size:
                raise _connect.malformed()
            data += piece.data
            after = piece.seq or 0
        return bytes(data)

    def cancel(self, ids: Iterable[str]) -> None:
        """Tells workers that nobody wants these any more."""
        names = list(ids)
        for name in names:
            if not is_id(name):
                raise ValueError(f"{name!r} is no id of a job")
        if names and not self._is_closed:
            self._call(self._cancel(names))

    async def _cancel(self, names: list[str]) -> None:
        async def cancel(name: str) -> None:
            # Without NATS nobody can be told; the job has its timeout.
            with contextlib.suppress(self._nats.errors.Error, asyncio.TimeoutError, OSError):
                await self._cancelled.put(name, b"")

        await _each(cancel, names)

    def forget(self, jobs: Iterable[Job]) -> None:
        """Nobody waits for these any more."""
        for job in jobs:
            self._waiting.pop(job.id, None)

    def close(self) -> None:
        """Ends the connection. Who still waits gets an error."""
        if self._is_closed:
            return
        # The thread ends in any case.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            self._call(self._close(), 5)
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._loop.is_running():
            self._loop.close()
        for name, arrived in list(self._waiting.items()):
            arrived.put(Found(name, error=SessionClosed("the fleet is closed")))

    async def _close(self) -> None:
        looking, client = getattr(self, "_looking", None), getattr(self, "_client", None)
        if looking is not None:
            looking.cancel()
        if client is not None:
            await client.close()
