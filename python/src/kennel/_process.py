"""What a running command is, for both faces of a session: its start, the messages about it, and its end."""

from __future__ import annotations

import os
import signal
from typing import Any

from kennel import _calls, _connection, _wire
from kennel._calls import DEVNULL, PIPE, STDOUT, Arguments, Environment, File
from kennel._session import SessionBase
from kennel._wire import Argument
from kennel.errors import SessionClosed
from kennel.results import Completed, Outcome


class Streams:
    """The descriptors of a command's stdin, stdout and stderr, and our ends of its pipes."""

    def __init__(self, stdin: File, stdout: File, stderr: File, is_terminal: bool) -> None:
        self.given = _connection.Descriptors()
        self.ours: list[int | None] = [None, None, None]
        try:
            if is_terminal:
                if (stdin, stdout, stderr) != (None, None, None):
                    raise ValueError("a command with a terminal has its streams there")
                for _ in range(3):
                    self.given.add_null(os.O_RDWR)
                return
            self._add_input(stdin)
            self._add_output(1, stdout)
            self._add_output(2, stderr)
        except BaseException:
            self.close()
            raise

    def _add_input(self, stdin: File) -> None:
        if stdin is None or stdin == DEVNULL:
            self.given.add_null()
        elif stdin == PIPE:
            theirs, self.ours[0] = os.pipe()
            self._add(theirs)
        else:
            self.given.sent.append(_calls.number_of(stdin))

    def _add_output(self, number: int, file: File) -> None:
        if file is None:
            self.given.sent.append(number)
        elif file == DEVNULL:
            self.given.add_null(os.O_WRONLY)
        elif file == PIPE:
            self.ours[number], theirs = os.pipe()
            self._add(theirs)
        elif file == STDOUT:
            if number == 1:
                raise ValueError("STDOUT can only be used for stderr")
            self.given.sent.append(self.given.sent[1])
        else:
            self.given.sent.append(_calls.number_of(file))

    def _add(self, descriptor: int) -> None:
        self.given.own.append(descriptor)
        self.given.sent.append(descriptor)

    def close(self) -> None:
        """Closes everything."""
        _connection.close_all(self.given.own + [each for each in self.ours if each is not None])
        self.given.own.clear()
        self.ours = [None, None, None]


class ProcessBase:
    """A command that runs, or has ended. A face waits for messages, and gives them to `_take`."""

    returncode: int | None = None
    """The exit status; negative if a signal ended the command; `None` while it runs."""

    _connection: Any = None
    _end: _wire.Ended | None = None
    _report = b""
    _has_terminal = False

    def __init__(self, session: SessionBase, args: Arguments, cwd: Argument | None) -> None:
        self.args = args
        self._cwd = cwd
        self._session = session
        self._creator = os.getpid()

    async def _begin(
        self,
        stdin: File,
        stdout: File,
        stderr: File,
        *,
        shell: bool,
        env: Environment,
        terminal: tuple[int, int] | None,
        cold: bool,
        timeout: float | None,
    ) -> Streams:
        """Starts the command. The caller closes what it does not take of the streams."""
        await self._session._know_directory(self._cwd)
        packet, long_call = self._session._packet(
            self.args,
            shell=shell,
            cwd=self._cwd,
            env=env,
            timeout=timeout,
            wishes=_wire.WANTS_REPORT | _wire.UNMARKED | (_wire.COLD if cold else 0),
            terminal=terminal,
        )
        streams = Streams(stdin, stdout, stderr, terminal is not None)
        try:
            with streams.given as given:
                if long_call is not None:
                    given.add_memfd(long_call)
                self._connection = await self._session._open()
                _connection.send(self._connection, packet, given.sent)
        except BaseException:
            streams.close()
            self._disconnect(kill=True)
            raise
        return streams

    def _take(self, packet: bytes, received: list[int]) -> None:
        """Takes a message."""
        end = _wire.ended(packet)
        if end is not None:
            self._report = _calls.parts_of(end, received)[0]
            self._end = end
            self._disconnect(kill=False)
        elif _wire.number_of(packet) == _wire.TERMINAL and received and not self._has_terminal:
            self._has_terminal = True
            self._take_terminal(received.pop())
            # The command may read from its terminal now. If it has tried to before, it was stopped, and goes on.
            _connection.send(self._connection, _wire.request(_wire.FOREGROUND, 1))
            _connection.send(self._connection, _wire.request(_wire.SIGNAL, signal.SIGCONT))
        elif _wire.number_of(packet) != _wire.STOPPED:
            raise _wire.malformed()

    def _take_terminal(self, descriptor: int) -> None:
        """Takes the other side of the command's terminal."""
        raise NotImplementedError

    def _ended(self) -> _wire.Ended:
        assert self._end is not None
        return self._end

    def _finish(self) -> int:
        """Sets and returns the exit status, or raises the error of a command that did not start."""
        done = _calls.completed(
            self.args,
            self._ended(),
            self._report,
            None,
            None,
            encoding=None,
            timeout=None,
            check=False,
            truncate=True,
            cwd=self._cwd,
        )
        self.returncode = done.returncode
        return done.returncode

    def _outcome(self) -> Outcome:
        message = self._ended().message
        if not self._report:
            return Completed(self.args, self._finish(), message=message).outcome
        return Outcome.parse(self._report, message.decode("utf-8", "replace").strip())

    def _connected(self) -> Any:
        """The connection of a command that runs."""
        if self._connection is None:
            raise SessionClosed("the command was closed")
        return self._connection

    def _disconnect(self, kill: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if kill and self._creator == os.getpid():
            _connection.abandon(connection)
        else:
            connection.close()

    def send_signal(self, sig: int) -> None:
        """Sends a signal to the command. It is no error if the command has ended."""
        number = _calls.signal_number(sig)
        connection = self._connection
        if connection is not None:
            _connection.send(connection, _wire.request(_wire.SIGNAL, number))

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        if self._connection is not None:
            self._disconnect(kill=True)

    def __repr__(self) -> str:
        return f"<kennel.{type(self).__name__} {self.args!r} returncode={self.returncode}>"
