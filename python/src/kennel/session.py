"""A session: a sandbox that is prepared once and runs many commands."""

from __future__ import annotations

import builtins
import os
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from kennel import _blocking, _connection, _files, _questions, images
from kennel._blocking import now
from kennel._calls import Arguments, Environment, File
from kennel._session import Collected, PolicyLike, SessionBase
from kennel._wire import Argument
from kennel.detached import Detached, Shell
from kennel.images import Image
from kennel.policy import Policy
from kennel.process import Popen
from kennel.results import (
    Change,
    Committed,
    Completed,
    Description,
    Entry,
    Interpreter,
    Process,
    Published,
    Stat,
    Stats,
)


class Session(SessionBase):
    """A sandbox for many commands.

    Every method may be called from any thread. The session ends with `close`, with the `with` block, and with the process
    that started it. A copy in a forked or spawned process uses the session and does not end it.

    >>> with Session() as s:
    ...     s.run(["sh", "-c", "echo $((6 * 7))"], text=True).stdout
    '42\\n'
    """

    _io = _blocking

    def __init__(
        self,
        workspace: str | os.PathLike[str] | None = None,
        allow: Iterable[str] = (),
        profile: str | None = None,
        policy: PolicyLike = None,
        name: str | None = None,
        *,
        start_timeout: float = 60.0,
        idle: float | None = None,
        **policy_keys: Any,
    ) -> None:
        """Starts a session.

        `workspace` is the directory that commands work on, by default the current one. `allow` names what the network may
        reach, `profile` what to start from (`repo-write`). `policy` is a `Policy`, a mapping with its keys, or the path of a
        policy file. Any other keyword is a key of a policy: `limits={"memory": "2G"}`, `isolation="command"`,
        `warm={"python3": ["numpy"]}`. What is given beside `policy` comes over it.

        It ends when nobody has used it for `idle` seconds, otherwise with `close` or with this program.

        No configuration of the user or the workspace is read.
        """
        chosen = Policy.of(policy, workspace=workspace, allow=allow, profile=profile, **policy_keys)
        now(self._start(chosen, name, start_timeout, idle))

    @classmethod
    def attach(cls, name: str) -> Session:
        """A session that somebody else has started, such as `kennel session start --name NAME`.

        `close` does not end it.
        """
        session = cls.__new__(cls)
        session._attach(name)
        now(session._open()).close()
        return session

    def close(self) -> None:
        """Ends the session with everything in it. To close it again has no effect."""
        self._close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Commands.

    def run(
        self,
        args: Arguments,
        *,
        input: bytes | str | None = None,  # noqa: A002
        capture_output: bool = True,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        truncate: bool = False,
        env: Environment = None,
        cwd: Argument | None = None,
        shell: bool = False,
        stdin: File = None,
        stdout: File = None,
        stderr: File = None,
        cold: bool = False,
    ) -> Completed[Any]:
        """Runs a command and waits for its end, as `subprocess.run` does.

        What differs: output is captured unless `capture_output=False`, stdin is `/dev/null` unless you give one, `env` adds
        to the variables of the session, and `cwd` is a path inside. After `timeout` seconds the session kills the command
        with everything that it started. If the command writes more than the session keeps, `OutputLimitExceeded` has the
        beginning; with `truncate=True` the result has it. With `cold=True` the program is executed, even if an interpreter
        waits for it.

        >>> with Session() as s:
        ...     s.run("cat; exit 3", shell=True, input=b"abc")
        Completed(args='cat; exit 3', returncode=3, stdout=b'abc', stderr=b'')
        """
        return now(
            self._run(
                args,
                input=input,
                capture_output=capture_output,
                text=text,
                encoding=encoding,
                errors=errors,
                timeout=timeout,
                check=check,
                truncate=truncate,
                env=env,
                cwd=cwd,
                shell=shell,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cold=cold,
            )
        )

    async def _communicate(self, late: float | None, args: Arguments, **keywords: Any) -> Collected:
        with Popen(self, args, **keywords) as process:
            try:
                out, err = process._communicate(late)
            except subprocess.TimeoutExpired:
                raise _connection.silent(late or 0) from None
            return process._ended(), process._report, out, err

    def popen(self, args: Arguments, **keywords: Any) -> Popen:
        """Starts a command and returns at once: see `kennel.Popen` for the keywords.

        >>> from subprocess import PIPE
        >>> with Session() as s, s.popen(["cat"], stdin=PIPE, stdout=PIPE, text=True) as cat:
        ...     cat.communicate("hello")
        ('hello', None)
        """
        return Popen(self, args, **keywords)

    def shell(self, name: str = "main") -> Shell:
        """A shell that keeps its state. The first snippet starts it.

        >>> with Session() as s:
        ...     sh = s.shell()
        ...     _ = sh.run("cd /tmp; export A=1")
        ...     sh.run("echo $A", text=True).stdout, sh.run("true").directory
        ('1\\n', '/tmp')
        """
        return Shell(self, name)

    def detach(
        self,
        args: Arguments,
        log: str | os.PathLike[str] | None = None,
        *,
        shell: bool = False,
        env: Environment = None,
        cwd: Argument | None = None,
        timeout: float | None = None,
    ) -> Detached:
        """Starts a command that stays, and returns once its program runs.

        It ends by itself, with `kill`, or with the session. `log` is a file of the host that gets all of its output.

        >>> with Session() as s:
        ...     c = s.detach(["sh", "-c", "echo ready; exit 3"])
        ...     c.wait().returncode, list(c.logs())
        (3, [('stdout', b'ready\\n')])
        """
        return Detached(self, *now(self._detach(args, log, shell=shell, env=env, cwd=cwd, timeout=timeout)))

    def detached(self) -> list[Detached]:
        """Commands that stay, and the last of those that have ended."""
        return [Detached(self, info.id, info.program, info) for info in now(self._ask(_questions.detached()))]

    # Files. Paths are those inside; relative ones start at the session's directory.

    def read(self, path: Argument) -> bytes:
        """The contents of a file.

        >>> with Session() as s:
        ...     s.write("notes.txt", b"one"); s.read("notes.txt"); s.remove("notes.txt")
        b'one'
        """
        return now(self._read(path))

    def read_text(self, path: Argument, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The contents of a file as text."""
        return self.read(path).decode(encoding, errors)

    def write(self, path: Argument, data: bytes | bytearray | memoryview, mode: int | None = None) -> None:
        """Writes a file: whole, or not at all. `mode` is that of a new file."""
        now(self._write(path, data, mode))

    def write_text(
        self, path: Argument, text: str, encoding: str = "utf-8", errors: str = "strict", mode: int | None = None
    ) -> None:
        """Writes text to a file."""
        self.write(path, text.encode(encoding, errors), mode)

    def open(self, path: Argument, mode: str = "rb") -> IO[Any]:
        """A file, to read (`rb`) or to write (`wb`) piece by piece.

        A written file appears when it is closed. If a `with` block ends with an exception, it does not.
        """
        if mode == "rb":
            question = _questions.read(path)
            with now(self._asked(question)) as asked:
                question.result(asked.text)
                return open(asked.descriptor(), "rb")
        if mode == "wb":
            writing = _files.Writing(self, path, None)
            return _files.Writer(now(writing.open()), writing)
        raise ValueError(f"mode {mode!r}: use 'rb' or 'wb', or read_text and write_text")

    def list(self, path: Argument = ".") -> list[Entry]:
        """The entries of a directory, sorted by name."""
        return now(self._ask(_questions.entries(path)))

    def stat(self, path: Argument) -> Stat:
        """What is at a path. A link is not followed."""
        return now(self._ask(_questions.stat(path)))

    def exists(self, path: Argument) -> bool:
        """Whether something is at a path, as far as commands see."""
        return now(self._exists(path))

    def mkdir(self, path: Argument, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory, as `pathlib.Path.mkdir` does.

        >>> with Session() as s:
        ...     s.mkdir("a/b", parents=True); s.exists("a/b"); s.remove("a/b"); s.remove("a")
        True
        """
        now(self._mkdir(path, parents, exist_ok))

    def remove(self, path: Argument) -> None:
        """Removes a file, a link or an empty directory."""
        now(self._ask(_questions.remove(path)))

    def copy_in(self, host: str | os.PathLike[str], path: Argument) -> None:
        """Copies a file of the host into the session, with its permissions."""
        now(self._copy_in(host, path))

    def copy_out(self, path: Argument, host: str | os.PathLike[str]) -> None:
        """Copies a file of the session to the host. It replaces what is at `host`, also a link, once it is complete."""
        now(self._copy_out(path, host))

    # The session.

    def changes(self) -> builtins.list[Change]:
        """What commands changed in the overlay of the session."""
        return now(self._ask(_questions.changes()))

    def commit(self, paths: Iterable[Argument] = (), overwrite: bool = False) -> Committed:
        """Applies changes of the overlay to the workspace: all of them, or those at and below `paths`.

        Where somebody else has changed the workspace meanwhile, a change is refused unless `overwrite` is true.
        """
        return now(self._ask(_questions.commit(paths, overwrite)))

    def discard(self) -> None:
        """Drops the changes of the overlay. The session ends with them."""
        now(self._ask(_questions.discard()))
        self.close()

    def snapshot(self, image: str) -> Image:
        """Stores the image of the session, with what commands changed in it, as `image`: `NAME:TAG`.

        The session goes on. No command may run meanwhile.
        """
        return images._snapshot(Path(self.socket_path), image)

    def stats(self) -> Stats:
        """Numbers: commands that run, commands that have ended."""
        return now(self._ask(_questions.stats()))

    def processes(self) -> builtins.list[Process]:
        """The processes of the session's commands, with the interpreters that wait for one."""
        return now(self._ask(_questions.processes()))

    def interpreters(self) -> builtins.list[Interpreter]:
        """The interpreters of `warm`: what each does, and why it does not wait for commands if it does not."""
        return now(self._ask(_questions.interpreters()))

    def describe(self) -> Description:
        """What the session was prepared with."""
        return now(self._ask(_questions.describe()))

    def publish(self, port: str | int) -> Published:
        """Lets programs outside connect to a port inside: `[ADDR:]PORT[:INSIDE]`. Port 0 is one that is free."""
        return now(self._ask(_questions.publish(port)))

    def published(self) -> builtins.list[Published]:
        """The published ports."""
        return now(self._ask(_questions.published()))

    def connect(self, port: int) -> socket.socket:
        """A TCP connection to a port of the session's own loopback, for this process alone."""
        return now(self._connect(port))
