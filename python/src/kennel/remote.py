"""Sandboxes of a server (`kennel serve`), with the calls of sessions."""

from __future__ import annotations

import builtins
import errno
import math
import os
import re
import secrets
import ssl
import weakref
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from types import TracebackType
from typing import Any
from urllib.parse import quote

from kennel import _calls, _connect, _files, _launch, _remote, _wire
from kennel._calls import DEVNULL, PIPE, Arguments, Environment, File
from kennel._connect import malformed, number_of, text_of
from kennel._http import Answer, Server
from kennel._remote import path_of
from kennel._remote_command import Command, Given, outputs_of, pieces_of
from kennel._wire import Argument
from kennel.errors import Error, ExistsError, FileError, SessionClosed, SessionLost, file_error
from kennel.results import Change, Committed, Completed, Denial, Entry, Stat, _of, change_of

_MOST_LINKS = 40
_KINDS = {"FILE_TYPE_FILE": "file", "FILE_TYPE_DIRECTORY": "directory", "FILE_TYPE_SYMLINK": "link"}


class Remote:
    """A sandbox of a server, for many commands: `kennel.Session` on another machine.

    Every method may be called from any thread. The sandbox ends with `close`, with the `with` block, with this program, and
    on the server after `timeout` seconds. Once it is gone, calls raise `kennel.SessionLost`.

    >>> with Remote("http://127.0.0.1:49983") as s:  # doctest: +SKIP
    ...     s.run(["sh", "-c", "echo $((6 * 7))"], text=True).stdout
    '42\\n'
    """

    id: str
    """Its id on the server."""
    url: str
    """The server."""

    _end: weakref.finalize[Any, Any] | None = None
    _is_closed = False

    def __init__(
        self,
        url: str,
        token: str | None = None,
        template: str = "base",
        *,
        timeout: float = 300.0,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        allow: Iterable[str] | None = None,
        deny: Iterable[str] = (),
        start_timeout: float = 60.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Makes a sandbox.

        `url` is `http://HOST:PORT`, `https://HOST:PORT` or `http+unix:///PATH`. `token` is a key of the server, by default
        that in the variable `E2B_API_KEY`, which `kennel serve` prints. The sandbox lives `timeout` seconds, unless `renew`
        says otherwise. `env` has variables for its commands, and `metadata` is for lists of sandboxes. `allow` names hosts
        that the template allows: no others can be reached then, and none with an empty list. `deny` takes some away.

        If the server has no room, this waits for `start_timeout` seconds at most.
        """
        server, key = Server(url, ssl_context), _remote.key_of(token)
        body = {
            "templateID": template,
            "timeout": math.ceil(timeout),
            "envVars": dict(env or {}),
            "metadata": dict(metadata or {}),
            **_remote.network_of(_remote.hosts_of(allow, deny)),
        }
        # If an answer is lost, the same sandbox is the answer to the next request.
        headers = {**key, "Idempotency-Key": secrets.token_hex(16)}
        made = _remote.admitted(server, "/v2/sandboxes", headers, body, seconds=start_timeout, again=3)
        self._use(server, key, made)
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _forget, self._sandbox, self._owner)

    @classmethod
    def attach(
        cls, url: str, sandbox_id: str, token: str | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> Remote:
        """A sandbox that is there already, such as that of another process. `close` does not end it."""
        server, key, name = Server(url, ssl_context), _remote.key_of(token), quote(sandbox_id, safe="")
        found = _remote.Sandbox(server, name, key, "").control("GET", f"/sandboxes/{name}")
        remote = cls.__new__(cls)
        remote._use(server, key, _connect.parsed(found))
        return remote

    def _use(self, server: Server, key: Mapping[str, str], made: dict[str, Any]) -> None:
        self.url, self.id = server.url, text_of(made, "sandboxID")
        access = text_of(made, "envdAccessToken")
        # Both become parts of requests.
        if not all(re.fullmatch(r"[\w.-]{1,200}", word, re.ASCII) for word in (self.id, access)):
            raise malformed()
        self._sandbox = _remote.Sandbox(server, self.id, key, access)

    @property
    def _opened(self) -> _remote.Sandbox:
        if self._is_closed:
            raise SessionClosed(f"sandbox {self.id} is closed")
        return self._sandbox

    def close(self) -> None:
        """Ends the sandbox with everything in it. To close it again has no effect."""
        self._is_closed = True
        try:
            if self._end is not None and self._end.detach():
                _end(self._sandbox, self._owner)
        finally:
            self._sandbox.server.close()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except Exception:
            # The first error says more, and the sandbox ends after its time.
            if error is None:
                raise

    def __repr__(self) -> str:
        state = " closed" if self._is_closed else ""
        return f"<kennel.{type(self).__name__} {self.id} at {self.url}{state}>"

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
    ) -> Completed[Any]:
        """Runs a command and waits for its end, as `Session.run` does, with its keywords but `cold`, and its errors.

        If this raises anything, also `KeyboardInterrupt`, the command is killed. A connection that breaks off is an error
        and no exit status, and no command is run twice.
        """
        if input is not None and stdin is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        if stdin == PIPE:
            raise ValueError("stdin=PIPE: use input=")
        if capture_output:
            stdout = PIPE if stdout is None else stdout
            stderr = PIPE if stderr is None else stderr
        decode = _calls.encoding_of(text, encoding, errors)
        given: Given = None if stdin is None or stdin == DEVNULL else _calls.number_of(stdin)
        if input is not None:
            given = _calls.encoded(input, decode)
        out, err = outputs_of(stdout, stderr)
        command = Command(self._opened, *_remote.words_of(args, shell, cwd, env), timeout)
        end, report = command.run(given, out, err)
        return _calls.completed(
            args,
            end,
            report,
            out.contents(),
            None if err is out else err.contents(),
            encoding=decode,
            timeout=timeout,
            check=check,
            truncate=truncate,
            cwd=cwd,
        )

    # Files. Paths are those inside; relative ones start at `/home/user`.

    def read(self, path: Argument) -> bytes:
        """The contents of a file."""
        with self._get(path) as answer:
            return b"".join(answer.pieces())

    def read_text(self, path: Argument, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The contents of a file as text."""
        return self.read(path).decode(encoding, errors)

    def write(self, path: Argument, data: bytes | bytearray | memoryview, mode: int | None = None) -> None:
        """Writes a file: whole, or not at all. It makes directories above the file; a command sets `mode` afterwards."""
        self._put(path, bytes(data))
        if mode is not None:
            self._set_mode(path, mode)

    def write_text(
        self, path: Argument, text: str, encoding: str = "utf-8", errors: str = "strict", mode: int | None = None
    ) -> None:
        """Writes text to a file."""
        self.write(path, text.encode(encoding, errors), mode)

    def list(self, path: Argument = ".") -> list[Entry]:
        """The entries of a directory, sorted by name."""
        found = self._call("ListDir", path).get("entries")
        if not isinstance(found, list):
            raise malformed()
        entries = [(text_of(each, "name"), _stat(each)) for each in found]
        return sorted((Entry(name, stat.kind, stat.size) for name, stat in entries), key=lambda entry: entry.name)

    def stat(self, path: Argument) -> Stat:
        """What is at a path. A link is followed."""
        entry = self._entry(path)
        for _ in range(_MOST_LINKS):
            if "symlinkTarget" not in entry:
                return _stat(entry)
            target = text_of(entry, "symlinkTarget")
            entry = self._entry(path, target)
        raise file_error(f"look at {os.fsdecode(path)}: {os.strerror(errno.ELOOP)}", errno.ELOOP, os.fsdecode(path))

    def _entry(self, path: Argument, at: Argument | None = None) -> dict[str, Any]:
        """What the server says about a path; `at` is where it leads."""
        entry = self._call("Stat", path, at).get("entry")
        if not isinstance(entry, dict):
            raise malformed()
        return entry

    def exists(self, path: Argument) -> bool:
        """Whether something is at a path, as far as commands see."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def mkdir(self, path: Argument, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory, as `pathlib.Path.mkdir` does."""
        above, shown = _files.above(path), os.fsdecode(path)
        if above and not parents:
            # The server would make it.
            self._entry(path, above)
        try:
            self._call("MakeDir", path)
        except FileError:
            if not self.exists(path):
                raise
            if not exist_ok or not self.stat(path).is_dir:
                message = f"make directory {shown}: {os.strerror(errno.EEXIST)}"
                raise ExistsError(message, errno=errno.EEXIST, path=shown) from None

    def remove(self, path: Argument) -> None:
        """Removes a file, a link or an empty directory."""
        # The server removes full directories, too, and does not tell that nothing was there.
        if _stat(self._entry(path)).is_dir and self.list(path):
            shown = os.fsdecode(path)
            raise file_error(f"remove {shown}: {os.strerror(errno.ENOTEMPTY)}", errno.ENOTEMPTY, shown)
        self._call("Remove", path)

    def copy_in(self, host: str | os.PathLike[str], path: Argument) -> None:
        """Copies a file of this machine into the sandbox, with its permissions."""
        with open(host, "rb", 0) as source:
            self._put(path, source.fileno())
            self._set_mode(path, os.fstat(source.fileno()).st_mode & 0o777)

    def copy_out(self, path: Argument, host: str | os.PathLike[str]) -> None:
        """Copies a file of the sandbox to this machine. It replaces what is at `host`, also a link, once it is complete."""
        mode = self.stat(path).mode & 0o777
        with self._get(path) as answer, _files.replaced(host, mode) as target:
            for piece in answer.pieces():
                _launch.write_all(target, piece)

    def _call(self, name: str, path: Argument, at: Argument | None = None) -> dict[str, Any]:
        body = {"path": path_of(path if at is None else at)}
        return self._opened.call(f"filesystem.Filesystem/{name}", body, os.fsdecode(path))

    def _get(self, path: Argument) -> Answer:
        answer = self._opened.inside("GET", f"/files?path={quote(path_of(path), safe='')}", {}, seconds=None)
        if answer.status == 200:
            return answer
        with answer:
            raise self._sandbox.refused(answer, os.fsdecode(path))

    def _put(self, path: Argument, data: bytes | int) -> None:
        target, headers = f"/files?path={quote(path_of(path), safe='')}", {"Content-Type": "application/octet-stream"}
        with self._opened.inside("POST", target, headers, pieces_of(data), seconds=None) as answer:
            if answer.status != 200:
                raise self._sandbox.refused(answer, os.fsdecode(path))
            answer.whole()

    def _set_mode(self, path: Argument, mode: int) -> None:
        done = self.run(["chmod", f"{mode & 0o7777:o}", "--", path_of(path)], text=True)
        if done.returncode:
            raise file_error(done.stderr.strip(), errno.EPERM, os.fsdecode(path))

    # The sandbox.

    def changes(self) -> builtins.list[Change]:
        """What commands changed in the overlay of the sandbox, whose template has `files`."""
        answer = _connect.parsed(self._opened.control("GET", f"/v1/sandboxes/{self.id}/changes"))
        return _changes(answer, "changes")

    def commit(self, paths: Iterable[Argument] = (), overwrite: bool = False) -> Committed:
        """Applies changes of the overlay to the files of the template: all of them, or those at and below `paths`.

        The template must allow it. The next sandboxes of the template begin with what was applied.
        """
        if isinstance(paths, (str, bytes)):
            raise TypeError("paths must be a list of paths")
        named = [_wire.path_to_text(path) for path in paths]
        body = {"overwrite": overwrite, **({"paths": named} if named else {})}
        answer = _connect.parsed(self._opened.control("POST", f"/v1/sandboxes/{self.id}/commit", body))
        lists = {name: _changes(answer, name) for name in ("applied", "refused", "left")}
        return Committed(**lists, denials=[_of(Denial, each) for each in answer.get("denials") or ()])

    def renew(self, seconds: float) -> None:
        """Lets the sandbox live that many seconds from now."""
        self._opened.control("POST", f"/sandboxes/{self.id}/timeout", {"timeout": math.ceil(seconds)})


def _end(sandbox: _remote.Sandbox, owner: int) -> None:
    """Ends a sandbox, unless this is a copy in a forked process."""
    if owner == os.getpid():
        try:
            sandbox.control("DELETE", f"/sandboxes/{sandbox.id}", seconds=_remote.SHORT_SECONDS)
        except SessionLost:
            pass


def _forget(sandbox: _remote.Sandbox, owner: int) -> None:
    """Ends a sandbox that nobody closed. If that fails there is nobody to tell, and it ends after its time."""
    try:
        _end(sandbox, owner)
    except Error:
        pass


def _changes(answer: dict[str, Any], name: str) -> list[Change]:
    found = answer.get(name)
    if not isinstance(found, list):
        raise malformed()
    return [change_of(each) for each in found]


def _stat(entry: Any) -> Stat:
    """A file of an answer. What a link has as its kind there is the kind of its target."""
    kind, size, modified = (text_of(entry, name) for name in ("type", "size", "modifiedTime"))
    seconds, _, fraction = modified.rstrip("Z").partition(".")
    try:
        at = datetime.fromisoformat(seconds).replace(tzinfo=timezone.utc)
        modified_ns = int(at.timestamp()) * 10**9 + int(f"{fraction:0<9.9}")
        kind = "link" if "symlinkTarget" in entry else _KINDS.get(kind, "other")
        return Stat(kind, int(size), number_of(entry, "mode"), modified_ns)
    except (ValueError, OverflowError):
        raise malformed() from None
