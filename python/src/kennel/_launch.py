"""Finds the executable, and starts and ends the process of a session."""

from __future__ import annotations

import errno
import os
import secrets
import select
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path

from kennel.errors import Error, PolicyError, SessionError, Unsupported, WorkspaceNotFoundError

PROTECTIONS = frozenset(
    [
        "mount_namespace",
        "root",
        "capabilities",
        "no_new_privs",
        "user_namespace",
        "pid_namespace",
        "network_namespace",
        "ipc_namespace",
        "uts_namespace",
        "cgroup_namespace",
        "proxy",
        "landlock",
        "landlock_network",
        "seccomp",
        "protected_paths",
        "landlock_scope",
        "keyring",
        "core_dumps",
        "memory",
        "pids",
        "cpus",
        "cpuset",
        "io",
        "cpu_time",
        "open_files",
        "file_size",
    ]
)
"""What a policy may require. An error of what the machine cannot enforce begins with one of these words."""

_REMEDY = "install the wheel of this package, put kennel on PATH, or let the variable KENNEL name the executable"


def executable() -> str:
    """The path of the `kennel` executable.

    It is what the variable `KENNEL` names, else the one beside the interpreter or among its scripts, where the wheel puts
    it, else the first on `PATH`.
    """
    named = os.environ.get("KENNEL")
    if named:
        if os.access(named, os.X_OK) and os.path.isfile(named):
            return os.path.abspath(named)
        raise SessionError(f"KENNEL names {named!r}, which is no executable file", hint=_REMEDY)
    scripts = [os.path.dirname(sys.executable) if sys.executable else "", sysconfig.get_path("scripts")]
    # A relative entry of PATH would find what a command may have put into the current directory.
    on_path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    directories = [each for each in (*scripts, *on_path) if each and os.path.isabs(each)]
    found = shutil.which("kennel", path=os.pathsep.join(directories))
    if found is None:
        raise SessionError("the executable kennel was not found", hint=_REMEDY)
    return found


def runtime_directory() -> Path:
    """Where the sockets of sessions are."""
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(named, "kennel") if os.path.isabs(named) else Path(f"/tmp/kennel-{os.geteuid()}")  # noqa: S108


def check_directory(directory: Path) -> None:
    """Refuses a directory of sockets that other users can enter."""
    try:
        found = directory.lstat()
    except OSError as error:
        raise SessionError(f"{directory}: {error.strerror}", hint="start a session first") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SessionError(
            f"{directory}: is no directory of yours alone",
            hint="check its contents, then remove it or close it to others with chmod 700",
        )


def new_name() -> str:
    """A name for a session that nobody else has."""
    return f"py-{os.getpid()}-{secrets.token_hex(4)}"


def memfd(contents: bytes, name: str = "kennel") -> int:
    """A file in memory with these contents, at offset 0."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        write_all(descriptor, contents)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_all(descriptor: int, contents: bytes | memoryview) -> None:
    """Writes everything."""
    view = memoryview(contents)
    while view:
        view = view[os.write(descriptor, view) :]


def error_of(said: str, otherwise: str) -> Error:
    """The error that lines of stderr tell.

    >>> error_of("kennel: policy: 1:2: unknown field `x`\\nkennel: hint: look", "")
    PolicyError('policy: 1:2: unknown field `x`')
    >>> error_of("", "it ended")
    SessionError('it ended')
    >>> error_of("kennel: workspace /a b: No such file or directory", "").filename
    '/a b'
    """
    lines = [line.removeprefix("kennel: ") for line in said.splitlines() if line.startswith("kennel: ")]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    causes = [line for line in lines if not line.startswith(("hint: ", "note: "))]
    message = "; ".join(causes) or said.strip() or otherwise
    path = message.removeprefix("workspace ").removesuffix(f": {os.strerror(errno.ENOENT)}")
    if len(causes) == 1 and message == f"workspace {path}: {os.strerror(errno.ENOENT)}":
        return WorkspaceNotFoundError(message, errno=errno.ENOENT, path=path, hint="; ".join(hints) or None)
    kind: type[Error] = SessionError
    if message.startswith(("policy:", "policy file", "/dev/fd/")) or " unknown field " in message:
        kind = PolicyError
    elif message.partition(":")[0] in PROTECTIONS:
        kind = Unsupported
    return kind(message, hint="; ".join(hints) or None)


class Host:
    """The process that has a session, started by this one."""

    def __init__(self, policy: bytes, name: str | None, idle: float | None = None) -> None:
        """Starts the process; `taken` says when it takes commands. It ends after `idle` seconds without use."""
        self._has_own_name = not name
        self.name = name or new_name()
        self.owner = os.getpid()
        program = executable()
        self._directory = runtime_directory()
        self._said = memfd(b"", "kennel-stderr")
        self._announced = -1
        try:
            given = memfd(policy, "kennel-policy")
            try:
                words = [
                    program,
                    "session",
                    "start",
                    "--foreground",
                    "--with-parent",
                    "--quiet",
                    "--pull",
                    "never",
                    "--name",
                    self.name,
                ]
                if idle is not None:
                    words += ["--idle", f"{round(idle * 1000)}ms"]
                self.process = subprocess.Popen(  # noqa: S603
                    [*words, "--policy", f"/dev/fd/{given}"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=self._said,
                    pass_fds=[given],
                    bufsize=0,
                    # Keys of the terminal are for the embedding program.
                    start_new_session=True,
                )
            finally:
                os.close(given)
        except BaseException:
            os.close(self._said)
            raise
        assert self.process.stdout is not None
        self._announced = os.dup(self.process.stdout.fileno())
        self.process.stdout.close()
        self._line = b""

    def fileno(self) -> int:
        """Readable when `taken` has something to say."""
        return self._announced

    def taken(self) -> str | None:
        """The path of the socket once the session takes commands; `None` if `fileno` is not readable yet.

        Raises the error of a session that does not start.
        """
        # Not select(2): it takes no descriptor from 1024 on.
        poll = select.poll()
        poll.register(self._announced, select.POLLIN)
        if not poll.poll(0):
            return None
        piece = os.read(self._announced, 4096)
        self._line += piece
        if piece and not self._line.endswith(b"\n"):
            return None
        os.close(self._announced)
        self._announced = -1
        if self._line.endswith(b"\n"):
            return os.fsdecode(self._line[:-1])
        status = self.process.wait()
        raise error_of(self.said(), f"the session ended during its start: status {status}")

    def wait_until_taken(self, timeout: float) -> str:
        """The path of the socket, once the session takes commands."""
        until = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._announced, select.POLLIN)
        while True:
            poll.poll(max(0.0, until - time.monotonic()) * 1000)
            socket = self.taken()
            if socket is not None:
                return socket
            if time.monotonic() >= until:
                raise self.late(timeout)

    def late(self, timeout: float) -> SessionError:
        """The error of a session that takes too long."""
        return SessionError(f"the session did not start within {timeout:g} s", hint="give it a larger start_timeout")

    def said(self) -> str:
        """What the process wrote to stderr."""
        return os.pread(self._said, 1 << 16, 0).decode("utf-8", "replace")

    def begin_end(self) -> bool:
        """Tells the session to end; false if it has ended, or belongs to another process."""
        if self.owner != os.getpid() or self.process.poll() is not None:
            return False
        self.process.send_signal(signal.SIGTERM)
        return True

    def end(self, patience: float = 10.0) -> None:
        """Ends the session with everything in it, and waits until it is gone. Only the process that started it does."""
        if self.begin_end():
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._close()

    def kill(self) -> None:
        """Ends the session at once."""
        if self.owner == os.getpid() and self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        if self.owner == os.getpid() and self._has_own_name:
            # A process that was killed leaves its files. With a name that the caller gave they may be another session's.
            for file in (f"{self.name}.sock", f"{self.name}.lock"):
                with suppress(OSError):
                    (self._directory / file).unlink()
        for descriptor in (self._announced, self._said):
            if descriptor >= 0:
                os.close(descriptor)
        self._announced = self._said = -1
