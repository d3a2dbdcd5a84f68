"""A command in a sandbox of a server: its stream, its input, its output and its end."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kennel import _calls, _connect, _connection, _http, _launch, _wire
from kennel._calls import DEVNULL, PIPE, STDOUT, File
from kennel._connect import Refused, decoded, encoded, malformed, number_of, text_of
from kennel._remote import SHORT_SECONDS, Sandbox, contents
from kennel.errors import Error, PolicyError, SessionError, SessionLost
from kennel.results import Completed

MOST_KEPT = 64 << 20
"""Bytes that `run` keeps of each stream, as a session does."""

_PING_SECONDS = 15
"""Silence after which the server says that a command still runs."""

_LOOK_MILLISECONDS = 100
"""How often somebody who waits for input looks whether the command has ended."""

_STREAMED = {"Content-Type": _connect.STREAMED}
# Names of signals that the server takes from Go; all others are those of the system.
_SIGNALS = {"killed": 9, "terminated": 15, "interrupt": 2, "segmentation fault": 11, "aborted": 6}
_START_CODES = {"not_found": 127, "permission_denied": 126, "invalid_argument": 125}

Given = bytes | int | None
"""Input of a command: contents, or a descriptor."""


class Input:
    """Sends input to a command while its output is read."""

    def __init__(self, sandbox: Sandbox, tag: str, data: bytes | int, failed: Callable[[], None]) -> None:
        """`failed` is called if the input does not arrive: the command might wait for it for ever."""
        self.error: Exception | None = None
        self._sandbox = sandbox
        self._process = {"process": {"tag": tag}}
        self._data = data
        self._failed = failed
        self._lock = threading.Lock()
        self._connection: _http.Connection | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._send, name="kennel-input", daemon=True)
        self._thread.start()

    def _frames(self) -> Iterator[bytes]:
        yield _connect.frame({"start": self._process})
        for piece in pieces_of(self._data, self._await):
            yield _connect.frame({"data": {"input": {"stdin": encoded(piece)}}})

    def _await(self, descriptor: int) -> bool:
        """Waits until there is something to read; false once the command has ended."""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not self._is_over:
            if poll.poll(_LOOK_MILLISECONDS):
                return True
        return False

    def _use(self, connection: _http.Connection | None) -> None:
        with self._lock:
            self._connection = connection
            if self._is_over and connection is not None:
                connection.break_off()

    def _send(self) -> None:
        # The command may take its time.
        keys: dict[str, Any] = {"seconds": None, "silence": None, "opened": self._use}
        target = "/process.Process/StreamInput"
        try:
            with self._sandbox.inside("POST", target, _STREAMED, self._frames(), **keys) as answer:
                answer.whole()
                # From here on it may be that of another call.
                self._use(None)
            self._sandbox.call("process.Process/CloseStdin", self._process)
        except (PolicyError, SessionLost):
            # The command does not read it, or has ended, as its stream tells.
            pass
        except Exception as error:
            with self._lock:
                if not self._is_over:
                    self.error = error
                    self._failed()

    def stop(self) -> None:
        """Ends the sending: the command has ended."""
        with self._lock:
            self._is_over = True
            if self._connection is not None:
                self._connection.break_off()
        self._thread.join(SHORT_SECONDS)


def pieces_of(data: bytes | int, is_ready: Callable[[int], bool] = lambda _: True) -> Iterator[bytes]:
    """Contents in pieces; those of a descriptor from where it is, while it is ready."""
    if isinstance(data, bytes):
        yield from (data[start : start + _http.PIECE] for start in range(0, len(data), _http.PIECE))
        return
    while is_ready(data) and (piece := os.read(data, _http.PIECE)):
        yield piece


class Output:
    """Where a stream of a command goes: it is kept up to a bound, written to a file, or dropped."""

    def __init__(self, file: File, inherited: int) -> None:
        self.kept = bytearray() if file == PIPE else None
        self.count = 0
        self._file = None if file in (PIPE, DEVNULL) else inherited if file is None else _calls.number_of(file)

    def add(self, data: bytes) -> None:
        """Takes a piece."""
        self.count += len(data)
        if self.kept is not None:
            self.kept += data[: MOST_KEPT - len(self.kept)]
        elif self._file is not None:
            _launch.write_all(self._file, data)

    @property
    def is_cut(self) -> bool:
        """Whether something of it was not kept."""
        return self.kept is not None and self.count > len(self.kept)

    def contents(self) -> bytes | None:
        """What was kept."""
        return None if self.kept is None else bytes(self.kept)


def outputs_of(stdout: File, stderr: File) -> tuple[Output, Output]:
    """Where the two streams of a command go."""
    if stdout == STDOUT:
        raise ValueError("STDOUT can only be used for stderr")
    out = Output(stdout, 1)
    return out, out if stderr == STDOUT else Output(stderr, 2)


class Command:
    """A command in a sandbox, from its start to its end."""

    def __init__(
        self, sandbox: Sandbox, words: list[str], directory: str, variables: Mapping[str, str], timeout: float | None
    ) -> None:
        self._sandbox = sandbox
        self._process = {"cmd": words[0], "args": words[1:], "cwd": directory, "envs": dict(variables)}
        self._timeout = timeout
        # It is killed by this word, as its number may not have arrived.
        self._tag = f"kennel-{secrets.token_hex(8)}"
        self._pid = 0
        self._may_run = True
        self._input: Input | None = None

    def run(self, given: Given, out: Output, err: Output) -> tuple[_wire.Ended, bytes]:
        """Runs it. Returns its end and its report. If this raises, the command is killed."""
        headers = {**_STREAMED, "Keepalive-Ping-Interval": str(_PING_SECONDS)}
        late = None
        if self._timeout is not None:
            headers["Connect-Timeout-Ms"] = str(_wire.milliseconds(self._timeout))
            late = max(0.0, self._timeout) + _connection.MARGIN_SECONDS
        body = _connect.frame({"process": self._process, "stdin": given is not None, "tag": self._tag})
        try:
            with self._sandbox.inside("POST", "/process.Process/Start", headers, body, seconds=late) as answer:
                self._may_run = answer.status == 200
                if not self._may_run:
                    raise self._sandbox.refused(answer)
                return self._follow(answer, given, out, err)
        except BaseException as error:
            if self._may_run and not isinstance(error, SessionLost):
                self._kill()
            raise

    def _follow(self, answer: _http.Answer, given: Given, out: Output, err: Output) -> tuple[_wire.Ended, bytes]:
        try:
            for message in _connect.messages(answer.pieces()):
                event = message.get("event")
                if not isinstance(event, dict):
                    raise malformed()
                if "start" in event:
                    self._pid = number_of(event["start"], "pid")
                    if given is not None and self._input is None:
                        self._input = Input(self._sandbox, self._tag, given, answer.break_off)
                elif "data" in event:
                    data = event["data"]
                    is_out = isinstance(data, dict) and "stdout" in data
                    (out if is_out else err).add(decoded(text_of(data, "stdout" if is_out else "stderr")))
                elif "end" in event:
                    return self._ended(event["end"], out, err)
        except Refused as refused:
            return self._refused(refused, out, err)
        except SessionError:
            if self._input is not None and self._input.error is not None:
                raise self._input.error from None
            raise
        finally:
            # Before the connection may be that of another call.
            if self._input is not None:
                self._input.stop()
        raise malformed()

    def _ended(self, end: Any, out: Output, err: Output) -> tuple[_wire.Ended, bytes]:
        code, number = number_of(end, "exitCode"), 0
        if end.get("exited") is not True:
            number = _signal_of(text_of(end, "status").removeprefix("signal: "))
            code = 128 + number
        report = self._report()
        if not report and code in (126, 127) and "error" in end:
            report = {"ended": "failed", "exit_code": code, "failure": {"message": text_of(end, "error")}}
        return ended(code, number, report, out, err)

    def _refused(self, refused: Refused, out: Output, err: Output) -> tuple[_wire.Ended, bytes]:
        """The end of a command that has no status of its own."""
        if refused.code == "deadline_exceeded" and self._pid:
            return ended(124, 0, self._report() or {"ended": "timed_out", "exit_code": 124}, out, err)
        self._may_run = self._pid > 0
        code = _START_CODES.get(refused.code)
        if self._may_run or code is None:
            raise self._sandbox.lost(refused.message)
        return ended(code, 0, {"ended": "failed", "exit_code": code, "failure": {"message": refused.message}}, out, err)

    def _report(self) -> dict[str, Any]:
        """The report. A server may have forgotten it, or have none; how the command ended is known without it."""
        target = f"/v1/sandboxes/{self._sandbox.id}/commands/{self._pid}/report"
        try:
            return _connect.parsed(self._sandbox.control("GET", target, seconds=SHORT_SECONDS))
        except Error:
            return {}

    def _kill(self) -> None:
        """Kills the command, which may just be starting. One that cannot be reached has its timeout."""
        message = {"process": {"tag": self._tag}, "signal": "SIGNAL_SIGKILL"}
        for pause in (0.0,) if self._pid else (0.0, 0.1, 0.5):
            time.sleep(pause)
            try:
                # With a name for what is missing, 404 is not about the sandbox.
                self._sandbox.call("process.Process/SendSignal", message, self._tag, seconds=SHORT_SECONDS, again=1)
                return
            except FileNotFoundError:
                continue
            except Error:
                return


def _signal_of(word: str) -> int:
    """A signal by the word of the server.

    >>> _signal_of("killed"), _signal_of("SIGHUP"), _signal_of("34")
    (9, 1, 34)
    """
    try:
        return _SIGNALS.get(word) or (int(word) if word.isdecimal() else int(signal.Signals[word]))
    except (KeyError, ValueError):
        raise malformed() from None


def ran(
    answer: Mapping[str, Any],
    args: Any,
    *,
    encoding: tuple[str, str] | None,
    timeout: float | None,
    check: bool,
    truncate: bool,
    cwd: Any,
) -> Completed[Any]:
    """What `Session.run` returns, with the files, of an answer of `/v1/run`."""
    report = answer.get("report")
    number = number_of(report, "signal") if isinstance(report, dict) and report.get("signal") else 0
    end, told = ended(number_of(report, "exit_code"), number, report or {})
    done = _calls.completed(
        args,
        end,
        told,
        contents(answer.get("stdout")),
        contents(answer.get("stderr")),
        encoding=encoding,
        timeout=timeout,
        check=check,
        truncate=truncate,
        cwd=cwd,
    )
    files = answer.get("files") or ()
    done.files = {text_of(file, "path"): contents(file.get("content")) for file in files}
    return done


def ended(
    code: int, number: int, report: dict[str, Any], out: Output | None = None, err: Output | None = None
) -> tuple[_wire.Ended, bytes]:
    """An end as a session tells it, and its report, which says at least how the command ended."""
    report = report or {"ended": "signaled" if number else "exited", "exit_code": code, "signal": number or None}
    if out is not None and err is not None and (out.is_cut or err.is_cut):
        report = report | {"truncated": True, "stdout_bytes": out.count, "stderr_bytes": err.count}
    text = json.dumps(report, separators=(",", ":")).encode()
    return _wire.Ended(code, number, b"", len(text), None, None, b""), text
