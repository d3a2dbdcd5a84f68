"""What tests share: a workspace, a session in it, and patience without sleeping for a fixed time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kennel

PATIENCE = 60.0
"""How long a test waits for something that a busy machine may do late."""


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """Asks until the condition holds, and returns what it is."""
    end = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)


def python(code: str, *arguments: str, **keywords: Any) -> subprocess.Popen[str]:
    """Another interpreter, which runs the code."""
    words = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **keywords)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="module")
def session(workspace: Path) -> Iterator[kennel.Session]:
    with kennel.Session(workspace) as made:
        yield made


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docstrings start sessions in the current directory."""
    monkeypatch.chdir(tmp_path)


class FakeServer:
    """A socket that is no session: it does what a test says with each connection."""

    def __init__(self, directory: Path, serve: Callable[[socket.socket], None]) -> None:
        directory.mkdir(mode=0o700)
        self.path = str(directory / "fake.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.serve = serve
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                # The first connection of `attach` asks nothing.
                try:
                    if connection.recv(1 << 16):
                        self.serve(connection)
                except OSError:
                    pass

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[[Callable[[socket.socket], None]], FakeServer]]:
    servers: list[FakeServer] = []

    def make(serve: Callable[[socket.socket], None]) -> FakeServer:
        servers.append(FakeServer(tmp_path / f"fake{len(servers)}", serve))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def descriptors() -> set[str]:
    """The open descriptors of this process, by what they are."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return found
