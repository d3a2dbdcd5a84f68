"""`kennel serve` for tests, and servers that only look like it."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support import until

import kennel
from kennel._launch import executable


def missing(what: str) -> NoReturn:
    """Skips a test that cannot run here. Where all must run, that is a failure."""
    assert os.environ.get("KENNEL_MUST_RUN") != "1", what
    pytest.skip(what)


def server_executable() -> str:
    """What `KENNEL_SERVER` names, else what is beside `kennel`."""
    path = os.environ.get("KENNEL_SERVER") or os.path.join(os.path.dirname(executable()), "kennel-server")
    if not os.access(path, os.X_OK):
        missing(f"{path} is missing: build kennel-server, or name it with KENNEL_SERVER")
    return path


class Served:
    """`kennel serve` in a directory of its own."""

    files: Path
    """Files of its templates, where it has some."""

    def __init__(self, place: Path, config: str = "", listen: str = "127.0.0.1:0") -> None:
        self.state = place / "state"
        self._place = place
        (place / "serve.toml").write_text(f"hosts = 2\n{config}")
        self.start(listen)

    def start(self, listen: str | None = None) -> None:
        """Starts the front: again at the same place."""
        place = ["--config", self._place / "serve.toml", "--state", self.state]
        listen = listen or self.url.split("://", 1)[1]
        # A file, and no pipe: hosts outlive the front.
        with (self._place / "errors").open("a") as errors:
            words = [server_executable(), "serve", *place, "--listen", listen]
            self.front = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.front.stdout is not None
        first = self.front.stdout.readline()
        assert first.startswith("# Kennel serves at"), (self._place / "errors").read_text()
        self.url = first.split()[-1]
        said = [self.front.stdout.readline() for _ in range(3)]
        self.token = said[2].strip().partition("=")[2]

    def remote(self, **keywords: Any) -> kennel.Remote:
        return kennel.Remote(self.url, self.token, **keywords)

    def kill_front(self) -> None:
        self.front.kill()
        self.front.wait()

    def hosts(self) -> list[int]:
        """The processes in which sandboxes live."""
        return running(b"serve-host", str(self.state).encode())

    def stop(self) -> None:
        """Ends it at once. What is left of it is an error."""
        while self.front.poll() is None:
            # The first signal waits for sandboxes that still run.
            self.front.send_signal(signal.SIGTERM)
            try:
                self.front.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        for pid in self.hosts():
            os.kill(pid, signal.SIGTERM)
        until(lambda: not self.hosts(), "the end of the hosts")
        left = list((self.state / "sandboxes").iterdir())
        assert not left, left


def running(*words: bytes) -> list[int]:
    """Processes that have all of these words."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            given = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if all(word in given for word in words):
            found.append(int(entry.name))
    return found


class Request:
    """What a client has sent."""

    def __init__(self, file: Any) -> None:
        self.method, self.target, _ = file.readline().decode().split()
        lines = iter(file.readline, b"\r\n")
        self.headers = dict(line.decode().strip().lower().split(": ", 1) for line in lines)
        self.body = file.read(int(self.headers.get("content-length", 0)))
        while self.headers.get("transfer-encoding") == "chunked" and (size := int(file.readline(), 16)):
            self.body += file.read(size)
            file.readline()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Fake:
    """A server that answers each request with the bytes that a test says; with `None`, it only closes the connection."""

    def __init__(self, answer: Callable[[Request], bytes | None]) -> None:
        self.requests: list[Request] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            try:
                request = Request(file)
                self.requests.append(request)
                answer = self._answer(request)
                if answer is not None:
                    connection.sendall(answer)
            except (OSError, ValueError):
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def answered(body: Any, status: str = "200 OK", *headers: str) -> bytes:
    """An answer of a server."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


def frame(message: Any, flags: int = 0) -> bytes:
    text = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(text)) + text


MADE = {"sandboxID": "kennel-a", "envdAccessToken": "b"}
"""The answer to a creation."""

START = frame({"event": {"start": {"pid": 7}}})
END = frame({}, 2)
