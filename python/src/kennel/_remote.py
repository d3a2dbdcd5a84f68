"""A sandbox of a server: how it is asked for, and what answers mean. `kennel.Remote` and `remote_run` are built on it."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kennel import _calls, _connect, _http, _wire
from kennel._calls import Arguments, Environment
from kennel._connect import decoded, encoded, text_of
from kennel._http import Answer, Server
from kennel._wire import Argument
from kennel.errors import Error, PolicyError, SessionError, SessionLost, Unsupported, file_error

HOME = "/home/user"
"""Where commands and relative paths begin."""

JSON = {"Content-Type": "application/json"}
SHORT_SECONDS = 10.0
"""How long the server may take for what nobody waits for long."""

_LOST_SECONDS = 2.0
"""How long the server may take to notice that a sandbox is gone."""

LONGEST_RUN = 512 << 20
"""Bytes of the longest answer of `remote_run`: output and files."""

_ERRNO = {400: errno.EINVAL, 403: errno.EACCES, 404: errno.ENOENT, 409: errno.EEXIST, 413: errno.EFBIG, 507: errno.ENOSPC}


class Sandbox:
    """A sandbox of a server, by its id."""

    def __init__(self, server: Server, sandbox_id: str, key: Mapping[str, str], access: str) -> None:
        self.server = server
        self.id = sandbox_id
        self._key = dict(key)
        self._inside = {"E2b-Sandbox-Id": sandbox_id, "X-Access-Token": access}

    def control(self, method: str, target: str, body: Any = None, seconds: float = _http.SECONDS) -> bytes:
        """Asks the server about the sandbox."""
        text = None if body is None else json.dumps(body).encode()
        with self.server.ask(method, target, self._key | JSON, text, seconds=seconds) as answer:
            if answer.status >= 300:
                raise self.refused(answer)
            return answer.whole()

    def inside(self, method: str, target: str, headers: Mapping[str, str], body: _http.Body = None, **keys: Any) -> Answer:
        """Asks the sandbox. `keys` are those of `Server.ask`."""
        return self.server.ask(method, target, self._inside | dict(headers), body, **keys)

    def call(self, name: str, message: Any, path: str | None = None, **keys: Any) -> dict[str, Any]:
        """A call of one message and one answer. `path` is what an error names, `keys` are those of `Server.ask`."""
        with self.inside("POST", f"/{name}", JSON, json.dumps(message).encode(), **keys) as answer:
            if answer.status != 200:
                raise self.refused(answer, path)
            return _connect.parsed(answer.whole())

    def refused(self, answer: Answer, path: str | None = None) -> Exception:
        """The error of an answer. `path` is what it names."""
        status, reason, message = answer.status, answer.header("x-kennel-reason"), message_of(answer)
        if status in (404, 502) and reason is not None:
            return self._lost(reason)
        if status == 502:
            return self.lost(message)
        if path is not None and status not in (401, 429, 501, 503):
            number = _calls._errno_of(message, _ERRNO.get(status, errno.EIO))
            return file_error(message if path in message else f"{path}: {message}", number, path)
        return SessionLost(message) if status == 404 else error_of(status, message)

    def lost(self, message: str) -> Exception:
        """The error of a sandbox that did not answer: why it ended; or `message`, if it is still there."""
        until = time.monotonic() + _LOST_SECONDS
        while True:
            with self.server.ask("GET", f"/sandboxes/{self.id}", self._key, seconds=SHORT_SECONDS) as answer:
                reason, words = answer.header("x-kennel-reason"), message_of(answer)
            if answer.status != 404:
                return SessionError(message)
            if reason is not None or time.monotonic() > until:
                return self._lost(reason) if reason is not None else SessionLost(words)
            time.sleep(0.1)

    def _lost(self, reason: str) -> SessionLost:
        return SessionLost(f"sandbox {self.id} has ended: {reason}", reason=reason)


def admitted(
    server: Server,
    target: str,
    headers: Mapping[str, str],
    body: Any,
    *,
    seconds: float,
    late: float = 0.0,
    again: int = 0,
    longest: int = _http.LONGEST,
) -> dict[str, Any]:
    """Asks for a new sandbox until there is room: to ask again after a refusal makes no second one.

    It waits for room for that many `seconds`, and `late` seconds longer for the answer, of `longest` bytes at most.
    """
    until = time.monotonic() + seconds
    text = json.dumps(body).encode()
    while True:
        left = max(1.0, until - time.monotonic()) + late
        with server.ask("POST", target, {**headers, **JSON}, text, seconds=left, silence=left, again=again) as answer:
            if answer.status < 300:
                return _connect.parsed(answer.whole(longest))
            message, reason = message_of(answer), answer.header("x-kennel-reason")
        if reason is not None:
            raise SessionLost(message, reason=reason)
        after = answer.header("Retry-After") or ""
        pause = float(after) if after.isdecimal() and len(after) < 6 else None
        if answer.status not in (429, 503) or pause is None or time.monotonic() + pause > until:
            raise error_of(answer.status, message)
        time.sleep(pause)


def message_of(answer: Answer) -> str:
    """What an answer says that is an error."""
    body = answer.whole()
    try:
        return text_of(_connect.parsed(body), "message")[:10_000]
    except SessionError:
        # It comes from something between this process and the server.
        return f"{answer.status} {body[:200].decode('utf-8', 'replace')}".strip()


def error_of(status: int, message: str) -> Error:
    """The error of an answer that is about no file and no sandbox."""
    if status == 401:
        return SessionError(message, hint="pass token=, or set E2B_API_KEY")
    if status == 501:
        return Unsupported(message)
    return PolicyError(message) if status in (400, 403, 404) else SessionError(message)


def key_of(token: str | None) -> dict[str, str]:
    """The header with the key of a client."""
    key = os.environ.get("E2B_API_KEY", "") if token is None else token
    if not (key.isascii() and key.isprintable()):
        raise ValueError("token: no key of a server has such characters")
    return {"X-API-KEY": key} if key else {}


def hosts_of(allow: Iterable[str] | None, deny: Iterable[str]) -> dict[str, list[str]]:
    """Hosts that may be reached, as far as the caller says.

    >>> hosts_of(None, ()), hosts_of([], ["a.example"])
    ({}, {'allow': [], 'deny': ['a.example']})
    """
    if isinstance(allow, str) or isinstance(deny, str):
        raise TypeError("allow and deny must be lists of hosts")
    lists = {"allow": None if allow is None else list(allow), "deny": list(deny) or None}
    return {name: hosts for name, hosts in lists.items() if hosts is not None}


def network_of(hosts: Mapping[str, list[str]]) -> dict[str, Any]:
    """The same as a creation has it.

    >>> network_of({}), network_of({"allow": []}), network_of({"allow": ["a.example"]})
    ({}, {'allow_internet_access': False}, {'network': {'allowOut': ['a.example']}})
    """
    network = {f"{name}Out": found for name, found in hosts.items() if found}
    closed = {"allow_internet_access": False} if hosts.get("allow") == [] else {}
    return {**closed, **({"network": network} if network else {})}


def text(argument: Argument) -> str:
    """A word, a name or a path for a server, which takes UTF-8."""
    given = os.fsdecode(argument)
    if "\0" in given:
        raise ValueError("embedded null byte")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{argument!r}: a server takes UTF-8 only") from None
    return given


def path_of(path: Argument) -> str:
    """A path. The server takes `~` at its start for the directory of the sandbox; a session does not.

    >>> path_of("a"), path_of("~/a")
    ('a', './~/a')
    """
    given = text(path)
    return f"./{given}" if given.startswith("~") else given


def words_of(args: Arguments, shell: bool, cwd: Argument | None, env: Environment) -> tuple[list[str], str, dict[str, str]]:
    """The words of a command, its directory and its variables, checked as a session does."""
    words, directory = _calls.words(args, shell), _calls.directory(cwd, HOME)
    _calls.check_length(_wire.call(words, directory=directory, environment=env))
    return [text(word) for word in words], text(directory), {text(name): text(value) for name, value in (env or {}).items()}


def content(data: bytes | str) -> dict[str, str]:
    """Contents in a request."""
    return {"text": data} if isinstance(data, str) else {"base64": encoded(data)}


def contents(found: Any) -> bytes:
    """Contents of an answer.

    >>> contents({"text": "a"}), contents(content(b"b"))
    (b'a', b'b')
    """
    if isinstance(found, dict) and "base64" in found:
        return decoded(found["base64"])
    return text_of(found, "text").encode()
