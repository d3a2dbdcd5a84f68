"""A connection to a session: one request each. No state is shared, so every thread may use a session."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from kennel import _wire
from kennel._launch import Host, memfd
from kennel.errors import ProtocolError, SessionClosed, SessionError

T = TypeVar("T")

SEND_SECONDS = 10
"""How long a session may take to accept a connection and a request."""

MARGIN_SECONDS = 5.0
"""How much longer than its timeout a command may take to be answered."""

QUESTION_SECONDS = 60.0
"""How long a session may take to answer a question."""

MOST_DESCRIPTORS = 4

# Plain numbers: operators of `enum` take longer than the calls.
_CLOSED_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_CLOSED = "the session closed the connection: it has ended, or does not serve this process"
_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_IS_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)

_credentials = struct.Struct("3i").unpack
_descriptors = socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
_seconds = struct.Struct("@ll").pack
_patience = _seconds(SEND_SECONDS, 0)
_int = struct.Struct("@i")


def open_socket(path: str, blocking: bool = True) -> socket.socket:
    """A connection to the session at that path, whose process belongs to this user."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if connection.gettimeout() is not None:
            connection.settimeout(None)
        if blocking:
            # A plain blocking socket with the kernel's own timeouts needs no poll(2).
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _patience)
        else:
            connection.setblocking(False)
        connection.connect(path)
        _, uid, _ = _credentials(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            raise SessionError(f"{path}: belongs to user {uid}, not to you")
    except BlockingIOError:
        connection.close()
        if blocking:
            raise silent(SEND_SECONDS) from None
        raise
    except OSError as error:
        connection.close()
        raise unreachable(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def unreachable(path: str, error: OSError) -> SessionError:
    """The error for a socket that takes no connections."""
    if isinstance(error, (FileNotFoundError, ConnectionError)):
        name = os.path.basename(path).removesuffix(".sock")
        return SessionClosed(f"session {name} is not running", hint="start a session, or another one")
    return SessionError(f"{path}: {error.strerror or error}")


def silent(seconds: float) -> SessionError:
    """The error for a session that does not answer."""
    return SessionError(
        f"the session did not answer within {seconds:g} s", hint="its process is stopped, or the machine is too busy"
    )


class Unread(SessionClosed):
    """The session closed the connection before it read the request."""


def send(connection: socket.socket, packet: bytes, descriptors: Sequence[int] = ()) -> bool:
    """Sends a message; false if the session has closed the connection."""
    try:
        if descriptors:
            rights = b"".join(map(_int.pack, descriptors))
            connection.sendmsg((packet,), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights),))
        else:
            connection.send(packet)
    except BlockingIOError:
        raise silent(SEND_SECONDS) from None
    except ConnectionError:
        # The session may have said why before it closed the connection.
        return False
    return True


def is_open(connection: socket.socket) -> bool:
    """Whether the session has neither closed a connection nor sent anything."""
    try:
        connection.recv(1, _PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def patience(connection: socket.socket, seconds: float | None) -> None:
    """How long `receive` waits from now on; `None` is forever."""
    if seconds is None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _seconds(0, 0))
        return
    seconds = min(seconds, 1e9)
    whole = int(seconds)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _seconds(whole, max(1, int((seconds - whole) * 1e6))))


class Io(Protocol):
    """How to wait: `_blocking` and `_loop`. What awaits nothing else works for both."""

    async def connect(self, path: str) -> socket.socket: ...

    async def receive(self, connection: socket.socket, seconds: float | None) -> tuple[bytes, list[int]]: ...

    async def started(self, host: Host, timeout: float) -> str: ...

    async def off_loop(self, size: int | None, work: Callable[[], T]) -> T: ...


async def exchange(
    io: Io, connection: socket.socket, packet: bytes, descriptors: Sequence[int], seconds: float
) -> tuple[bytes, list[int]]:
    """One request, one answer with its descriptors, which belong to the caller."""
    send(connection, packet, descriptors)
    try:
        return await io.receive(connection, seconds)
    except BlockingIOError:
        raise silent(seconds) from None


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The next message with its descriptors, which belong to the caller.

    Raises `BlockingIOError` if there is none in time.
    """
    try:
        packet, ancillary, got, _ = connection.recvmsg(_wire.LONGEST_ANSWER, _descriptors, _CLOSED_ON_EXEC)
    except ConnectionError:
        raise Unread(_CLOSED) from None
    descriptors = _taken(ancillary) if ancillary else []
    if not packet:
        close_all(descriptors)
        raise SessionClosed(_CLOSED)
    if got & _IS_CUT:
        close_all(descriptors)
        raise _wire.malformed()
    return packet, descriptors


def _taken(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    taken: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            taken.extend(number for (number,) in _int.iter_unpack(data[: len(data) & ~3]))
    return taken


def close_all(descriptors: Sequence[int]) -> None:
    """Closes descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def abandon(connection: socket.socket) -> None:
    """Closes a connection whose command must end, also if a forked process has a copy of it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


def read_parts(descriptor: int, *lengths: int) -> list[bytes]:
    """What a memfd holds, in parts of these lengths."""
    try:
        is_complete = os.fstat(descriptor).st_size >= sum(lengths)
    except OSError:
        is_complete = False
    if not is_complete:
        raise _wire.malformed()
    parts = []
    start = 0
    for length in lengths:
        end = start + length
        pieces = []
        # One call reads at most 2 GiB.
        while start < end:
            pieces.append(os.pread(descriptor, end - start, start))
            if not pieces[-1]:
                raise _wire.malformed()
            start += len(pieces[-1])
        parts.append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
    return parts


def json_of(packet: bytes, descriptors: list[int]) -> bytes:
    """The JSON of an answer 50. What is in a memfd is read, and the memfd is closed and taken from the list."""
    if _wire.number_of(packet) != _wire.ANSWER:
        raise refusal(packet)
    length, text = _wire.answer(packet)
    if text or not length:
        if len(text) != length:
            raise _wire.malformed()
        return text
    if not descriptors:
        raise _wire.malformed()
    descriptor = descriptors.pop(0)
    try:
        return read_parts(descriptor, length)[0]
    finally:
        os.close(descriptor)


def refusal(packet: bytes) -> SessionError:
    """The error for an end where another answer was expected: the session refused the request, and says why."""
    end = _wire.ended(packet)
    if end is None:
        return _wire.malformed()
    lines = [line.removeprefix("kennel: ") for line in end.message.decode("utf-8", "replace").splitlines()]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    causes = [line for line in lines if line and not line.startswith(("hint: ", "note: "))]
    text = "; ".join(causes) or "the session refused the request"
    kind = ProtocolError if "another version" in text or "malformed" in text else SessionError
    return kind(text, hint="; ".join(hints) or None)


def text_of(packet: bytes, received: list[int]) -> bytes:
    """The JSON of an answer that hands over nothing."""
    try:
        return json_of(packet, received)
    finally:
        close_all(received)


class Descriptors:
    """Descriptors of one message, which are closed at the end of a `with` block unless they were taken."""

    def __init__(self) -> None:
        self.own: list[int] = []
        self.sent: list[int] = []

    def add_memfd(self, contents: bytes) -> None:
        """Adds a memfd with these contents."""
        self.own.append(memfd(contents))
        self.sent.append(self.own[-1])

    def add_null(self, flags: int = os.O_RDONLY) -> None:
        """Adds /dev/null."""
        self.own.append(os.open(os.devnull, flags | os.O_CLOEXEC))
        self.sent.append(self.own[-1])

    def add_stdin(self, contents: bytes | None, file: Any) -> None:
        """Adds stdin of a command: a memfd with `contents`, or a file of the caller, or nothing for /dev/null."""
        if contents is not None:
            self.add_memfd(contents)
        elif file == subprocess.PIPE:
            raise ValueError("nobody would write to that pipe: use popen")
        elif file is not None and file != subprocess.DEVNULL:
            self.sent.append(file if isinstance(file, int) else file.fileno())

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(self, *_: Any) -> None:
        close_all(self.own)
        self.own.clear()


class Asked:
    """The answer to a question: its JSON, its descriptors and its connection, which are closed unless they are taken."""

    def __init__(self, connection: socket.socket, text: bytes, received: list[int]) -> None:
        self.connection: socket.socket | None = connection
        self.text = text
        self.received = received

    def descriptor(self) -> int:
        """Takes the descriptor that came with the answer."""
        if not self.received:
            raise _wire.malformed()
        return self.received.pop(0)

    def take_connection(self) -> socket.socket:
        """Takes the connection."""
        connection, self.connection = self.connection, None
        assert connection is not None
        return connection

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: Any) -> None:
        close_all(self.received)
        self.received.clear()
        if self.connection is not None:
            self.connection.close()
