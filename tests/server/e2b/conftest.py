"""A server of its own for each module, and E2B's real client pointed at it."""

import os
import pathlib
import signal
import socket
import struct
import subprocess
import time

import pytest

SERVER = os.environ["KENNEL_SERVER"]

# Whether a router stands between clients and each server.
ROUTED = bool(os.environ.get("KENNEL_ROUTED"))


def begin(words: list, place: pathlib.Path) -> tuple[subprocess.Popen, str]:
    """Starts a server or a router: its process, and where it is."""
    # A file, and no pipe: hosts outlive the front.
    with (place / "errors").open("a") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
    first = process.stdout.readline()
    assert first.startswith(("# Kennel serves at", "# Kennel routes at")), (place / "errors").read_text()
    return process, first.split()[-1]


def begin_router(workers: list[str], place: pathlib.Path, address: str = "127.0.0.1:0") -> tuple[subprocess.Popen, str]:
    """Starts a router before workers."""
    return begin([SERVER, "route", "--workers", ",".join(workers), "--listen", address], place)


class Server:
    """`kennel serve` with a configuration, in a directory of its own."""

    def __init__(self, place: pathlib.Path, config: str = "") -> None:
        self.place = place
        self.state = place / "state"
        self.config = place / "serve.toml"
        self.config.write_text(f'listen = "127.0.0.1:0"\nhosts = 2\n{config}')
        self.process: subprocess.Popen | None = None
        self.router: subprocess.Popen | None = None
        self.environment: dict[str, str] = {}
        self.before: dict[str, str | None] = {}

    def start(self, address: str | None = None) -> None:
        words = [SERVER, "serve", "--config", self.config, "--state", self.state]
        words += ["--listen", address] if address else []
        self.process, self.url = begin(words, self.place)
        self.worker = self.url
        self.environment = {}
        if "tokens" not in self.config.read_text():
            lines = [self.process.stdout.readline() for _ in range(3)]
            exports = dict(line.removeprefix("export ").strip().split("=", 1) for line in lines)
            assert exports["E2B_API_URL"] == self.worker
            self.environment["E2B_API_KEY"] = exports["E2B_API_KEY"]
        if ROUTED:
            if self.router is None:
                self.route()
            self.url = self.routed
        self.environment |= {"E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url}
        self.before = self.before or {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)

    def route(self) -> None:
        """Puts a router before it."""
        self.router, self.routed = begin_router([self.worker], self.place)

    @property
    def address(self) -> str:
        """That of the worker, at which another front can start."""
        return self.worker.split("://")[1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def hosts(self) -> list[int]:
        """The processes in which sandboxes live."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"serve-host" in words and str(self.state).encode() in words:
                found.append(int(entry.name))
        # Between fork(2) and execve(2), what a host starts looks like it.
        return sorted(pid for pid in found if parent_of(pid) not in found)

    def host(self, index: int) -> int | None:
        """The host of this number, if it serves. Among hundreds of clients, a walk through /proc takes seconds."""
        with socket.socket(socket.AF_UNIX) as stream:
            try:
                stream.connect(str(self.state / f"hosts/{index}.socket"))
                peer = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            except OSError:
                return None
        return struct.unpack("3i", peer)[0]

    def host_of(self, sandbox_id: str) -> int:
        letter = sandbox_id.rsplit("-", 1)[1][0]
        index = str("abcdefghijklmnopqrstuvwxyz0123456789".index(letter))
        for pid in self.hosts():
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if words[words.index("--index") + 1] == index:
                return pid
        raise LookupError(sandbox_id)

    def stop(self) -> None:
        """Ends it at once, and sees that nothing is left."""
        if self.router is not None:
            self.router.kill()
            self.router.wait()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)
        for name, value in self.before.items():
            if value is not None:
                os.environ[name] = value
        for pid in self.hosts():
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not self.hosts(), "hosts end")


def parent_of(pid: int) -> int | None:
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def wait_until(condition, what: str, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server without tokens."""
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()
    left = list((server.state / "sandboxes").iterdir())
    assert not left, left


@pytest.fixture
def sandbox(server):
    from e2b import Sandbox

    sandbox = Sandbox.create()
    yield sandbox
    sandbox.kill()
