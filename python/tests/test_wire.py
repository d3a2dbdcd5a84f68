"""The bytes of the protocol."""

from __future__ import annotations

import os
import random
import struct

import pytest

import kennel
from kennel import _wire


def test_a_call_has_the_bytes_that_the_protocol_says():
    call = _wire.call(
        ["ls", b"-l"],
        directory=b"/w",
        timeout_ms=1500,
        environment={"A": "1"},
        wishes=_wire.WANTS_REPORT | _wire.COLLECT,
        terminal=7,
        window=24 << 16 | 80,
        modes=b"mm",
    )
    expected = [
        b"5CNK",
        b"\x03\0\0\0/w\0",
        struct.pack("<Q", 1500),
        struct.pack("<II", 7, 24 << 16 | 80),
        b"\x02\0\0\0mm",
        # The caller names each variable, and words remedies itself.
        b"\x35\0\0\0",
        b"\x02\0\0\0\x0e\0\0\0" + b"\x03\0\0\0ls\0" + b"\x03\0\0\0-l\0",
        b"\x01\0\0\0\x08\0\0\0" + b"\x04\0\0\0A=1\0",
    ]

    assert call == b"".join(expected)


def test_what_cannot_be_said_is_an_error():
    with pytest.raises(ValueError, match="null byte"):
        _wire.words_of(["a\0b"])
    with pytest.raises(ValueError, match="null byte"):
        _wire.call(["a"], directory=b"/\0")
    for name in ("", "A=B"):
        with pytest.raises(ValueError, match="variable name"):
            _wire.environment_of({name: "1"})
    with pytest.raises(TypeError):
        _wire.words_of([1])  # type: ignore[list-item]


def test_a_list_holds_any_words():
    made = random.Random(1)
    for _ in range(200):
        words = [bytes(made.choices(range(1, 256), k=made.randrange(9))) for _ in range(made.randrange(6))]
        data = _wire.words_of(words)
        count, length = struct.unpack_from("<II", data)
        assert (count, length) == (len(words), len(data) - 8)
        rest, read = data[8:], []
        while rest:
            size = struct.unpack_from("<I", rest)[0]
            assert rest[3 + size] == 0
            read.append(rest[4 : 3 + size])
            rest = rest[4 + size :]
        assert read == words


def test_ends_are_read_and_cut_ones_are_refused():
    whole = struct.pack("<IIIIIII", 5, 3, 0, 2, 3, 1, 4) + b"note" + b"{}" + b"out" + b"e"
    end = _wire.ended(whole)
    assert end == _wire.Ended(3, 0, b"note", 2, 3, 1, b"{}oute")
    old = struct.pack("<IIIII", 2, 137, 9, 0, 1) + b"x"
    assert _wire.ended(old) == _wire.Ended(137, 9, b"x", 0, None, None, b"")
    assert _wire.ended(struct.pack("<II", 4, 19)) is None
    for cut in (*range(28), 30):
        with pytest.raises(kennel.ProtocolError):
            _wire.ended(whole[:cut])


def test_random_bytes_are_read_or_refused():
    made = random.Random(2)
    for _ in range(3000):
        number = made.choice([1, 2, 4, 5, 11, 12, 13, 50, made.randrange(1 << 32)])
        packet = struct.pack("<I", number) + bytes(made.choices((0, 1, 7, 255), k=made.randrange(40)))
        for read in (_wire.ended, _wire.answer, _wire.output, _wire.dropped, _wire.field, _wire.number_of):
            try:
                read(packet)
            except kennel.ProtocolError:
                pass


def test_every_path_survives_questions():
    made = random.Random(3)
    for _ in range(500):
        path = bytes(made.choices([37, 47, 97, 195, 164, 255, 128, 10, 65], k=made.randrange(12)))
        text = _wire.path_to_text(path)
        text.encode("utf-8")
        assert os.fsencode(_wire.path_of_text(text)) == path
    with pytest.raises(kennel.ProtocolError):
        _wire.path_of_text("%zz")


@pytest.mark.parametrize("text", [b"", b"[", b"\xff", b"[" * 100_000])
def test_json_that_is_none_is_refused(text):
    with pytest.raises(kennel.ProtocolError):
        _wire.parsed(text)
