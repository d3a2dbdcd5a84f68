"""Files of a session: what is written appears when it is closed."""

from __future__ import annotations

import errno
import io
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from kennel import _connection, _wire
from kennel._questions import Question
from kennel._wire import Argument

_PIECE = 1 << 20


class Writer(io.BufferedWriter):
    """A new file of a session, open for writing. It appears at its path when it is closed."""

    def __init__(self, descriptor: int, connection: socket.socket, question: Question[None], patience: float) -> None:
        super().__init__(io.FileIO(descriptor, "wb"), 1 << 16)
        self._connection: socket.socket | None = connection
        self._question = question
        self._patience = patience

    def close(self) -> None:
        """Moves the file into place."""
        connection, self._connection = self._connection, None
        if connection is None:
            return super().close()
        with connection:
            super().close()
            finish(connection, self._question, self._patience)
        return None

    def abandon(self) -> None:
        """Leaves nothing of the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _connection.abandon(connection)
        try:
            super().close()
        except OSError:
            pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    def __del__(self) -> None:
        # A file that nobody closed is not complete.
        if getattr(self, "_connection", None) is not None:
            self.abandon()


def finish(connection: socket.socket, question: Question[None], patience: float) -> None:
    """Says that the file is complete, and waits until it is in place."""
    _connection.patience(connection, patience)
    _connection.send(connection, _wire.request(_wire.FILE_WRITTEN))
    try:
        packet, received = _connection.receive(connection)
    except BlockingIOError:
        raise _connection.silent(patience) from None
    try:
        text = _connection.json_of(packet, received)
    finally:
        _connection.close_all(received)
    question.result(text)


def copy(source: int, target: int) -> None:
    """Copies a file by descriptor, within the kernel if it can."""
    try:
        while os.copy_file_range(source, target, 1 << 30):
            pass
        return
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EIO):
            raise
    while piece := os.read(source, _PIECE):
        view = memoryview(piece)
        while view:
            view = view[os.write(target, view) :]


@contextmanager
def replaced(path: str | os.PathLike[str], mode: int) -> Iterator[int]:
    """A new file of the host, which takes its name when the block ends. A link with that name is not followed."""
    directory, name = os.path.split(os.fspath(path))
    opened = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = f".{name[:100]}.{secrets.token_hex(6)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        target = os.open(temporary, flags, mode, dir_fd=opened)
        try:
            try:
                yield target
            finally:
                os.close(target)
            os.rename(temporary, name, src_dir_fd=opened, dst_dir_fd=opened)
        except BaseException:
            os.unlink(temporary, dir_fd=opened)
            raise
    finally:
        os.close(opened)


def log_file(path: str | os.PathLike[str]) -> int:
    """A log file of the host, emptied. No link on the way is followed: a command may have made one."""
    parts = os.path.abspath(os.fspath(path)).split("/")[1:]
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(parts[-1], flags, 0o666, dir_fd=at)
    finally:
        os.close(at)


def above(path: Argument) -> str | bytes:
    """The directory above a path; empty if there is none.

    >>> above("a/b/"), above(b"/a"), above("/"), above("a")
    ('a', b'/', '', '')
    """
    given = os.fspath(path)
    if isinstance(given, bytes):
        return os.fsencode(above(os.fsdecode(given)))
    short = given.rstrip("/")
    return os.path.dirname(short)
