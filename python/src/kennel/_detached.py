"""What commands that stay and shells do, for both faces of a session."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from kennel import _calls, _connection, _questions, _wire
from kennel._session import SessionBase
from kennel.errors import TimeoutExpired
from kennel.results import Completed, DetachedInfo

Stream = Literal["stdout", "stderr"]
S = TypeVar("S", bound=SessionBase)


class LogsBase:
    """Output of a command that stays, which arrives piece by piece."""

    dropped = 0
    """How many bytes came before and are not kept any more."""

    _connection: Any = None

    async def _open(self, session: SessionBase, request: bytes) -> None:
        self._io = session._io
        self._connection = await session._open()
        _connection.send(self._connection, request)

    async def _next(self) -> tuple[Stream, bytes] | None:
        """The next piece; `None` after the last."""
        while self._connection is not None:
            try:
                packet, received = await self._io.receive(self._connection, None)
                _connection.close_all(received)
                piece = self._take(packet)
            except BaseException:
                self.close()
                raise
            if piece is not None:
                return piece
        return None

    def _take(self, packet: bytes) -> tuple[Stream, bytes] | None:
        number = _wire.number_of(packet)
        if number == _wire.OUTPUT:
            stream, data = _wire.output(packet)
            return "stdout" if stream == 1 else "stderr", data
        if number == _wire.DROPPED:
            self.dropped += _wire.dropped(packet)
        elif _wire.is_done(packet):
            self.close()
        else:
            raise _connection.refusal(packet)
        return None

    def close(self) -> None:
        """Stops reading."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class DetachedBase(Generic[S]):
    """A command that stays, by its number."""

    def __init__(self, session: S, number: int, program: str, info: DetachedInfo | None = None) -> None:
        self._session = session
        self.id = number
        """Its number in the session."""
        self.program = program
        self.info = info
        """What `detached` of the session knew about it."""

    async def _kill(self, sig: int) -> None:
        packet, received = await self._session._exchange(_wire.request(_wire.KILL, self.id, _calls.signal_number(sig)))
        _connection.close_all(received)
        if not _wire.is_done(packet):
            raise _connection.refusal(packet)

    async def _wait(self, timeout: float | None) -> Completed[bytes]:
        with await self._session._open() as connection:
            _connection.send(connection, _wire.request(_wire.WAIT, self.id, _wire.WANTS_REPORT | _wire.AS_DATA))
            try:
                packet, received = await self._session._io.receive(connection, timeout)
            except BlockingIOError:
                assert timeout is not None
                raise TimeoutExpired(self.program, timeout) from None
        try:
            end = _wire.ended(packet)
            if end is None:
                raise _wire.malformed()
            report = _calls.parts_of(end, received)[0]
        finally:
            _connection.close_all(received)
        if not report:
            raise _connection.refusal(packet)
        return _calls.completed(
            self.program, end, report, None, None, encoding=None, timeout=None, check=False, truncate=True
        )

    def __repr__(self) -> str:
        return f"<kennel.{type(self).__name__} {self.id} {self.program!r}>"


class ShellBase(Generic[S]):
    """A shell that keeps its state, by its name."""

    def __init__(self, session: S, name: str) -> None:
        self._session = session
        self.name = name

    async def _run(
        self, snippet: str | bytes, timeout: float | None, decode: tuple[str, str] | None, check: bool, truncate: bool
    ) -> Completed[Any]:
        wishes = _wire.WANTS_REPORT | _wire.COLLECT
        call = _wire.call([self.name, snippet], timeout_ms=_wire.milliseconds(timeout), wishes=wishes)
        packet, long_call = _calls.first_packet(call, _wire.SNIPPET, _wire.SNIPPET_IN_MEMFD)
        with _connection.Descriptors() as given:
            if long_call is not None:
                given.add_memfd(long_call)
            # The shell may need a while to be interrupted, or to be replaced.
            late = None if timeout is None else timeout + _connection.MARGIN_SECONDS
            end, report, out, err = await self._session._collect(packet, given.sent, late)
        return _calls.completed(
            snippet, end, report, out, err, encoding=decode, timeout=timeout, check=check, truncate=truncate
        )

    async def _close(self) -> None:
        await self._session._ask(_questions.end_shell(self.name))

    def __repr__(self) -> str:
        return f"<kennel.{type(self).__name__} {self.name} of {self._session.name}>"
