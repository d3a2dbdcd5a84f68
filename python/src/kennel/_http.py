"""HTTP/1.1 to a server: connections that are kept, deadlines, and bounds on what is taken from it. It knows no route.

`http.client` speaks the protocol. It has no deadline for a whole answer, and hardly a bound; `_Stream` has both.
"""

from __future__ import annotations

import http.client
import io
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from kennel.errors import ProtocolError, SessionError

SECONDS = 60.0
"""How long a server may be silent, and how long it may take for an answer without files or output."""

PIECE = 1 << 18
"""Bytes of one read, and of one piece of an upload."""

LONGEST = 16 << 20
"""Bytes of the longest answer that is read at once, and of the longest message."""

_CONNECT_SECONDS = 10.0
_REFUSED_SECONDS = 1.0
"""How long a server that is not there is tried again: its front may just be started anew."""

_HEAD = 256 << 10
"""Bytes of the longest head of an answer."""

_IDLE_SECONDS = 4.0
"""After that a connection is not used again. The server closes it after 10 seconds, perhaps while a request is sent."""

_MOST_KEPT = 8

_ARRIVE_TWICE = ("GET", "DELETE")
"""Idempotent methods that are used here (RFC 9110, 9.2.2): a kept connection may end while one is sent."""

Body = bytes | Iterable[bytes] | None


class Address:
    """Where a server is."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.path: str | None = None
        self.context: ssl.SSLContext | None = None
        try:
            parts = urlsplit(url)
            self.host, port = parts.hostname or "", parts.port
        except ValueError:
            raise _bad(url) from None
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise _bad(url)
        if parts.scheme == "http+unix":
            self.path, self.host, self.port = unquote(parts.netloc + parts.path), "localhost", 80
            if not os.path.isabs(self.path) or "\0" in self.path:
                raise _bad(url)
            return
        if parts.scheme not in ("http", "https") or not self.host or parts.path not in ("", "/"):
            raise _bad(url)
        if parts.scheme == "https":
            self.context = context or ssl.create_default_context()
        self.port = port or (443 if self.context else 80)

    def connect(self) -> socket.socket:
        """A connection."""
        made: socket.socket
        if self.path is not None:
            made = socket.socket(socket.AF_UNIX)
        else:
            made = socket.create_connection((self.host, self.port), _CONNECT_SECONDS)
        try:
            made.settimeout(_CONNECT_SECONDS)
            if self.path is not None:
                made.connect(self.path)
                return made
            # Else every other request waits 40 ms for an acknowledgement.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made if self.context is None else self.context.wrap_socket(made, server_hostname=self.host)
        except BaseException:
            made.close()
            raise


def _bad(url: str) -> ValueError:
    return ValueError(f"{url!r}: write http://HOST:PORT, https://HOST:PORT or http+unix:///PATH")


class _Stream:
    """A socket for `http.client`: with a time for each wait, one for all of them, and a bound on what arrives."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.silence: float | None = SECONDS
        self.until: float | None = None
        self.left = _HEAD
        self._readers = 0
        self._is_closed = False

    def _be_patient(self) -> None:
        patience = self.silence
        if self.until is not None:
            left = self.until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            patience = left if patience is None else min(left, patience)
        self.socket.settimeout(patience)

    def sendall(self, data: Any) -> None:
        self._be_patient()
        self.socket.sendall(data)

    def receive(self, buffer: Any) -> int:
        self._be_patient()
        count = self.socket.recv_into(buffer)
        self.left -= count
        if self.left < 0:
            raise ProtocolError("the server sends more than an answer of this kind has")
        return count

    def makefile(self, _: str) -> io.BufferedReader:
        self._readers += 1
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        # `http.client` closes a connection that is not kept while it still reads from it.
        self._is_closed = True
        if not self._readers:
            self.socket.close()

    def reader_closed(self) -> None:
        self._readers -= 1
        if self._is_closed:
            self.close()


class _Reader(io.RawIOBase):
    def __init__(self, stream: _Stream) -> None:
        self._stream: _Stream | None = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        assert self._stream is not None
        return self._stream.receive(buffer)

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.reader_closed()
        super().close()


class Connection(http.client.HTTPConnection):
    """A connection to a server, for one request at a time."""

    auto_open = 0

    def __init__(self, address: Address) -> None:
        super().__init__(address.host, address.port, blocksize=PIECE)
        self.default_port = 443 if address.context else 80
        self.stream = _Stream(address.connect())
        self.sock = cast("socket.socket", self.stream)
        self.kept_at = 0.0

    def is_good(self) -> bool:
        """Whether it serves another request: nothing has arrived on it, neither its end nor anything else."""
        if time.monotonic() - self.kept_at > _IDLE_SECONDS:
            return False
        poll = select.poll()
        poll.register(self.stream.socket, select.POLLIN)
        return not poll.poll(0)

    def break_off(self) -> None:
        """Ends it, also under a thread that waits for it."""
        try:
            socket.socket.shutdown(self.stream.socket, socket.SHUT_RDWR)
        except OSError:
            pass


class Answer:
    """An answer whose head is there. Its block keeps the connection if the answer was read to its end."""

    def __init__(self, server: Server, connection: Connection, response: http.client.HTTPResponse) -> None:
        self._server = server
        self._connection = connection
        self._response = response
        self.status = response.status

    def header(self, name: str) -> str | None:
        """A header of the answer."""
        return self._response.headers.get(name)

    def pieces(self) -> Iterator[bytes]:
        """The body, as it comes. If it is cut off, that is an error."""
        response, stream = self._response, self._connection.stream
        if not response.chunked and response.length is None:
            raise ProtocolError(f"{self._server.url}: the length of the answer is missing")
        with self._server.errors():
            while True:
                stream.left = PIECE + _HEAD
                # `read1` of older versions does not count what it has read of a body with a length.
                piece = response.read1(PIECE) if response.chunked else response.read(PIECE)
                if not piece:
                    break
                yield piece
            if response.length:
                raise ConnectionResetError

    def whole(self, longest: int = LONGEST) -> bytes:
        """The body at once."""
        body = bytearray()
        for piece in self.pieces():
            body += piece
            if len(body) > longest:
                raise ProtocolError(f"{self._server.url}: an answer of more than {longest} bytes")
        return bytes(body)

    def break_off(self) -> None:
        """Ends the connection, under whoever reads the answer."""
        self._connection.break_off()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._drain()
        is_whole = self._response.isclosed() and not self._response.will_close
        self._response.close()
        if is_whole:
            self._server.keep(self._connection)
        else:
            self._connection.close()

    def _drain(self) -> None:
        """Reads what follows the last message of a stream, if it is there: a mark of its end."""
        self._connection.stream.until = time.monotonic() + 0.2
        try:
            while self._response.chunked and self._response.read1(PIECE):
                pass
        except (OSError, http.client.HTTPException, ProtocolError):
            pass


class Server:
    """A server, with its connections that are kept. Every thread may use it."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        self._address = Address(url, context)
        self._kept: list[Connection] = []
        self._owner = os.getpid()
        self.url = url

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Body = None,
        *,
        seconds: float | None = SECONDS,
        silence: float | None = SECONDS,
        again: int = 0,
        opened: Callable[[Connection], None] | None = None,
    ) -> Answer:
        """Sends a request, and waits for the head of its answer.

        `seconds` is the time until the end of the answer, `silence` that of one wait. The request leaves this process once,
        and `again` times more if it gets no answer: for requests that may arrive twice. `GET` and `DELETE` always may.
        """
        if method in _ARRIVE_TWICE:
            again = max(again, 1)
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            connection = self._connection()
            if opened is not None:
                opened(connection)
            stream = connection.stream
            stream.until, stream.silence, stream.left = until, silence, _HEAD
            try:
                with self.errors():
                    connection.request(method, target, body, dict(headers))
                    return Answer(self, connection, connection.getresponse())
            except ProtocolError:
                connection.close()
                raise
            except SessionError:
                connection.close()
                if not again or (until is not None and time.monotonic() > until):
                    raise
            except BaseException:
                connection.close()
                raise
            again -= 1
            time.sleep(0.1)

    def _connection(self) -> Connection:
        if self._owner != os.getpid():
            # A forked process would read answers of its parent.
            self.close()
            self._owner = os.getpid()
        while True:
            try:
                connection = self._kept.pop()
            except IndexError:
                break
            if connection.is_good():
                return connection
            connection.close()
        until, pause = time.monotonic() + _REFUSED_SECONDS, 0.05
        while True:
            try:
                return Connection(self._address)
            except (ConnectionError, FileNotFoundError, BlockingIOError) as error:
                if time.monotonic() + pause > until:
                    raise SessionError(f"{self.url}: {error.strerror or error}", hint="is the server there?") from None
            except OSError as error:
                raise SessionError(f"{self.url}: {error.strerror or error}") from None
            time.sleep(pause)
            pause *= 2

    def keep(self, connection: Connection) -> None:
        """Keeps a connection for the next request."""
        connection.kept_at = time.monotonic()
        if len(self._kept) < _MOST_KEPT:
            self._kept.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Closes the connections that are kept."""
        while self._kept:
            try:
                self._kept.pop().close()
            except IndexError:
                return

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of a connection as those of the package."""
        try:
            yield
        except TimeoutError:
            raise SessionError(f"{self.url}: the server did not answer in time") from None
        except (OSError, http.client.IncompleteRead, http.client.NotConnected):
            raise SessionError(f"{self.url}: the connection was cut before the answer was complete") from None
        except (http.client.HTTPException, ValueError) as error:
            raise ProtocolError(f"{self.url}: what answers there does not speak HTTP: {error}") from None
