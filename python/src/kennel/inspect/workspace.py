"""The workspace of one sample: a temporary directory, and the lock that says that it is in use.

A process that dies leaves its directories behind. Their locks are free then, and `remove_stray` finds them by that. It
trusts no name: it opens the directory, follows no link, and asks the kernel who owns it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import kennel

PREFIX = "kennel-inspect-"

_logger = logging.getLogger(__name__)

# Gives back to the owner what a command took from itself. It runs in a sandbox, so a link cannot lead it elsewhere.
_OPEN_UP_AND_EMPTY = 'chmod -R u+rwx . ; for each in * .[!.]* ..?*; do rm -rf -- "$each"; done'


class Workspace:
    """A temporary directory that belongs to one sample."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        self._lock = _lock(self.path)

    @property
    def name(self) -> str:
        """The name of the directory, which is the name of the session too."""
        return self.path.name

    def remove(self) -> None:
        """Removes the directory with all that commands made in it. The session must have ended."""
        try:
            os.chmod(f"/proc/self/fd/{self._lock}", 0o700)
            _remove(self.path)
        except (OSError, kennel.Error) as error:
            _logger.warning("%s is left: %s", self.path, error)
        finally:
            os.close(self._lock)


def remove_stray(name: str | None) -> Iterator[Path]:
    """Removes directories of processes that have died, or only the one of that name. Yields what it removed."""
    for found in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        if name not in (None, found.name):
            continue
        try:
            lock = _lock(found)
        except OSError:
            continue  # somebody uses it, or it is not a directory of this user
        try:
            _remove(found)
            yield found
        finally:
            os.close(lock)


def _lock(path: Path) -> int:
    """Opens a directory of this user and takes its lock. A command may have taken the right to open it."""
    place = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(place).st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        os.chmod(f"/proc/self/fd/{place}", 0o700)
        directory = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(directory)
        raise
    return directory


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):
        # A command took its own rights away, or nested directories deeper than Python recurses.
        kennel.run(["sh", "-c", _OPEN_UP_AND_EMPTY], workspace=str(path), profile="no-network")
        shutil.rmtree(path)
