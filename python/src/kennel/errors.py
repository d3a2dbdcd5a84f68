"""The exceptions of this package.

All of them are `kennel.Error`, except `TimeoutExpired` and `CalledProcessError`, which are those of `subprocess` and carry
more. An error of files or of a program that cannot start is also the builtin `OSError` of its errno:

>>> issubclass(NotFoundError, FileNotFoundError) and issubclass(NotFoundError, FileError)
True
"""

from __future__ import annotations

import errno as _errno
import os
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kennel.results import Denial, Outcome


class Error(Exception):
    """Something that Kennel could not do, or refused."""

    def __init__(self, message: str, *, hint: str | None = None, failure: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        """What went wrong."""
        self.hint = hint
        """What a person can do about it. It may tell what exists outside of the sandbox."""
        self.failure = failure
        """`failure` of the report, if there is one."""
        if hint and hasattr(self, "add_note"):
            # A person reads it below a traceback; `str` of the error, which may go to a model, has no hint.
            self.add_note(f"hint: {hint}")

    def __str__(self) -> str:
        return self.message


class SessionError(Error):
    """A session cannot start, does not answer, or has ended."""


class SessionClosed(SessionError):
    """The session has ended, or its process was killed."""


class SessionLost(SessionClosed):
    """A sandbox of another machine is not there any more, and neither are its processes and files."""

    def __init__(self, message: str, *, reason: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        """`ended` (a client did it), `expired` (its time was over), `memory` (the server ran out of it), `session_lost` (its
        process was killed), `node` (a node of a Ray cluster is gone), or `None` if the server does not know."""


class JobError(Error):
    """A job of `kennel.Fleet` has no result."""


class JobDead(JobError):
    """No worker could run the job, or one has refused it."""

    def __init__(self, message: str, *, history: list[dict[str, Any]] | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.history = history or []
        """Each attempt that is known: `delivery`, `worker`, `time`, and perhaps `error`."""
        self.status = status
        """What `/v1/run` would have answered, if a worker has refused it: 400, 403, 404, 413."""


class JobCancelled(JobError):
    """Somebody has cancelled the job."""


class JobTimeout(JobError):
    """The job had no result in time, and was cancelled."""


class ProtocolError(SessionError):
    """The other side of the socket is no session of this version."""


class PolicyError(Error):
    """A policy that Kennel refuses."""


class ImageError(Error):
    """An image that cannot be stored, found or removed."""


class Unsupported(Error):
    """This session, this version or this machine cannot do that."""


class StartError(Error):
    """A command could not start.

    If its program is missing or cannot be executed, the error is a `ProgramNotFoundError` or a `ProgramPermissionError`,
    which are `FileNotFoundError` and `PermissionError` as with `subprocess`.
    """

    outcome: Outcome | None = None


class _OSError(Error, OSError):
    """An error with an errno."""

    def __init__(
        self,
        message: str,
        *,
        errno: int | None = None,
        path: str | None = None,
        hint: str | None = None,
        failure: dict[str, Any] | None = None,
    ) -> None:
        Error.__init__(self, message, hint=hint, failure=failure)
        self.errno = errno
        self.strerror = None if errno is None else os.strerror(errno)
        self.filename = path

    def __reduce__(self) -> tuple[Any, ...]:
        state = {**self.__dict__, "errno": self.errno, "strerror": self.strerror, "filename": self.filename}
        return type(self), (self.message,), state


class ProgramError(_OSError, StartError):
    """The program cannot be executed. `errno` says why: `E2BIG`, `ENAMETOOLONG` and others."""


class ProgramNotFoundError(ProgramError, FileNotFoundError):
    """The session finds no such program."""


class ProgramPermissionError(ProgramError, PermissionError):
    """The program may not be executed, or is no program."""


class DirectoryError(_OSError, StartError, FileNotFoundError):
    """The directory of a command does not exist in the session. `filename` names it."""


class FileError(_OSError):
    """A call on a file of a session failed. `errno` is what a command would have got."""


class NotFoundError(FileError, FileNotFoundError):
    """`ENOENT`: there is no such file."""


class AccessError(FileError, PermissionError):
    """`EACCES` or `EPERM`: the sandbox does not allow it."""


class IsDirectoryError(FileError, IsADirectoryError):
    """`EISDIR`: this is a directory."""


class NotDirectoryError(FileError, NotADirectoryError):
    """`ENOTDIR`: a part of the path is no directory."""


class ExistsError(FileError, FileExistsError):
    """`EEXIST`: it is there already."""


class RefusedConnectionError(FileError, ConnectionRefusedError):
    """`ECONNREFUSED`: nobody listens on that port inside."""


_BY_ERRNO: dict[int, type[FileError]] = {
    _errno.ENOENT: NotFoundError,
    _errno.EACCES: AccessError,
    _errno.EPERM: AccessError,
    _errno.EISDIR: IsDirectoryError,
    _errno.ENOTDIR: NotDirectoryError,
    _errno.EEXIST: ExistsError,
    _errno.ECONNREFUSED: RefusedConnectionError,
}


def file_error(
    message: str, number: int, path: str | None, hint: str | None = None, failure: dict[str, Any] | None = None
) -> FileError:
    """The error of a file, by its errno.

    >>> file_error("no such file", 2, "/a")
    NotFoundError('no such file')
    >>> file_error("read-only", 30, "/a").errno
    30
    """
    kind = _BY_ERRNO.get(number, FileError)
    return kind(message, errno=number, path=path, hint=hint, failure=failure)


class TimeoutExpired(subprocess.TimeoutExpired):
    """A command ran longer than its timeout, and was killed. It has the output that had arrived.

    `output`, `stdout` and `stderr` are bytes, or text if the call asked for that.
    """

    def __init__(
        self,
        cmd: Any,
        timeout: float,
        output: Any = None,
        stderr: Any = None,
        outcome: Outcome | None = None,
    ) -> None:
        super().__init__(cmd, timeout, output, stderr)
        self.outcome = outcome
        """The report of the command, if the session sent one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cmd, self.timeout, self.output, self.stderr, self.outcome)


class CalledProcessError(subprocess.CalledProcessError):
    """A command failed, and the caller asked for `check=True`. It says what was refused."""

    def __init__(
        self,
        returncode: int,
        cmd: Any,
        output: Any = None,
        stderr: Any = None,
        outcome: Outcome | None = None,
    ) -> None:
        super().__init__(returncode, cmd, output, stderr)
        self.outcome = outcome
        """The report of the command."""

    @property
    def denials(self) -> list[Denial]:
        """What was refused while the command ran."""
        return self.outcome.denials if self.outcome is not None else []

    def __str__(self) -> str:
        failures = self.outcome.network_failures if self.outcome is not None else []
        return "\n".join([super().__str__(), *map(str, self.denials), *map(str, failures)])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.returncode, self.cmd, self.output, self.stderr, self.outcome)


class OutputLimitExceeded(Error):
    """A command wrote more than the session keeps. It has the output up to there, unless the call has `truncate=True`.

    `stdout` and `stderr` are the beginning: bytes, or text if the call asked for that. `outcome.stdout_bytes` and
    `outcome.stderr_bytes` say how much there was.
    """

    def __init__(
        self,
        returncode: int,
        cmd: Any,
        stdout: Any = None,
        stderr: Any = None,
        outcome: Outcome | None = None,
    ) -> None:
        super().__init__(
            f"command {cmd!r} wrote more than the session keeps of its output (limits.output)",
            hint="raise limits.output, or take the beginning with truncate=True",
        )
        self.returncode = returncode
        """As `subprocess` has it. The command ran to its end, unless a limit of the policy ended it."""
        self.cmd = cmd
        self.stdout = stdout
        self.stderr = stderr
        self.outcome = outcome
        """The report of the command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.returncode, self.cmd, self.stdout, self.stderr, self.outcome)


class WorkspaceNotFoundError(_OSError, SessionError, FileNotFoundError):
    """The workspace of a session does not exist. `filename` names it."""
