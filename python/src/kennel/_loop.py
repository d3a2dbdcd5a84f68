"""Waiting for a session in an event loop of asyncio: sockets that never block, and no thread for a command."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TypeVar

from kennel import _connection, _launch

T = TypeVar("T")

SMALL = 1 << 20

_RETRY_SECONDS = 0.005


async def readable(descriptor: int, timeout: float | None = None) -> bool:
    """Waits until a descriptor is readable; false if that takes too long."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[bool] = loop.create_future()
    loop.add_reader(descriptor, _resolve, found, True)
    late = None if timeout is None else loop.call_later(timeout, _resolve, found, False)
    try:
        return await found
    finally:
        loop.remove_reader(descriptor)
        if late is not None:
            late.cancel()


def _resolve(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


async def connect(path: str) -> socket.socket:
    """A connection to the session at that path."""
    until = asyncio.get_running_loop().time() + _connection.SEND_SECONDS
    while True:
        try:
            return _connection.open_socket(path, blocking=False)
        except BlockingIOError:
            # Many clients wait to be accepted.
            if asyncio.get_running_loop().time() > until:
                raise _connection.silent(_connection.SEND_SECONDS) from None
        await asyncio.sleep(_RETRY_SECONDS)


async def receive(connection: socket.socket, seconds: float | None) -> tuple[bytes, list[int]]:
    """The next message with its descriptors. Raises `BlockingIOError` if there is none in time."""
    while await readable(connection.fileno(), seconds):
        try:
            return _connection.receive(connection)
        except BlockingIOError:
            continue
    raise BlockingIOError


async def started(host: _launch.Host, timeout: float) -> str:
    """The path of the socket, once the session takes commands."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    while True:
        left = until - loop.time()
        if left <= 0 or not await readable(host.fileno(), left):
            raise host.late(timeout)
        socket_path = host.taken()
        if socket_path is not None:
            return socket_path


async def ended(host: _launch.Host, patience: float = 10.0) -> None:
    """Ends a session with everything in it, and waits until it is gone."""
    if host.begin_end():
        try:
            pidfd = os.pidfd_open(host.process.pid)
        except OSError:
            # It is gone already.
            host.end()
            return
        try:
            if not await readable(pidfd, patience):
                host.process.kill()
        finally:
            os.close(pidfd)
    host.end()


async def off_loop(size: int | None, work: Callable[[], T]) -> T:
    """Does what may take long: here if it is a small file, else in a thread."""
    return work() if size is not None and size <= SMALL else await asyncio.to_thread(work)
