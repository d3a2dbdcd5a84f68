"""Files of a session: what is written appears when it is closed."""

from __future__ import annotations

import errno
import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from kennel import _connection, _questions, _wire
from kennel._blocking import now
from kennel._wire import Argument

if TYPE_CHECKING:
    from kennel._session import SessionBase

_PIECE = 1 << 20


class Writing:
    """A new file of a session, which appears at its path once it is finished. A block finishes it unless it raises."""

    def __init__(self, session: SessionBase, path: Argument, mode: int | None) -> None:
        self._session = session
        self._question = _questions.write(path, mode)

    async def open(self) -> int:
        """The descriptor to write to, which the caller closes."""
        with await self._session._asked(self._question) as asked:
            self._question.result(asked.text)
            descriptor = asked.descriptor()
            self._connection = asked.take_connection()
        return descriptor

    async def finish(self) -> None:
        """Says that the file is complete, and waits until it is in place."""
        request = _wire.request(_wire.FILE_WRITTEN)
        with self._connection as connection:
            seconds = _connection.QUESTION_SECONDS
            answer, received = await _connection.exchange(self._session._io, connection, request, (), seconds)
            self._question.result(_connection.text_of(answer, received))

    def abandon(self) -> None:
        """Leaves nothing of the file."""
        _connection.abandon(self._connection)

    async def __aenter__(self) -> int:
        self._descriptor = await self.open()
        return self._descriptor

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        os.close(self._descriptor)
        if kind is None:
            await self.finish()
        else:
            self.abandon()


class Writer(io.BufferedWriter):
    """A new file of a session, open for writing. It appears at its path when it is closed."""

    def __init__(self, descriptor: int, writing: Writing) -> None:
        super().__init__(io.FileIO(descriptor, "wb"), 1 << 16)
        self._writing: Writing | None = writing

    def close(self) -> None:
        """Moves the file into place."""
        writing, self._writing = self._writing, None
        try:
            super().close()
        except BaseException:
            if writing is not None:
                writing.abandon()
            raise
        if writing is not None:
            now(writing.finish())

    def abandon(self) -> None:
        """Leaves nothing of the file."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.abandon()
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
        if getattr(self, "_writing", None) is not None:
            self.abandon()


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
