"""Servers that are no session: a clear error, within a bound, and no descriptor left."""

from __future__ import annotations

import os
import socket
import struct

import pytest
from support import descriptors, detached

import kennel
from kennel import _connection


def reply(packet: bytes, *files: int):
    def serve(connection: socket.socket) -> None:
        if files:
            socket.send_fds(connection, [packet], list(files))
        else:
            connection.send(packet)
        # Until the client has gone.
        connection.recv(1)

    return serve


def close(connection: socket.socket) -> None:
    return


def silent(connection: socket.socket) -> None:
    connection.recv(1)


def end(report=0, out=0, err=0, message=b"", rest=b"", number=5, code=0):
    return struct.pack("<7I", number, code, 0, report, out, err, len(message)) + message + rest


def answer(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<II", 50, len(text) if length is None else length) + text


WRONG = {
    "short": b"\x05",
    "cut": end()[:20],
    "unknown": struct.pack("<I", 4_000_000),
    "message beyond the packet": struct.pack("<7I", 5, 0, 0, 0, 0, 0, 1 << 31),
    "lengths that do not fit": end(out=10, rest=b"short"),
    "no memfd": end(out=1 << 20),
    "an answer to a question": answer(b"{}"),
    "json that is none": answer(b"{"),
    "a list": answer(b"[]"),
    "no result": answer(b'{"x": 1}'),
    "a wrong result": answer(b'{"ok": 7}'),
    "a wrong error": answer(b'{"error": 7}'),
    "a wrong list": answer(b'{"ok": [7]}'),
    "a wrong length": answer(b"{}", 3),
    "no text at all": answer(b"", 1 << 20),
    "too long": b"\x05\0\0\0" * 5000,
}

DO = {
    "run": lambda s: s.run(["true"], timeout=60),
    "read": lambda s: s.read("x"),
    "write": lambda s: s.write("x", b""),
    "stat": lambda s: s.stat("x"),
    "list": lambda s: s.list("x"),
    "describe": lambda s: s.describe(),
    "processes": lambda s: s.processes(),
    "changes": lambda s: s.changes(),
    "commit": lambda s: s.commit(),
    "connect": lambda s: s.connect(1),
    "publish": lambda s: s.publish(1),
    "detach": lambda s: s.detach(["true"]),
    "shell": lambda s: s.shell().run("true"),
    "popen": lambda s: s.popen(["true"], stdout=-1).communicate(),
    "wait": lambda s: detached(s, 1).wait(),
    "logs": lambda s: list(detached(s, 1).logs()),
    "kill": lambda s: detached(s, 1).kill(),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_garbage_is_a_clear_error_of_each_method(face, fake, wrong):
    server = fake(reply(WRONG[wrong]))
    session = face.attach(server.path)
    before = descriptors()
    for name, do in DO.items():
        with pytest.raises(kennel.SessionError) as failed:
            do(session)
        assert failed.value.message, name
    assert len(descriptors()) <= len(before) + 1, "the server may still hold its connection"


@pytest.mark.parametrize("name", DO)
def test_a_connection_that_closes_early_is_a_session_that_ended(face, fake, name):
    session = face.attach(fake(close).path)
    with pytest.raises(kennel.SessionClosed):
        DO[name](session)


@pytest.mark.parametrize("name", [name for name in DO if name not in ("popen", "shell", "wait", "logs")])
def test_a_server_that_never_answers_is_an_error_within_a_bound(face, fake, name, monkeypatch):
    monkeypatch.setattr(_connection, "QUESTION_SECONDS", 0.1)
    monkeypatch.setattr(_connection, "MARGIN_SECONDS", 0.1)
    session = face.attach(fake(silent).path)
    with pytest.raises(kennel.SessionError, match="did not answer"):
        session.run(["true"], timeout=0.1) if name == "run" else DO[name](session)


def test_a_memfd_that_is_shorter_than_it_says_is_refused(face, fake):
    memfd = os.memfd_create("short")
    os.write(memfd, b"{}")
    try:
        session = face.attach(fake(reply(end(report=2, out=(1 << 32) - 1), memfd)).path)
        with pytest.raises(kennel.ProtocolError):
            session.run(["true"])
        read, write = os.pipe()
        session = face.attach(fake(reply(end(report=2, out=1), read)).path)
        with pytest.raises(kennel.ProtocolError):
            session.run(["true"])
        os.close(read)
        os.close(write)
    finally:
        os.close(memfd)


def test_descriptors_that_nobody_asked_for_are_closed(face, fake):
    session = face.attach(fake(reply(end(), 0, 1, 2)).path)
    before = descriptors()
    assert session.run(["true"]).returncode == 0
    many = face.attach(fake(reply(end(), *range(3), 0, 1, 2, 0, 1)).path)
    with pytest.raises(kennel.ProtocolError):
        many.run(["true"])
    assert len(descriptors()) <= len(before) + 4, "the servers may still hold their connections"


def test_the_words_of_a_refusal_are_the_error(face, fake):
    message = b"kennel: the session is full\nkennel: hint: wait\n"
    packet = struct.pack("<5I", 2, 125, 0, 0, len(message)) + message
    session = face.attach(fake(reply(packet)).path)
    for name in ("run", "read", "stat", "detach", "kill"):
        with pytest.raises(kennel.Error, match="the session is full") as refused:
            DO[name](session)
        assert refused.value.hint == "wait"


def test_control_characters_of_an_error_are_not_lost_but_plain(face, fake):
    session = face.attach(fake(reply(answer(b'{"error": {"message": "no", "errno": 2}}'))).path)
    with pytest.raises(FileNotFoundError, match="no"):
        session.read("x")
    with pytest.raises(kennel.SessionError, match="no"):
        session.stats()
