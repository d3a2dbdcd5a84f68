"""What tests need besides fixtures: other processes, wrong servers, and patience without sleeping for a fixed time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def descriptors() -> set[str]:
    """The open descriptors of this process, by what they are."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return found


def process_start(pid: str) -> str | None:
    """What tells a process from a later one with its number; `None` for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]
