"""Questions to a session: what to ask, and what the answer means. No I/O, so that both kinds of session share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kennel import _remedy, _wire
from kennel._wire import Argument, path_of_text, path_to_text, question
from kennel.errors import Error, PolicyError, SessionError, Unsupported, file_error
from kennel.results import (
    Committed,
    Denial,
    Description,
    DetachedInfo,
    Entry,
    Interpreter,
    Process,
    Published,
    Stat,
    Stats,
    _of,
    change_of,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Question(Generic[T]):
    """A question, and what its answer means."""

    text: bytes
    read: Callable[[Any], T]
    path: str | None = None
    """The path that an error names."""

    def packet(self) -> tuple[bytes, bytes | None]:
        """The packet, and the text for a memfd if it does not fit."""
        head = _wire.request(_wire.QUESTION, _wire.VERSION, len(self.text))
        if len(head) + len(self.text) <= _wire.LONGEST_PACKET:
            return head + self.text, None
        return head, self.text

    def result(self, text: bytes) -> T:
        """The result that an answer has, or its error."""
        answer = _wire.parsed(text)
        if not isinstance(answer, dict):
            raise _wire.malformed()
        if "error" in answer:
            raise self._error(answer["error"])
        try:
            return self.read(answer["ok"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _wire.malformed() from None

    def _error(self, error: Any) -> Error:
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            return _wire.malformed()
        error = _remedy.within(error)
        message, hint, failure = error["message"], error.get("hint"), error.get("failure")
        number = error.get("errno")
        if isinstance(number, int) and self.path is not None:
            # An error of a connection does not name its port.
            named = message if self.path in message else f"{self.path}: {message}"
            return file_error(named, number, self.path, hint, failure)
        kind = {
            "capability_denied": PolicyError,
            "spawn_sandbox_unavailable": Unsupported,
        }.get(failure.get("class", "") if isinstance(failure, dict) else "", SessionError)
        return kind(message, hint=hint, failure=failure)


def _null(_: Any) -> None:
    return None


def _all(kind: type[T], **decoded: Callable[[Any], Any]) -> Callable[[Any], list[T]]:
    """A reader of a list of objects, some of whose fields are decoded."""

    def read(values: Any) -> list[T]:
        return [_of(kind, {**each, **{name: by(each[name]) for name, by in decoded.items()}}) for each in values]

    return read


def _shown(path: Argument) -> str:
    return path_of_text(path_to_text(path))


def _on(path: Argument, do: str, read: Callable[[Any], T], **keys: Any) -> Question[T]:
    return Question(question(do, path=path_to_text(path), **keys), read, _shown(path))


def stat(path: Argument) -> Question[Stat]:
    """What is at a path."""
    return _on(path, "stat", lambda values: _of(Stat, values))


def entries(path: Argument) -> Question[list[Entry]]:
    """What is in a directory."""
    return _on(path, "list", _all(Entry, name=path_of_text))


def read(path: Argument) -> Question[Stat]:
    """A file, open for reading."""
    return _on(path, "read", lambda values: _of(Stat, values))


def write(path: Argument, mode: int | None) -> Question[None]:
    """A new file, open for writing."""
    return _on(path, "write", _null, **({} if mode is None else {"mode": mode}))


def mkdir(path: Argument) -> Question[None]:
    """A new directory."""
    return _on(path, "mkdir", _null)


def remove(path: Argument) -> Question[None]:
    """The end of a file, a link or an empty directory."""
    return _on(path, "remove", _null)


def describe() -> Question[Description]:
    """What the session was prepared with."""

    def read(values: Any) -> Description:
        paths = {name: path_of_text(values[name]) for name in ("workspace", "directory")}
        return _of(Description, {**_remedy.within(values), **paths})

    return Question(question("describe"), read)


def stats() -> Question[Stats]:
    """Numbers."""
    return Question(question("stats"), lambda values: _of(Stats, values))


def processes() -> Question[list[Process]]:
    """The processes of commands."""
    return Question(question("processes"), lambda values: _all(Process)(values["processes"]))


def interpreters() -> Question[list[Interpreter]]:
    """The interpreters of the policy. An old session has none."""
    return Question(question("processes"), lambda values: _all(Interpreter)(values.get("interpreters", ())))


def detached() -> Question[list[DetachedInfo]]:
    """Commands that stay."""
    return Question(question("detached"), _all(DetachedInfo))


def published() -> Question[list[Published]]:
    """Published ports."""
    return Question(question("published"), _all(Published))


def publish(port: str | int) -> Question[Published]:
    """Another published port."""
    return Question(question("publish", port=str(port)), lambda values: _of(Published, values))


def connect(port: int) -> Question[None]:
    """A connection to a port inside."""
    return Question(question("connect", port=port), _null, f"port {port}")


def changes() -> Question[list[Any]]:
    """The changes of the overlay."""
    return Question(question("changes"), lambda values: [change_of(each) for each in values])


def commit(paths: Iterable[Argument], overwrite: bool) -> Question[Committed]:
    """Changes become those of the workspace."""

    def read(values: Any) -> Committed:
        lists = {name: [change_of(each) for each in values[name]] for name in ("applied", "refused", "left")}
        return _of(Committed, {**lists, "denials": _all(Denial)(_remedy.within(values["denials"]))})

    if isinstance(paths, (str, bytes)):
        raise TypeError("paths must be a list of paths")
    return Question(question("commit", paths=[path_to_text(path) for path in paths], overwrite=overwrite), read)


def discard() -> Question[None]:
    """The changes go, and the session ends."""
    return Question(question("discard"), _null)


def end_shell(shell: str) -> Question[None]:
    """The end of a shell."""
    return Question(question("end_shell", shell=shell), _null)
