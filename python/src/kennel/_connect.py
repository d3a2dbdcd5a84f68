"""The protocol of Connect, in which a server streams what commands do: JSON in frames. No I/O."""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any

from kennel._http import LONGEST
from kennel.errors import ProtocolError

STREAMED = "application/connect+json"
"""The content of calls that stream."""

_HEAD = Struct(">BI")
_COMPRESSED, _END = 1, 2


class Refused(Exception):
    """A stream that ended with an error: `code` is a word of Connect."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def frame(message: Any) -> bytes:
    r"""A message in its frame.

    >>> frame({"a": 1})
    b'\x00\x00\x00\x00\x07{"a":1}'
    """
    text = json.dumps(message, separators=(",", ":")).encode()
    return _HEAD.pack(0, len(text)) + text


def messages(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    r"""The messages of a stream. Only its own last frame ends it; the error that it may have is `Refused`.

    >>> list(messages([b"\0\0\0\0\2{", b"}\2\0\0\0\2{}"]))
    [{}]
    >>> list(messages([b"\0\0\0\0\2{}"]))
    Traceback (most recent call last):
    kennel.errors.ProtocolError: a stream of the server has no end
    """
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        start = 0
        while len(buffer) - start >= _HEAD.size:
            flags, length = _HEAD.unpack_from(buffer, start)
            if length > LONGEST or flags & _COMPRESSED:
                raise malformed()
            end = start + _HEAD.size + length
            if end > len(buffer):
                break
            message = parsed(bytes(buffer[start + _HEAD.size : end]))
            if flags & _END:
                error = message.get("error")
                if error is not None:
                    raise Refused(text_of(error, "code"), text_of(error, "message"))
                return
            yield message
            start = end
        del buffer[:start]
    raise ProtocolError("a stream of the server has no end")


def parsed(text: bytes) -> dict[str, Any]:
    """An object of JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise malformed() from None
    if not isinstance(value, dict):
        raise malformed()
    return value


def text_of(values: Any, name: str) -> str:
    """A text of an object."""
    value = values.get(name) if isinstance(values, dict) else None
    if not isinstance(value, str):
        raise malformed()
    return value


def number_of(values: Any, name: str) -> int:
    """A number of an object."""
    value = values.get(name) if isinstance(values, dict) else None
    if not isinstance(value, int):
        raise malformed()
    return value


def encoded(data: bytes | bytearray | memoryview) -> str:
    """Bytes in base64."""
    return binascii.b2a_base64(data, newline=False).decode()


def decoded(text: Any) -> bytes:
    """Bytes of base64.

    >>> decoded(encoded(b"abc"))
    b'abc'
    """
    try:
        return binascii.a2b_base64(text)
    except (ValueError, TypeError):
        raise malformed() from None


def malformed() -> ProtocolError:
    """The error for an answer that no server of this version sends."""
    return ProtocolError("the server sent an answer that this version of the package does not understand")
