"""A session on a node of the cluster, as its client has it. It stays on its node, and ends with it."""

from __future__ import annotations

import builtins
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from kennel._calls import Arguments, Environment
from kennel._wire import Argument
from kennel.errors import SessionClosed, SessionLost
from kennel.results import Completed, Entry, Stat


class Session:
    """`kennel.Session` on a node of the cluster: see `Fleet.session`.

    Every method may be called from any thread. The session ends with `close`, with the `with` block, when its object is
    gone, and with the fleet. A copy in a task or in another actor uses the session and does not end it. Once the node is
    gone, calls raise `kennel.SessionLost`.
    """

    name: str
    """Its name on the node."""
    node: str
    """The id that Ray has given to its node."""

    _is_closed = False

    def __init__(self, actor: Any, node: str, name: str) -> None:
        self._actor, self.node, self.name = actor, node, name
        self._end: weakref.finalize[Any, Any] | None = None

    def ends_with_object(self, then: Callable[[], None]) -> None:
        """Ends the session on its node when this object is closed or gone, and calls `then`."""
        self._end = weakref.finalize(self, _forget, self._actor, self.name, then)
        # The actor ends with the program.
        self._end.atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, (self._actor, self.node, self.name)

    def __repr__(self) -> str:
        state = " closed" if self._is_closed else ""
        return f"<kennel.ray.Session {self.name} on {self.node}{state}>"

    def run(
        self,
        args: Arguments,
        *,
        input: bytes | str | None = None,  # noqa: A002
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        truncate: bool = False,
        env: Environment = None,
        cwd: Argument | None = None,
        shell: bool = False,
        cold: bool = False,
    ) -> Completed[Any]:
        """Runs a command and waits for its end, as `kennel.Session.run` does, with its keywords and errors.

        If this raises anything, also `KeyboardInterrupt`, the command is killed. `timeout` counts from the start of the
        command: before that it may wait until the node runs fewer than `per_node` commands.
        """
        done: Completed[Any] = self._call(
            "run",
            args,
            input=input,
            text=text,
            encoding=encoding,
            errors=errors,
            timeout=timeout,
            check=check,
            truncate=truncate,
            env=env,
            cwd=cwd,
            shell=shell,
            cold=cold,
        )
        return done

    def read(self, path: Argument) -> bytes:
        """The contents of a file."""
        data: bytes = self._call("read", path)
        return data

    def read_text(self, path: Argument, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The contents of a file as text."""
        return self.read(path).decode(encoding, errors)

    def write(self, path: Argument, data: bytes | bytearray | memoryview, mode: int | None = None) -> None:
        """Writes a file: whole, or not at all. `mode` is that of a new file."""
        self._call("write", path, bytes(data), mode)

    def write_text(
        self, path: Argument, text: str, encoding: str = "utf-8", errors: str = "strict", mode: int | None = None
    ) -> None:
        """Writes text to a file."""
        self.write(path, text.encode(encoding, errors), mode)

    def list(self, path: Argument = ".") -> builtins.list[Entry]:
        """The entries of a directory, sorted by name."""
        entries: list[Entry] = self._call("list", path)
        return entries

    def stat(self, path: Argument) -> Stat:
        """What is at a path. A link is not followed."""
        found: Stat = self._call("stat", path)
        return found

    def exists(self, path: Argument) -> bool:
        """Whether something is at a path, as far as commands see."""
        found: bool = self._call("exists", path)
        return found

    def mkdir(self, path: Argument, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory, as `pathlib.Path.mkdir` does."""
        self._call("mkdir", path, parents, exist_ok)

    def remove(self, path: Argument) -> None:
        """Removes a file, a link or an empty directory."""
        self._call("remove", path)

    def close(self) -> None:
        """Ends the session with everything in it. To close it again has no effect, nor to close a copy."""
        self._is_closed = True
        if self._end is None or (found := self._end.detach()) is None:
            return
        _, _, arguments, _ = found
        _finish(*arguments)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if self._is_closed:
            raise SessionClosed(f"session {self.name} is closed")
        return answer_of(self._actor.call.remote(self.name, method, arguments, keywords), f"session {self.name}", self.node)


def _finish(actor: Any, name: str, then: Callable[[], None]) -> None:
    then()
    try:
        ray.get(actor.end.remote(name))
    except RayError:
        # It has ended with its node.
        return


def _forget(actor: Any, name: str, then: Callable[[], None]) -> None:
    """Ends a session that nobody closed. A thread calls Ray, as this may be one of Ray's own."""
    threading.Thread(target=_finish, args=(actor, name, then), name="kennel-ray", daemon=True).start()


def answer_of(call: Any, what: str, node: str) -> Any:
    """Waits for a call of a node. If this is interrupted, the call is cancelled there."""
    try:
        answer = ray.get(call)
    except RayTaskError:
        raise
    except RayError as error:
        raise lost(what, node) from error
    except BaseException:
        ray.cancel(call)
        raise
    if isinstance(answer, Exception):
        raise answer
    return answer


def lost(what: str, node: str, hint: str | None = None) -> SessionLost:
    """The error of what has gone with its node."""
    return SessionLost(f"{what} was lost with node {node} of the cluster", reason="node", hint=hint)
