"""The bytes of the protocol between a client and a session: encoders and decoders, and no I/O.

`docs/protocol.md` of Kennel describes them.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

from kennel import _remedy
from kennel.errors import ProtocolError

VERSION = 0x4B4E4335
"""First field of a call, and of a question."""

LONGEST_PACKET = 32 << 10
"""Bytes that a packet to the session has at most."""

LONGEST_CALL = 8 << 20
"""Bytes that a call in a memfd has at most: more than execve(2) takes."""

LONGEST_ANSWER = 16 << 10
"""Bytes that a packet to the client has at most."""

ALL_LINES = (1 << 64) - 1

# Requests.
COMMAND, COMMAND_IN_MEMFD, SIGNAL, FOREGROUND = 1, 2, 3, 6
DETACH, LOGS, KILL, WAIT = 11, 12, 13, 14
SNIPPET, SNIPPET_IN_MEMFD = 20, 21
QUESTION, FILE_WRITTEN = 50, 51

# Answers.
TERMINAL, ENDED, STOPPED, COLLECTED = 1, 2, 4, 5
DETACHED, OUTPUT, DROPPED = 11, 12, 13
ANSWER = 50

# Wishes of a call.
WANTS_REPORT, IS_QUIET, COLLECT, UNMARKED, NAMES_VARIABLES, AS_DATA, KEEPS, COLD = 1, 2, 4, 8, 16, 32, 64, 128

_u32 = Struct("<I").pack
_u32_u32 = Struct("<II").pack
_after_directory = Struct("<QIII").pack  # timeout, terminal, window, length of modes
_take_u32 = Struct("<I").unpack_from
_take_ended = Struct("<IIIII").unpack_from  # number, code, signal, report, length of message
_take_collected = Struct("<IIIIIII").unpack_from

Argument = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def words_of(words: Iterable[Argument]) -> bytes:
    """A list of strings.

    >>> words_of(["ab", b"c"])
    b'\\x02\\x00\\x00\\x00\\r\\x00\\x00\\x00\\x03\\x00\\x00\\x00ab\\x00\\x02\\x00\\x00\\x00c\\x00'
    >>> words_of([])
    b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    parts: list[bytes] = []
    for word in words:
        encoded = os.fsencode(word)
        if 0 in encoded:
            raise ValueError("embedded null byte")
        parts += (_u32(len(encoded) + 1), encoded, b"\0")
    strings = b"".join(parts)
    return _u32_u32(len(parts) // 3, len(strings)) + strings


def environment_of(variables: Mapping[str, str] | Mapping[bytes, bytes] | None) -> bytes:
    """The variables of a call.

    >>> environment_of({"A": "1"})
    b'\\x01\\x00\\x00\\x00\\x08\\x00\\x00\\x00\\x04\\x00\\x00\\x00A=1\\x00'
    """
    if not variables:
        return b"\0\0\0\0\0\0\0\0"
    pairs = []
    for name, value in variables.items():
        key = os.fsencode(name)
        if not key or b"=" in key:
            raise ValueError(f"illegal environment variable name: {name!r}")
        pairs.append(key + b"=" + os.fsencode(value))
    return words_of(pairs)


def call(
    arguments: Sequence[Argument],
    *,
    directory: bytes = b"",
    timeout_ms: int = 0,
    environment: Mapping[str, str] | Mapping[bytes, bytes] | None = None,
    wishes: int = 0,
    terminal: int = 0,
    window: int = 0,
    modes: bytes = b"",
) -> bytes:
    """A call: what to run, and how.

    >>> call(["true"])[-25:-8]
    b'\\x01\\x00\\x00\\x00\\t\\x00\\x00\\x00\\x05\\x00\\x00\\x00true\\x00'
    """
    if b"\0" in directory:
        raise ValueError("embedded null byte")
    return b"".join(
        (
            _u32_u32(VERSION, len(directory) + 1),
            directory,
            b"\0",
            _after_directory(timeout_ms, terminal, window, len(modes)),
            modes,
            _u32(wishes | AS_DATA | (NAMES_VARIABLES if environment else 0)),
            words_of(arguments),
            environment_of(environment),
        )
    )


def request(number: int, *fields: int) -> bytes:
    """A message of 32-bit fields.

    >>> request(SIGNAL, 15)
    b'\\x03\\x00\\x00\\x00\\x0f\\x00\\x00\\x00'
    """
    return _u32_u32(number, fields[0]) if len(fields) == 1 else Struct(f"<I{len(fields)}I").pack(number, *fields)


def logs(number: int, follow: bool, lines: int | None) -> bytes:
    """A request for the output of a command that stays."""
    return Struct("<IIIQ").pack(LOGS, number, follow, ALL_LINES if lines is None else lines)


def milliseconds(timeout: float | None) -> int:
    """A timeout as the protocol has it: at least one millisecond; 0 for none.

    >>> [milliseconds(each) for each in (None, 0, -1, 0.0001, 1.5, float("inf"))]
    [0, 1, 1, 1, 1500, 0]
    """
    if timeout is None or timeout == float("inf"):
        return 0
    return min(max(1, -int(-timeout * 1000 // 1)), (1 << 63) - 1)


class Ended(NamedTuple):
    """The end of a command: answer 2 or 5."""

    code: int
    signal: int
    message: bytes
    report: int
    """Length of the report."""
    stdout: int | None
    stderr: int | None
    rest: bytes
    """What follows the message in the packet: stdout, stderr and report."""


def number_of(packet: bytes) -> int:
    """Which message a packet is."""
    try:
        number: int = _take_u32(packet)[0]
    except struct.error:
        raise malformed() from None
    return number


def ended(packet: bytes) -> Ended | None:
    """The end of a command; `None` if the packet is another message."""
    try:
        number = _take_u32(packet)[0]
        if number == COLLECTED:
            _, code, signal, report, stdout, stderr, length = _take_collected(packet)
            start = 28
        elif number == ENDED:
            _, code, signal, report, length = _take_ended(packet)
            stdout = stderr = None
            start = 20
        else:
            return None
    except struct.error:
        raise malformed() from None
    end = start + length
    if end > len(packet):
        raise malformed()
    return Ended(code, signal, _remedy.message(packet[start:end]), report, stdout, stderr, packet[end:])


def is_done(packet: bytes) -> bool:
    """Whether a packet says that something was done: answer 2 with code 0."""
    end = ended(packet)
    return end is not None and end.stdout is None and not end.code


def answer(packet: bytes) -> tuple[int, bytes]:
    """The length of the JSON of an answer, and the JSON if it is in the packet."""
    if len(packet) < 8:
        raise malformed()
    return _take_u32(packet, 4)[0], packet[8:]


def output(packet: bytes) -> tuple[int, bytes]:
    """The stream of an answer 12, and its bytes."""
    if len(packet) < 12:
        raise malformed()
    stream, length = Struct("<II").unpack_from(packet, 4)
    if stream not in (1, 2) or len(packet) != 12 + length:
        raise malformed()
    return stream, packet[12:]


def dropped(packet: bytes) -> int:
    """How many bytes an answer 13 says are gone."""
    if len(packet) != 12:
        raise malformed()
    count: int = Struct("<Q").unpack_from(packet, 4)[0]
    return count


def field(packet: bytes) -> int:
    """The only field of an answer, such as 11."""
    if len(packet) != 8:
        raise malformed()
    value: int = _take_u32(packet, 4)[0]
    return value


def question(do: str, **keys: Any) -> bytes:
    """The JSON of a question."""
    return json.dumps({"do": do, **keys}, separators=(",", ":")).encode()


def parsed(text: bytes) -> Any:
    """What the JSON of a session says."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise malformed() from None


def malformed() -> ProtocolError:
    """The error for an answer that no session of this version sends."""
    return ProtocolError(
        "the session sent an answer that this version of the package does not understand",
        hint="use the same version of the package and of the session's kennel",
    )


_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def path_to_text(path: Argument) -> str:
    """A path as questions have it.

    >>> path_to_text("50%"), path_to_text(b"a\\xff/\\xc3\\xa4")
    ('50%25', 'a%FF/ä')
    """
    text = os.fsencode(path).decode("utf-8", "surrogateescape").replace("%", "%25")
    return _NOT_UTF8.sub(lambda found: f"%{ord(found[0]) - 0xDC00:02X}", text)


def path_of_text(text: str) -> str:
    """A path of an answer, as `os.fsdecode` would give it.

    >>> path_of_text("50%25"), os.fsencode(path_of_text("a%FF"))
    ('50%', b'a\\xff')
    """
    if "%" not in text:
        return text
    parts = text.encode("utf-8", "surrogateescape").split(b"%")
    try:
        rest = [bytes((int(part[:2], 16),)) + part[2:] for part in parts[1:]]
    except ValueError:
        raise malformed() from None
    return os.fsdecode(parts[0] + b"".join(rest))
