"""What both kinds of session share: where they are, who ends them, and what their calls look like."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kennel import _calls, _launch, _wire
from kennel._calls import Arguments, Environment
from kennel._wire import Argument
from kennel.errors import SessionClosed
from kennel.policy import Policy

PolicyLike = Policy | Mapping[str, Any] | str | os.PathLike[str] | None


class SessionBase:
    """The state of a session: a socket's path, and for the process that started it a `Host`."""

    _host: _launch.Host | None = None
    _end: weakref.finalize[Any, Any] | None = None
    _is_closed = False
    _directory: str | None = None

    name: str
    """The session's name, as `kennel session list` shows it."""
    socket_path: str
    """The path of its socket."""

    def _attach(self, name: str) -> None:
        """Finds a session that runs already, by its name or the path of its socket."""
        path = Path(name) if os.path.isabs(name) else _launch.runtime_directory() / f"{name}.sock"
        _launch.check_directory(path.parent)
        self.name = path.name.removesuffix(".sock")
        self.socket_path = str(path)

    def _begin(self, policy: Policy, name: str | None, idle: float | None = None) -> _launch.Host:
        """Starts the process of the session."""
        self.name = name or _launch.new_name()
        host = _launch.Host(policy.to_json().encode(), self.name, idle)
        self._host = host
        return host

    def _takes_commands(self, socket_path: str) -> None:
        """From now on the session is this object's, until `_end` is called, this object is gone, or the program ends."""
        assert self._host is not None
        _launch.check_directory(Path(socket_path).parent)
        self.socket_path = socket_path
        self._end = weakref.finalize(self, self._host.end)

    def _close(self) -> None:
        self._is_closed = True
        if self._end is not None:
            self._end()

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionClosed(f"session {self.name} is closed")

    def _gone(self, error: SessionClosed) -> SessionClosed:
        """The error of a session that has ended, with what its process said."""
        if self._host is not None and self._host.owner == os.getpid() and not self._is_closed:
            status = self._host.process.poll()
            said = self._host.said().strip()
            if status is not None:
                text = f"session {self.name} has ended: status {status}"
                return SessionClosed(f"{text}: {said}" if said else text, hint=error.hint)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process uses the session, and does not end it."""
        return _attached, (type(self), self.socket_path)

    def __repr__(self) -> str:
        state = " closed" if self._is_closed else ""
        return f"<kennel.{type(self).__name__} {self.name}{state}>"

    def _packet(
        self,
        args: Arguments,
        *,
        shell: bool,
        cwd: Argument | None,
        env: Environment,
        timeout: float | None,
        wishes: int,
        terminal: tuple[int, int] | None = None,
    ) -> tuple[bytes, bytes | None]:
        """The packet of a command, and what a memfd has to hold if it is too long."""
        call = _wire.call(
            _calls.words(args, shell),
            directory=_calls.directory(cwd, self._directory),
            timeout_ms=_wire.milliseconds(timeout),
            environment=env,
            wishes=wishes,
            terminal=0 if terminal is None else 7,
            window=0 if terminal is None else terminal[0] << 16 | terminal[1],
        )
        return _calls.first_packet(call, _wire.COMMAND, _wire.COMMAND_IN_MEMFD)

    def _needs_directory(self, cwd: Argument | None) -> bool:
        """Whether the session's own directory must be known first."""
        return cwd is not None and self._directory is None and not os.path.isabs(os.fspath(cwd))


def _attached(kind: type[SessionBase], path: str) -> SessionBase:
    session = kind.__new__(kind)
    session._attach(path)
    return session
