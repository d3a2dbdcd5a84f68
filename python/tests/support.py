"""What tests need besides fixtures: both faces, other processes, wrong servers, and patience without fixed sleeps."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kennel

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
"""How long a test waits for something that a busy machine may do late."""


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """Asks until the condition holds, and returns what it is."""
    end = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)


def blocks(page: str) -> list[str]:
    """The examples of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)


def python(code: str, *arguments: str, **keywords: Any) -> subprocess.Popen[str]:
    """Another interpreter, which runs the code."""
    words = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **keywords)


class FakeServer:
    """A socket that is no session: it does what a test says with each connection."""

    def __init__(self, directory: Path, serve: Callable[[socket.socket], None]) -> None:
        directory.mkdir(mode=0o700)
        self.path = str(directory / "fake.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.serve = serve
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                # The first connection of `attach` asks nothing.
                try:
                    if connection.recv(1 << 16):
                        self.serve(connection)
                except OSError:
                    pass

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


def descriptors() -> set[str]:
    """The open descriptors of this process, by what they are."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return found


def process_start(pid: str) -> str | None:
    """What tells a process from a later one with its number; `None` for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


class Face:
    """A face of the package, with calls that block."""

    session = staticmethod(kennel.Session)
    attach = staticmethod(kennel.attach)

    def close(self) -> None:
        return


class AsyncFace(Face):
    """That for asyncio: each call is awaited in an event loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def session(self, *words: Any, **keywords: Any) -> Any:
        return self.call(kennel.AsyncSession(*words, **keywords).start)

    def attach(self, path: str) -> Any:
        return self.call(kennel.AsyncSession.attach, path)

    def call(self, method: Callable[..., Any], *words: Any, **keywords: Any) -> Any:
        async def work() -> Any:
            found = method(*words, **keywords)
            return await found if inspect.isawaitable(found) else found

        found = asyncio.run_coroutine_threadsafe(work(), self.loop).result()
        return Awaited(self, found) if type(found).__name__.startswith("Async") else found

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Awaited:
    """An object of asyncio whose methods can be called."""

    def __init__(self, face: AsyncFace, made: Any) -> None:
        self._face, self._made = face, made

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._made, name)
        return functools.partial(self._face.call, found) if callable(found) else found

    def __enter__(self) -> Awaited:
        self._face.call(self._made.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._face.call(self._made.__aexit__, *error)

    def __iter__(self) -> Awaited:
        return self

    def __next__(self) -> Any:
        try:
            return self._face.call(self._made.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None


def detached(session: Any, number: int) -> Any:
    """A command that stays, by its number."""
    if isinstance(session, Awaited):
        return Awaited(session._face, kennel.AsyncDetached(session._made, number, "x"))
    return kennel.Detached(session, number, "x")
