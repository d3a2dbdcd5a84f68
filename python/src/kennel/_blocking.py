"""Waiting for a session in a thread that may block. These coroutines never suspend, so `now` runs what awaits them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kennel import _connection, _launch

T = TypeVar("T")


def now(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that awaits nothing but this module.

    >>> async def three():
    ...     return await off_loop(None, lambda: 3)
    >>> now(three())
    3
    """
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("a blocking call was suspended")


async def connect(path: str) -> socket.socket:
    """A connection to the session at that path."""
    return _connection.open_socket(path)


async def receive(connection: socket.socket, seconds: float | None) -> tuple[bytes, list[int]]:
    """The next message with its descriptors. Raises `BlockingIOError` if there is none in time."""
    if seconds is not None:
        _connection.patience(connection, seconds)
    return _connection.receive(connection)


async def started(host: _launch.Host, timeout: float) -> str:
    """The path of the socket, once the session takes commands."""
    return host.wait_until_taken(timeout)


async def off_loop(size: int | None, work: Callable[[], T]) -> T:
    """Does what may take long."""
    return work()
