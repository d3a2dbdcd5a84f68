"""Servers that are none, or that lie: a clear error, within a bound of time and memory, and no invented end."""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from served import END, MADE, START, Fake, Request, answered, frame
from support import descriptors

import kennel

Answer = Callable[[Request], bytes | None]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Fake]]:
    made: list[Fake] = []

    def make(answer: Answer) -> Fake:
        made.append(Fake(answer))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Nothing that a server sends takes much memory or time, or leaves a descriptor."""
    before = descriptors()
    begun = time.monotonic()
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100 << 20
    assert time.monotonic() - begun < 30
    sockets = {each for each in descriptors() - before if "socket" in each}
    # The test's own server closes its side by threads of its own.
    assert len(sockets) < 4, sockets


def chunks(*pieces: bytes, ends: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + (b"0\r\n\r\n" if ends else b"")


MUCH = 40 << 20
OK = b"HTTP/1.1 201 Created\r\n"
CREATIONS = {
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n" * 100,
    "noise": bytes(range(256)) * 100,
    "endless headers": OK + b"A: b\r\n" * (MUCH // 6),
    "a header without end": OK + b"A: " + b"b" * MUCH,
    "a status without end": b"HTTP/1.1 200 " + b"b" * MUCH,
    "endless continues": b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n" * 200_000,
    "no length": OK + b"\r\n" + json.dumps(MADE).encode(),
    "a length below zero": OK + b"Content-Length: -1\r\n\r\n" + b"x" * MUCH,
    "too long": OK + b"Content-Length: %d\r\n\r\n" % MUCH + b" " * MUCH,
    "a chunk below zero": OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + b"x" * MUCH,
    "endless trailers": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * (MUCH // 6),
    "no json": answered(b"{", "201 Created"),
    "deep json": answered(b"[" * 1_000_000, "201 Created"),
    "a list": answered([MADE], "201 Created"),
    "no id": answered({**MADE, "sandboxID": None}, "201 Created"),
    "an id that is a request": answered({**MADE, "sandboxID": "a HTTP/1.1\r\nX: y\r\n"}, "201 Created"),
    "an id that is a path": answered({**MADE, "sandboxID": "../other"}, "201 Created"),
    "a token that is a header": answered({**MADE, "envdAccessToken": "a\r\nb: c"}, "201 Created"),
}


@pytest.mark.parametrize("name", CREATIONS)
def test_what_is_no_server_is_told(serve, name):
    server = serve(lambda _: CREATIONS[name])
    with pytest.raises(kennel.ProtocolError):
        kennel.Remote(server.url, "key")
    assert len(server.requests) == 1, "nothing is asked twice that was answered"


def test_a_silent_server_is_an_error_in_time(serve):
    over = threading.Event()
    server = serve(lambda _: over.wait(20) and None)
    with pytest.raises(kennel.SessionError, match="did not answer in time"):
        kennel.Remote(server.url, "key", start_timeout=1)
    over.set()


def test_a_slow_drip_is_an_error_in_time(serve):
    """Each byte comes in time, and the answer never."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        with listener.accept()[0] as connection:
            connection.sendall(OK)
            while not over.wait(0.05):
                try:
                    connection.sendall(b"A")
                except OSError:
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(kennel.SessionError, match="did not answer in time"):
        kennel.Remote(f"http://127.0.0.1:{listener.getsockname()[1]}", "key", start_timeout=1)
    over.set()
    thread.join()
    listener.close()


def test_an_answer_of_something_between_is_shown(serve):
    server = serve(lambda _: answered(b"<html>Bad Gateway</html>", "502 Bad Gateway"))
    with pytest.raises(kennel.SessionError, match="502 <html>Bad Gateway") as error:
        kennel.Remote(server.url, "key")
    assert not isinstance(error.value, kennel.SessionClosed)


# Creation.


def test_a_creation_without_an_answer_is_repeated_with_its_key(serve):
    answers = [None, None, answered(MADE, "201 Created"), answered(b"", "204 No Content")]
    server = serve(lambda _: answers.pop(0))
    kennel.Remote(server.url, "key").close()
    creations = server.requests[:3]
    assert len({request.headers["idempotency-key"] for request in creations}) == 1
    assert len({request.body for request in creations}) == 1
    assert (server.requests[3].method, server.requests[3].target) == ("DELETE", "/sandboxes/kennel-a")
    server = serve(lambda _: None)
    with pytest.raises(kennel.SessionError, match="cut"):
        kennel.Remote(server.url, "key")
    assert len(server.requests) < 6


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_a_creation_that_is_refused_for_now_is_asked_again(serve, status):
    later = answered({"code": 0, "message": "later"}, status, "Retry-After: 1")
    answers = [later, answered(MADE, "201 Created")]
    server = serve(lambda _: answers.pop(0) if answers else answered(b""))
    begun = time.monotonic()
    kennel.Remote(server.url, "key").close()
    assert time.monotonic() - begun >= 1
    # Not beyond the time of the call, and not without a word about when.
    for headers, patience in [(["Retry-After: 100"], 5), (["Retry-After: x"], 60), ([], 60)]:
        server = serve(lambda _, headers=headers: answered({"code": 0, "message": "never"}, status, *headers))
        with pytest.raises(kennel.SessionError, match="never"):
            kennel.Remote(server.url, "key", start_timeout=patience)
        assert len(server.requests) == 1


# Commands.


def remote_of(serve: Any, answer: Answer) -> tuple[kennel.Remote, Fake]:
    """A sandbox of a fake server: `answer` is for what is about commands."""

    def all_of(request: Request) -> bytes | None:
        if request.target == "/v2/sandboxes":
            return answered(MADE, "201 Created")
        if request.method == "DELETE" and request.target.startswith("/sandboxes/"):
            return answered(b"", "204 No Content")
        return answer(request)

    server = serve(all_of)
    return kennel.Remote(server.url, "key"), server


def killed(server: Fake) -> bool:
    """Whether the client has killed the command that it has started."""
    tags = [json.loads(request.body[5:])["tag"] for request in server.requests if request.target.endswith("/Start")]
    kills = [request.json for request in server.requests if request.target.endswith("/SendSignal")]
    return [{"process": {"tag": tag}, "signal": "SIGNAL_SIGKILL"} for tag in tags] == kills


OUT = frame({"event": {"data": {"stdout": base64.b64encode(b"out").decode()}}})
EXIT = frame({"event": {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}})
STREAMS = {
    "a frame of 4 GiB": chunks(START, struct.pack(">BI", 0, 0xFFFF_FFFF) + b"x" * MUCH),
    "a compressed frame": chunks(START, frame({}, 1)),
    "no json": chunks(START, struct.pack(">BI", 0, 1) + b"{"),
    "a list": chunks(START, frame([])),
    "no event": chunks(START, frame({})),
    "an event that is a number": chunks(START, frame({"event": 7})),
    "a number that is none": chunks(frame({"event": {"start": {"pid": "x"}}})),
    "output that is no text": chunks(START, frame({"event": {"data": {"stdout": 7}}})),
    "data that is a number": chunks(START, frame({"event": {"data": 7}})),
    "output that is no base64": chunks(START, frame({"event": {"data": {"stdout": "\x01x"}}})),
    "an end without a code": chunks(START, frame({"event": {"end": {"exited": True}}})),
    "an end by no signal": chunks(START, frame({"event": {"end": {"exitCode": -1, "status": "signal: x"}}})),
    "an end that is a text": chunks(START, frame({"event": {"end": "x"}})),
    "an end of the stream only": chunks(START, OUT, END),
    "no end": chunks(START, OUT),
    "cut within a frame": chunks(START, OUT[:9]),
    "cut": chunks(START, OUT, ends=False),
    "cut within a chunk": chunks(START, EXIT)[: -len(EXIT) // 2],
    "an error that is none": chunks(START, frame({"error": 7}, 2)),
    "nothing": None,
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_is_wrong_is_no_end_of_a_command(serve, name):
    found = answered({"code": 404, "message": "no report"}, "404 Not Found")
    s, server = remote_of(serve, lambda request: STREAMS[name] if request.target.endswith("/Start") else found)
    with pytest.raises(kennel.SessionError, match=r"server sent|has no end|was cut|sends more"):
        s.run(["true"])
    starts = [request for request in server.requests if request.target.endswith("/Start")]
    assert len(starts) == 1, "no command is run twice"
    assert any(request.target.endswith("/SendSignal") for request in server.requests)
    s.close()


def test_a_command_of_a_wrong_stream_is_killed_by_its_tag(serve):
    done = answered({})
    s, server = remote_of(serve, lambda request: STREAMS["cut"] if request.target.endswith("/Start") else done)
    with s, pytest.raises(kennel.SessionError):
        s.run(["true"])
    assert killed(server)


def test_a_kill_that_meets_the_end_of_a_kept_connection_is_sent_again(serve):
    answers = [None, answered({})]
    s, server = remote_of(serve, lambda request: STREAMS["cut"] if request.target.endswith("/Start") else answers.pop(0))
    with s, pytest.raises(kennel.SessionError):
        s.run(["true"])
    assert [request.target for request in server.requests].count("/process.Process/SendSignal") == 2
    assert not answers


def test_a_command_whose_start_was_not_answered_is_killed_once_it_is_there(serve):
    turns = iter([answered({"code": "not_found", "message": "not yet"}, "404 Not Found"), answered({})])
    s, server = remote_of(serve, lambda request: None if request.target.endswith("/Start") else next(turns))
    with s, pytest.raises(kennel.SessionError, match="cut"):
        s.run(["true"])
    assert [request.target for request in server.requests].count("/process.Process/SendSignal") == 2


def test_a_refused_command_is_not_killed(serve):
    later = answered({"code": 429, "message": "too many commands"}, "429 Too Many Requests", "Retry-After: 1")
    s, server = remote_of(serve, lambda _: later)
    with s, pytest.raises(kennel.SessionError, match="too many commands"):
        s.run(["true"])
    assert [request.target for request in server.requests[1:-1]] == ["/process.Process/Start"]


def test_endless_output_is_bounded_by_the_time_of_the_command(serve, monkeypatch):
    monkeypatch.setattr("kennel._remote_command.MOST_KEPT", 1 << 20)
    monkeypatch.setattr("kennel._connection.MARGIN_SECONDS", 1.0)
    piece = chunks(START, frame({"event": {"data": {"stdout": "A" * 100_000}}}) * 300, ends=False)
    over = threading.Event()

    def answer(request: Request) -> bytes | None:
        if not request.target.endswith("/Start"):
            return answered({})
        over.wait(0)
        return piece + chunks(*[frame({"event": {"keepalive": {}}})] * 100_000).split(b"\r\n\r\n", 1)[1]

    s, _ = remote_of(serve, answer)
    with s, pytest.raises(kennel.SessionError):
        s.run(["true"], timeout=0.1)


def test_input_that_cannot_be_sent_does_not_leave_a_command_waiting(serve):
    over = threading.Event()

    def answer(request: Request) -> bytes | None:
        return None if request.target.endswith("/StreamInput") else answered({})

    listener = socket.create_server(("127.0.0.1", 0))
    s, server = remote_of(serve, answer)

    # The command's own stream stays open and says nothing more.
    def relay() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(connection,)).start()

    def one(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            request = Request(file)
            server.requests.append(request)
            if request.target.endswith("/Start"):
                connection.sendall(chunks(START, ends=False))
                over.wait(20)
                return
            given = answer(request)
            if given is not None:
                connection.sendall(given)

    threading.Thread(target=relay, daemon=True).start()
    s._sandbox.server._address.port = listener.getsockname()[1]
    begun = time.monotonic()
    with pytest.raises(kennel.SessionError, match="was cut"):
        s.run(["cat"], input=b"x")
    assert time.monotonic() - begun < 10
    assert killed(server)
    over.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_a_command_ends_as_its_events_say(serve):
    report = answered({"code": 501, "message": "not served"}, "501 Not Implemented")
    for status, expected in [("signal: killed", -9), ("signal: SIGUSR1", -10), ("signal: 40", -40)]:
        end = frame({"event": {"end": {"exitCode": -1, "exited": False, "status": status}}})
        stream = chunks(START, OUT, end, END)
        s, _ = remote_of(serve, lambda request, stream=stream: stream if request.target.endswith("/Start") else report)
        with s:
            done = s.run(["true"])
        assert (done.stdout, done.returncode, done.outcome.signal) == (b"out", expected, -expected)


# Files.


@pytest.mark.parametrize("name", ["cut", "no length", "cut in chunks"])
def test_a_file_that_is_cut_off_is_not_taken_for_the_whole(serve, name, tmp_path):
    head = b"HTTP/1.1 200 OK\r\n"
    files = {
        "cut": head + b"Content-Length: 10\r\n\r\nabc",
        "no length": head + b"\r\nabc",
        "cut in chunks": head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    }
    entry = {"entry": {"type": "FILE_TYPE_FILE", "size": "10", "mode": 420, "modifiedTime": "2026-01-01T00:00:00Z"}}
    s, _ = remote_of(serve, lambda request: answered(entry) if request.method == "POST" else files[name])
    (tmp_path / "out").write_bytes(b"before")
    with s:
        with pytest.raises(kennel.SessionError):
            s.read("a")
        with pytest.raises(kennel.SessionError):
            s.copy_out("a", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


WRONG = [7, {}, {"type": "x", "size": "y", "mode": 0, "modifiedTime": "2026-01-01T00:00:00Z"}]
WRONG += [{"type": "x", "size": "1", "mode": 0, "modifiedTime": when} for when in ("", "9" * 5000, "2026-13-01T00:00:00Z")]


@pytest.mark.parametrize("entry", WRONG)
def test_a_file_that_is_described_wrongly_is_told(serve, entry):
    s, _ = remote_of(serve, lambda _: answered({"entry": entry, "entries": [entry]}))
    with s:
        for call in (s.stat, s.list):
            with pytest.raises(kennel.ProtocolError):
                call("a")


def test_a_circle_of_links_is_an_error(serve):
    entry = {"type": "FILE_TYPE_SYMLINK", "size": "1", "mode": 511, "symlinkTarget": "/a", "modifiedTime": "x"}
    s, server = remote_of(serve, lambda _: answered({"entry": entry}))
    with s, pytest.raises(OSError, match="symbolic links"):
        s.stat("a")
    assert len(server.requests) < 60
