"""Requests to a session from an event loop of asyncio: sockets that never block, and no threads."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from kennel import _connection, _launch

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


async def receive(connection: socket.socket, timeout: float | None) -> tuple[bytes, list[int]]:
    """The next message with its descriptors, which belong to the caller."""
    while True:
        if not await readable(connection.fileno(), timeout):
            raise _connection.silent(timeout or 0)
        try:
            return _connection.receive(connection)
        except BlockingIOError:
            continue


async def exchange(
    connection: socket.socket, packet: bytes, descriptors: Sequence[int], timeout: float | None
) -> tuple[bytes, list[int]]:
    """One request, one answer."""
    _connection.send(connection, packet, descriptors)
    return await receive(connection, timeout)


async def ask(connection: socket.socket, packet: bytes, long_text: bytes | None) -> _connection.Asked:
    """Asks a question and waits for the answer. If that fails, the connection still belongs to the caller."""
    with _connection.Descriptors() as given:
        if long_text is not None:
            given.add_memfd(long_text)
        _connection.send(connection, packet, given.sent)
    answer, received = await receive(connection, _connection.QUESTION_SECONDS)
    try:
        return _connection.Asked(connection, _connection.json_of(answer, received), received)
    except BaseException:
        _connection.close_all(received)
        raise


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


SMALL = 1 << 20


async def off_loop(size: int, work: Callable[[], Any]) -> Any:
    """Reads or writes a file: here if it is small, else in a thread."""
    return work() if size <= SMALL else await asyncio.to_thread(work)
