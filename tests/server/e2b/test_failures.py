"""Fronts and hosts are killed while sandboxes work: only what ran in a killed host is lost, and that is told."""

import os
import random
import signal
import threading
import time
import typing
import urllib.error
import urllib.request

import e2b
import pytest
from conftest import Server, wait_until
from e2b import CommandExitException, Sandbox, SandboxException

SECONDS = float(os.environ.get("KENNEL_FAILURES_SECONDS", "20"))
SANDBOXES = int(os.environ.get("KENNEL_FAILURES_SANDBOXES", "24"))

# What may happen to a request whose front or host dies.
EXPECTED = (SandboxException, e2b.NotFoundException, ConnectionError, OSError)


def is_expected(error: BaseException) -> bool:
    # Errors of the client's own transport: each version has another library.
    return isinstance(error, EXPECTED) or type(error).__module__.split(".")[0] in ("httpx", "httpcore", "pyqwest", "connectrpc")


class Worker(threading.Thread):
    """Uses one sandbox until it is lost, then makes another one."""

    def __init__(self, number: int, server: Server, until: float) -> None:
        super().__init__()
        self.number, self.server, self.until = number, server, until
        self.wrong: list[str] = []
        self.lost: list[Loss] = []
        self.sandbox: Sandbox | None = None
        self.made = 0.0
        self.done = 0

    def run(self) -> None:
        while time.monotonic() < self.until:
            try:
                if self.sandbox is None:
                    self.made = time.monotonic()
                    self.sandbox = Sandbox.create(metadata={"worker": str(self.number)})
                self.use(self.sandbox)
                self.done += 1
            except CommandExitException as error:
                self.wrong.append(f"an end that was none: {error}")
            except BaseException as error:  # noqa: BLE001
                if not is_expected(error):
                    self.wrong.append(repr(error))
                self.look()

    def use(self, sandbox: Sandbox) -> None:
        lines = random.randint(1, 3000)
        out = sandbox.commands.run(f"seq 1 {lines}").stdout
        if out != "".join(f"{line}\n" for line in range(1, lines + 1)):
            self.wrong.append(f"{len(out)} bytes of output were taken for the whole")
        contents = os.urandom(random.randint(0, 100_000))
        sandbox.files.write("file", contents)
        if sandbox.files.read("file", format="bytes") != contents:
            self.wrong.append("another file came back")

    def look(self) -> None:
        """Whether the sandbox is lost, or only its front was."""
        begun = time.monotonic()
        while self.sandbox is not None:
            try:
                if self.sandbox.is_running():
                    return
                told = time.monotonic()
                self.lost.append(Loss(self.sandbox.sandbox_id, self.made, begun, told, self.reason()))
                self.sandbox = None
            except Exception:  # noqa: BLE001
                if time.monotonic() - begun > 10:
                    self.wrong.append("nobody says what became of the sandbox")
                    return
                time.sleep(0.1)
        time.sleep(0.1)

    def reason(self) -> str | None:
        """Why it is not there: E2B's clients do not show headers."""
        url = f"{self.server.url}/sandboxes/{self.sandbox.sandbox_id}"
        key = {"X-API-KEY": os.environ["E2B_API_KEY"]}
        try:
            urllib.request.urlopen(urllib.request.Request(url, headers=key), timeout=5)
        except urllib.error.HTTPError as error:
            if error.code == 503:  # The next host is just starting.
                raise
            return error.headers["x-kennel-reason"] if error.code == 404 else f"status {error.code}"
        return "it is there"


class Loss(typing.NamedTuple):
    """A sandbox that is not there any more: when its creation began, when somebody asked and was told, and why."""

    sandbox_id: str
    made: float
    asked: float
    told: float
    reason: str | None

    def seconds(self, without_front: list[tuple[float, float]]) -> float:
        """How long that took, but for the time in which there was no front to ask."""
        absent = sum(max(0, min(end, self.told) - max(begin, self.asked)) for begin, end in without_front)
        return self.told - self.asked - absent


def test_only_sandboxes_of_killed_hosts_are_lost(tmp_path):
    server = Server(tmp_path, 'orphan = "30s"\n')
    server.start()
    until = time.monotonic() + SECONDS
    workers = [Worker(number, server, until) for number in range(SANDBOXES)]
    # When a host was killed, by the letter of its sandboxes.
    killed: dict[str, list[float]] = {}
    without_front: list[tuple[float, float]] = []
    try:
        for worker in workers:
            worker.start()
        address = server.address
        while time.monotonic() < until - 4:
            time.sleep(2)
            if len(without_front) <= sum(map(len, killed.values())):
                begun = time.monotonic()
                server.kill()
                time.sleep(0.2)
                server.start(address)
                without_front.append((begun, time.monotonic()))
            else:
                index = random.randrange(2)
                victim = server.host(index)
                killed.setdefault("ab"[index], []).append(time.monotonic())
                os.kill(victim, signal.SIGKILL)
                wait_until(lambda: server.host(index) not in (None, victim), "another host takes its place", 30)
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
            # Its host may have died after its last answer.
            worker.look()
        wrong = [line for worker in workers for line in worker.wrong]
        assert not wrong, wrong[:5]
        lost = [loss for worker in workers for loss in worker.lost]
        # Every client has a sandbox, so that each host has some.
        assert lost or not killed, killed
        for loss in lost:
            # One that was made while its host died counts from when its creation began.
            times = killed.get(loss.sandbox_id.rsplit("-", 1)[1][0], [])
            assert any(time > loss.made for time in times), f"its host was not killed: {loss}"
            assert loss.reason == "session_lost", loss
            assert loss.seconds(without_front) < 6, loss
        assert all(worker.done > 0 for worker in workers)
        for worker in workers:
            if worker.sandbox is not None:
                assert worker.sandbox.commands.run("echo here").stdout == "here\n"
        # pytest -s shows it.
        print(
            f"{SANDBOXES} at once for {SECONDS:.0f} s: {sum(worker.done for worker in workers)} rounds, "
            f"{len(without_front)} fronts and {sum(map(len, killed.values()))} hosts killed, {len(lost)} sandboxes lost, "
            f"each told within {max((loss.seconds(without_front) for loss in lost), default=0):.1f} s"
        )
    finally:
        server.stop()
    assert not list((server.state / "sandboxes").iterdir())
    assert not server.hosts()


def test_renewals_and_expiry_at_the_same_moment(server):
    """A renewal comes before the end, or it is refused: nothing lives on without a deadline, nothing ends in its time."""
    for _ in range(6):
        made = [Sandbox.create(timeout=1) for _ in range(5)]
        time.sleep(0.9)
        renewed = []
        for sandbox in made:
            try:
                sandbox.set_timeout(4)
                renewed.append(sandbox)
            except SandboxException:
                pass
            except e2b.NotFoundException:
                pass
        time.sleep(0.5)
        for sandbox in made:
            assert sandbox.is_running() == (sandbox in renewed)
        for sandbox in renewed:
            sandbox.kill()


@pytest.mark.parametrize("signals", [1, 2])
def test_nothing_is_left_after_the_end(tmp_path, signals):
    server = Server(tmp_path)
    server.start()
    sandbox = Sandbox.create()
    sandbox.commands.run("sleep 1000", background=True)
    if signals == 1:
        sandbox.kill()
    for _ in range(signals):
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    server.process.wait(20)
    assert not server.hosts()
    assert not list((server.state / "sandboxes").iterdir())
    server.stop()
