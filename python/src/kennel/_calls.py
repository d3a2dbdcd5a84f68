"""What the ways to run a command share: its call, and what its end means."""

from __future__ import annotations

import errno
import io
import locale
import os
import posixpath
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

from kennel import _connection, _wire
from kennel._wire import Argument
from kennel.errors import (
    DirectoryError,
    OutputLimitExceeded,
    PolicyError,
    ProgramError,
    ProgramNotFoundError,
    ProgramPermissionError,
    SessionError,
    StartError,
    TimeoutExpired,
)
from kennel.results import Completed, Outcome

Arguments = Argument | Sequence[Argument]
Environment = Mapping[str, str] | Mapping[bytes, bytes] | None
File = int | IO[Any] | None

_KEPT_CODES = frozenset((124, 125, 126, 127))
"""Codes of commands that Kennel ended or could not start; a command may exit with them, too."""


def words(args: Arguments, shell: bool) -> list[Argument]:
    """The program and its arguments, as `subprocess` takes them.

    >>> words("ls -l", shell=True), words("ls", shell=False), words(["ls", "-l"], shell=False)
    (['/bin/sh', '-c', 'ls -l'], ['ls'], ['ls', '-l'])
    """
    given: list[Argument] = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
    if not given:
        raise ValueError("a command needs a program")
    return ["/bin/sh", "-c", *given] if shell else given


def directory(cwd: Argument | None, session: str | None = None) -> bytes:
    """The directory of a call; a relative one starts at that of the session.

    >>> directory(None), directory("/a/../b"), directory("c", "/srv")
    (b'', b'/a/../b', b'/srv/c')
    """
    if cwd is None:
        return b""
    path = os.fsencode(cwd)
    if not path:
        raise ValueError("cwd is empty")
    return path if session is None else posixpath.join(os.fsencode(session), path)


def encoding_of(text: bool | None, encoding: str | None, errors: str | None) -> tuple[str, str] | None:
    """How output becomes text; `None` for bytes."""
    if not (text or encoding or errors):
        return None
    return encoding or locale.getpreferredencoding(False), errors or "strict"


def decoded(data: bytes | None, encoding: tuple[str, str] | None) -> Any:
    """Output as the caller wants it.

    >>> decoded(b"a\\r\\n", ("utf-8", "strict")), decoded(b"a", None)
    ('a\\n', b'a')
    """
    if encoding is None or data is None:
        return data
    text = data.decode(*encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def encoded(given: Any, encoding: tuple[str, str] | None) -> bytes:
    """What `input=` gives, as bytes."""
    if isinstance(given, str):
        if encoding is None:
            raise TypeError("input is text: pass bytes, or text=True")
        return given.encode(*encoding)
    return bytes(given)


def number_of(file: File) -> int:
    """The descriptor of a file that was passed as a stream."""
    if isinstance(file, int):
        return file
    if file is None:
        raise ValueError("no file")
    if isinstance(file, io.TextIOBase) and file.writable():
        file.flush()
    return file.fileno()


def first_packet(call: bytes, in_packet: int, in_memfd: int) -> tuple[bytes, bytes | None]:
    """The packet of a request, and what a memfd has to hold if the call is too long for it."""
    check_length(call)
    if len(call) + 8 <= _wire.LONGEST_PACKET:
        return _wire.request(in_packet, len(call)) + call, None
    return _wire.request(in_memfd, len(call)), call


def check_length(call: bytes) -> None:
    """Refuses a call that no session takes."""
    if len(call) > _wire.LONGEST_CALL:
        raise ProgramError(os.strerror(errno.E2BIG), errno=errno.E2BIG, hint="pass long arguments in a file or as input")


def parts_of(end: _wire.Ended, descriptors: list[int]) -> tuple[bytes, bytes | None, bytes | None]:
    """The report, stdout and stderr of an end. The descriptors stay open."""
    lengths = (end.stdout or 0, end.stderr or 0, end.report)
    total = sum(lengths)
    if end.rest and len(end.rest) != total:
        raise _wire.malformed()
    if not total:
        report = stdout = stderr = b""
    elif end.rest:
        rest = end.rest
        stdout, stderr, report = (
            rest[: lengths[0]],
            rest[lengths[0] : lengths[0] + lengths[1]],
            rest[lengths[0] + lengths[1] :],
        )
    elif descriptors:
        stdout, stderr, report = _connection.read_parts(descriptors[0], *lengths)
    else:
        raise _wire.malformed()
    return report, None if end.stdout is None else stdout, None if end.stderr is None else stderr


def completed(
    args: Any,
    end: _wire.Ended,
    report: bytes,
    stdout: bytes | None,
    stderr: bytes | None,
    *,
    encoding: tuple[str, str] | None,
    timeout: float | None,
    check: bool,
    truncate: bool,
    cwd: Argument | None = None,
) -> Completed[Any]:
    """What `run` returns, or raises."""
    code, number = end.code, end.signal
    done: Completed[Any]
    if code in _KEPT_CODES:
        outcome = Outcome.parse(report, end.message.decode("utf-8", "replace").strip()) if report else None
        if outcome is None and not number and code == 125:
            raise _refused(end)
        if outcome is not None and outcome.ended == "failed":
            raise start_error(outcome, args, cwd)
        if outcome is not None and outcome.ended == "timed_out":
            number = 0
            if timeout is not None:
                raise TimeoutExpired(args, timeout, _some(stdout, encoding), _some(stderr, encoding), outcome)
    returncode = -number if number else code
    done = Completed(args, returncode, report=report, message=end.message)
    if done.truncated and (stdout, stderr) != (None, None):
        done.stdout, done.stderr = _some(stdout, encoding), _some(stderr, encoding)
        if not truncate:
            raise OutputLimitExceeded(returncode, args, done.stdout, done.stderr, done.outcome)
    else:
        done.stdout, done.stderr = decoded(stdout, encoding), decoded(stderr, encoding)
    if check:
        done.check_returncode()
    return done


def _some(data: bytes | None, encoding: tuple[str, str] | None) -> Any:
    """Output that may end in the middle of a character."""
    return decoded(data, None if encoding is None else (encoding[0], "replace"))


def _refused(end: _wire.Ended) -> SessionError:
    return _connection.refusal(_wire.request(_wire.ENDED, end.code, 0, 0, len(end.message)) + end.message)


def start_error(outcome: Outcome, args: Any, cwd: Argument | None) -> Exception:
    """The error of a command that could not start."""
    failure = outcome.failure or {}
    message = str(failure.get("message", "the command could not start"))
    hint = "; ".join(outcome.hints) or None
    error: StartError | SessionError | PolicyError
    program = args if isinstance(args, (str, bytes, os.PathLike)) else next(iter(args), "")
    if outcome.exit_code == 127:
        error = ProgramNotFoundError(message, errno=errno.ENOENT, path=os.fsdecode(program), hint=hint, failure=failure)
    elif outcome.exit_code == 126:
        number = _errno_of(message, errno.EACCES)
        refused = ProgramPermissionError if number in (errno.EACCES, errno.EPERM) else ProgramError
        error = refused(message, errno=number, path=os.fsdecode(program), hint=hint, failure=failure)
    elif message.startswith("working directory "):
        error = DirectoryError(
            message,
            errno=_errno_of(message, errno.ENOENT),
            path=None if cwd is None else os.fsdecode(cwd),
            hint=hint,
            failure=failure,
        )
    else:
        error = StartError(message, hint=hint, failure=failure)
    error.outcome = outcome
    return error


def start_error_without_report(end: _wire.Ended, args: Any, cwd: Argument | None) -> Exception:
    """The same, if the session sent its words only."""
    refusal = _refused(end)
    if end.code not in (125, 126, 127):
        return refusal
    message = end.message.decode("utf-8", "replace").strip()
    return start_error(Outcome("failed", end.code, message=message, failure={"message": refusal.message}), args, cwd)


def _errno_of(message: str, otherwise: int) -> int:
    """The errno whose words end a message.

    >>> _errno_of("/bin/x: Argument list too long", 0) == errno.E2BIG
    True
    """
    cause = message.rpartition(": ")[2]
    return next((number for number in errno.errorcode if os.strerror(number) == cause), otherwise)


def signal_number(number: int) -> int:
    """A signal that can be sent to a command."""
    return int(signal.Signals(number)) if number < signal.SIGRTMIN else number


PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
