"""A session: a sandbox that is prepared once and runs many commands."""

from __future__ import annotations

import builtins
import os
import socket
import subprocess
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import IO, Any

from kennel import _calls, _connection, _files, _questions, _wire
from kennel._base import PolicyLike, SessionBase
from kennel._calls import DEVNULL, PIPE, Arguments, Environment, File
from kennel._questions import Question, T
from kennel._wire import Argument
from kennel.detached import Detached, Shell, start_detached
from kennel.errors import FileError, SessionClosed
from kennel.policy import Policy
from kennel.process import Popen
from kennel.results import (
    Change,
    Committed,
    Completed,
    Description,
    Entry,
    Process,
    Published,
    Stat,
    Stats,
)

_COLLECT = _wire.WANTS_REPORT | _wire.COLLECT


class Session(SessionBase):
    """A sandbox for many commands.

    Every method may be called from any thread. The session ends with `close`, with the `with` block, and with the process
    that started it. A copy in a forked or spawned process uses the session and does not end it.

    >>> with Session() as s:
    ...     s.run(["sh", "-c", "echo $((6 * 7))"], text=True).stdout
    '42\\n'
    """

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
        policy file. Any other keyword is a key of a policy: `limits={"memory": "2G"}`, `isolation="command"`. What is given
        beside `policy` comes over it.

        It ends when nobody has used it for `idle` seconds, otherwise with `close` or with this program.

        No configuration of the user or the workspace is read.
        """
        chosen = Policy.of(policy, workspace=workspace, allow=allow, profile=profile, **policy_keys)
        host = self._begin(chosen, name, idle)
        try:
            self._takes_commands(host.wait_until_taken(start_timeout))
        except BaseException:
            host.kill()
            raise

    @classmethod
    def attach(cls, name: str) -> Session:
        """A session that somebody else has started, such as `kennel session start --name NAME`.

        `close` does not end it.
        """
        session = cls.__new__(cls)
        session._attach(name)
        session._open().close()
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
        env: Environment = None,
        cwd: Argument | None = None,
        shell: bool = False,
        stdin: File = None,
        stdout: File = None,
        stderr: File = None,
    ) -> Completed[Any]:
        """Runs a command and waits for its end, as `subprocess.run` does.

        What differs: output is captured unless `capture_output=False`, stdin is `/dev/null` unless you give one, `env` adds
        to the variables of the session, and `cwd` is a path inside. After `timeout` seconds the session kills the command
        with everything that it started.

        >>> with Session() as s:
        ...     s.run("cat; exit 3", shell=True, input=b"abc")
        Completed(args='cat; exit 3', returncode=3, stdout=b'abc', stderr=b'')
        """
        if input is not None and stdin is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        if capture_output:
            stdout = PIPE if stdout is None else stdout
            stderr = PIPE if stderr is None else stderr
        if not stdout == stderr == PIPE:
            return self._run_with_pipes(
                args,
                input=input,
                encoding=_calls.encoding_of(text, encoding, errors),
                timeout=timeout,
                check=check,
                env=env,
                cwd=cwd,
                shell=shell,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
            )
        if self._needs_directory(cwd):
            self._directory = self.describe().directory
        packet, long_call = self._packet(args, shell=shell, cwd=cwd, env=env, timeout=timeout, wishes=_COLLECT)
        decode = _calls.encoding_of(text, encoding, errors)
        if input is None and stdin is None and long_call is None:
            end, report, out, err = self._collect(packet, (), timeout)
        else:
            with _connection.Descriptors() as given:
                given.add_stdin(None if input is None else _calls.encoded(input, decode), stdin)
                if long_call is not None:
                    given.add_memfd(long_call)
                end, report, out, err = self._collect(packet, given.sent, timeout)
        return _calls.completed(args, end, report, out, err, encoding=decode, timeout=timeout, check=check, cwd=cwd)

    def _collect(
        self, packet: bytes, descriptors: Sequence[int], timeout: float | None
    ) -> tuple[_wire.Ended, bytes, bytes | None, bytes | None]:
        """Runs a command whose output the session collects: one message, one answer."""
        connection = self._open()
        try:
            if timeout is not None:
                _connection.patience(connection, timeout + _connection.MARGIN_SECONDS)
            _connection.send(connection, packet, descriptors)
            while True:
                answer, received = _connection.receive(connection)
                try:
                    end = _wire.ended(answer)
                    if end is not None:
                        parts = _calls.parts_of(end, received)
                        break
                    if _wire.number_of(answer) != _wire.STOPPED:
                        raise _wire.malformed()
                finally:
                    _connection.close_all(received)
        except BlockingIOError:
            _connection.abandon(connection)
            raise _connection.silent((timeout or 0) + _connection.MARGIN_SECONDS) from None
        except SessionClosed as error:
            _connection.abandon(connection)
            raise self._gone(error) from None
        except BaseException:
            _connection.abandon(connection)
            raise
        connection.close()
        return end, *parts

    def _run_with_pipes(
        self,
        args: Arguments,
        *,
        input: bytes | str | None,  # noqa: A002
        encoding: tuple[str, str] | None,
        timeout: float | None,
        check: bool,
        cwd: Argument | None,
        stdin: File,
        stdout: File,
        stderr: File,
        **keywords: Any,
    ) -> Completed[Any]:
        """`run`, if streams are files of the caller."""
        with _connection.Descriptors() as given:
            given.add_stdin(None if input is None else _calls.encoded(input, encoding), stdin)
            process = Popen(
                self,
                args,
                stdin=given.sent[0] if given.sent else DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                _timeout=timeout,
                **keywords,
            )
        with process:
            try:
                late = None if timeout is None else timeout + _connection.MARGIN_SECONDS
                out, err = process._communicate(late)
            except subprocess.TimeoutExpired:
                raise _connection.silent((timeout or 0) + _connection.MARGIN_SECONDS) from None
            end, report = process._end_with_report()
        return _calls.completed(args, end, report, out, err, encoding=encoding, timeout=timeout, check=check, cwd=cwd)

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
        return start_detached(self, args, log, shell=shell, env=env, cwd=cwd, timeout=timeout)

    def detached(self) -> list[Detached]:
        """Commands that stay, and the last of those that have ended."""
        return [Detached(self, info.id, info.program, info) for info in self._ask(_questions.detached())]

    # Files. Paths are those inside; relative ones start at the session's directory.

    def read(self, path: Argument) -> bytes:
        """The contents of a file.

        >>> with Session() as s:
        ...     s.write("notes.txt", b"one"); s.read("notes.txt"); s.remove("notes.txt")
        b'one'
        """
        with self.open(path) as file:
            data: bytes = file.read()
            return data

    def read_text(self, path: Argument, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The contents of a file as text."""
        return self.read(path).decode(encoding, errors)

    def write(self, path: Argument, data: bytes | bytearray | memoryview, mode: int | None = None) -> None:
        """Writes a file: whole, or not at all. `mode` is that of a new file."""
        with _files.Writer(*self._written(path, mode), patience=_connection.QUESTION_SECONDS) as file:
            file.write(data)

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
            with self._asked(question) as asked:
                question.result(asked.text)
                return open(asked.descriptor(), "rb")
        if mode == "wb":
            return _files.Writer(*self._written(path, None), patience=_connection.QUESTION_SECONDS)
        raise ValueError(f"mode {mode!r}: use 'rb' or 'wb', or read_text and write_text")

    def list(self, path: Argument = ".") -> list[Entry]:
        """The entries of a directory, sorted by name."""
        return self._ask(_questions.entries(path))

    def stat(self, path: Argument) -> Stat:
        """What is at a path. A link is not followed."""
        return self._ask(_questions.stat(path))

    def exists(self, path: Argument) -> bool:
        """Whether something is at a path, as far as commands see."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def mkdir(self, path: Argument, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory, as `pathlib.Path.mkdir` does.

        >>> with Session() as s:
        ...     s.mkdir("a/b", parents=True); s.exists("a/b"); s.remove("a/b"); s.remove("a")
        True
        """
        try:
            self._ask(_questions.mkdir(path))
        except FileNotFoundError:
            above = _files.above(path)
            if not parents or not above:
                raise
            self.mkdir(above, parents=True, exist_ok=True)
            self.mkdir(path, exist_ok=exist_ok)
        except FileError:
            # A read-only place gives another errno for a directory that exists.
            if not exist_ok or not self._is_directory(path):
                raise

    def _is_directory(self, path: Argument) -> bool:
        try:
            return self.stat(path).is_dir
        except FileError:
            return False

    def remove(self, path: Argument) -> None:
        """Removes a file, a link or an empty directory."""
        self._ask(_questions.remove(path))

    def copy_in(self, host: str | os.PathLike[str], path: Argument) -> None:
        """Copies a file of the host into the session, with its permissions."""
        with open(host, "rb") as source:
            mode = os.fstat(source.fileno()).st_mode & 0o777
            with _files.Writer(*self._written(path, mode), patience=_connection.QUESTION_SECONDS) as target:
                _files.copy(source.fileno(), target.fileno())

    def copy_out(self, path: Argument, host: str | os.PathLike[str]) -> None:
        """Copies a file of the session to the host. It replaces what is at `host`, also a link, once it is complete."""
        question = _questions.read(path)
        with self._asked(question) as asked:
            mode = question.result(asked.text).mode & 0o777
            with _files.replaced(host, mode) as target:
                _files.copy(asked.received[0], target)

    # The session.

    def changes(self) -> builtins.list[Change]:
        """What commands changed in the overlay of the session."""
        return self._ask(_questions.changes())

    def commit(self, paths: Iterable[Argument] = (), overwrite: bool = False) -> Committed:
        """Applies changes of the overlay to the workspace: all of them, or those at and below `paths`.

        Where somebody else has changed the workspace meanwhile, a change is refused unless `overwrite` is true.
        """
        return self._ask(_questions.commit(paths, overwrite))

    def discard(self) -> None:
        """Drops the changes of the overlay. The session ends with them."""
        self._ask(_questions.discard())
        self.close()

    def stats(self) -> Stats:
        """Numbers: commands that run, commands that have ended."""
        return self._ask(_questions.stats())

    def processes(self) -> builtins.list[Process]:
        """The processes of the session's commands."""
        return self._ask(_questions.processes())

    def describe(self) -> Description:
        """What the session was prepared with."""
        return self._ask(_questions.describe())

    def publish(self, port: str | int) -> Published:
        """Lets programs outside connect to a port inside: `[ADDR:]PORT[:INSIDE]`. Port 0 is one that is free."""
        return self._ask(_questions.publish(port))

    def published(self) -> builtins.list[Published]:
        """The published ports."""
        return self._ask(_questions.published())

    def connect(self, port: int) -> socket.socket:
        """A TCP connection to a port of the session's own loopback, for this process alone."""
        question = _questions.connect(port)
        with self._asked(question) as asked:
            question.result(asked.text)
            return socket.socket(fileno=asked.descriptor())

    # Requests.

    def _open(self) -> socket.socket:
        self._check_open()
        try:
            return _connection.open_socket(self.socket_path)
        except SessionClosed as error:
            raise self._gone(error) from None

    def _asked(self, question: Question[Any]) -> _connection.Asked:
        """The answer to a question, with its connection."""
        packet, long_text = question.packet()
        connection = self._open()
        try:
            return _connection.ask(connection, packet, long_text)
        except SessionClosed as error:
            connection.close()
            raise self._gone(error) from None
        except BaseException:
            connection.close()
            raise

    def _ask(self, question: Question[T]) -> T:
        with self._asked(question) as asked:
            return question.result(asked.text)

    def _written(self, path: Argument, mode: int | None) -> tuple[int, socket.socket, Question[None]]:
        question = _questions.write(path, mode)
        with self._asked(question) as asked:
            question.result(asked.text)
            return asked.descriptor(), asked.take_connection(), question
