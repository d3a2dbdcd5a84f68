"""Programs that use sandboxes until these are lost, and note what they were told."""

import os
import random
import threading
import time
import typing
import urllib.error
import urllib.request

import e2b
from e2b import CommandExitException, Sandbox, SandboxException

SECONDS = float(os.environ.get("KENNEL_FAILURES_SECONDS", "20"))
SANDBOXES = int(os.environ.get("KENNEL_FAILURES_SANDBOXES", "24"))

# What may happen to a request whose front or host dies.
EXPECTED = (SandboxException, e2b.NotFoundException, ConnectionError, OSError)


def is_expected(error: BaseException) -> bool:
    # Errors of the client's own transport: each version has another library.
    return isinstance(error, EXPECTED) or type(error).__module__.split(".")[0] in ("httpx", "httpcore", "pyqwest", "connectrpc")


class Program(threading.Thread):
    """Uses one sandbox until it is lost, then makes another one."""

    def __init__(self, number: int, until: float, url: str, key: str) -> None:
        super().__init__()
        self.number, self.until, self.url, self.key = number, until, url, key
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
                    server = {"api_url": self.url, "sandbox_url": self.url, "api_key": self.key}
                    self.sandbox = Sandbox.create(metadata={"program": str(self.number)}, **server)
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
        """Whether the sandbox is lost, or only something between was."""
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
        url = f"{self.url}/sandboxes/{self.sandbox.sandbox_id}"
        try:
            urllib.request.urlopen(urllib.request.Request(url, headers={"X-API-KEY": self.key}), timeout=5)
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

    def seconds(self, absent: list[tuple[float, float]]) -> float:
        """How long that took, but for the times in which there was nobody to ask."""
        missing = sum(max(0, min(end, self.told) - max(begin, self.asked)) for begin, end in absent)
        return self.told - self.asked - missing


class Killed:
    """When hosts were killed, by the beginning of the ids of their sandboxes."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def note(self, *beginnings: str) -> None:
        """They are killed now."""
        for beginning in beginnings:
            self.times.setdefault(beginning, []).append(time.monotonic())

    def __len__(self) -> int:
        return sum(map(len, self.times.values()))

    def has(self, loss: Loss) -> bool:
        """Whether one that was killed had the sandbox. One in the making counts from when its creation began."""
        worker, letters = loss.sandbox_id.rsplit("-", 1)
        return any(time > loss.made for time in self.times.get(f"{worker}-{letters[0]}", []))


def judge(programs: list[Program], killed: Killed, absent: dict[str, list[tuple[float, float]]]) -> str:
    """Waits for all, and checks what they saw: losses, each with its cause, in time, and nothing invented.

    `absent`: by URL, when nobody answered there.
    """
    for program in programs:
        program.join(60)
        assert not program.is_alive()
        # Its host may have died after its last answer.
        program.look()
    wrong = [line for program in programs for line in program.wrong]
    assert not wrong, wrong[:5]
    lost = [(loss, loss.seconds(absent.get(program.url, []))) for program in programs for loss in program.lost]
    # Every program has a sandbox, so that each host has some.
    assert lost or not killed, killed.times
    for loss, _ in lost:
        assert killed.has(loss), f"its host was not killed: {loss}"
        assert loss.reason == "session_lost", loss
    late = [(loss, seconds) for loss, seconds in lost if seconds >= 6]
    assert not late, f"{len(late)} of {len(lost)} were told late: {late[:5]}"
    assert all(program.done > 0 for program in programs)
    for program in programs:
        if program.sandbox is not None:
            assert program.sandbox.commands.run("echo here").stdout == "here\n"
    rounds = sum(program.done for program in programs)
    slowest = max((seconds for _, seconds in lost), default=0)
    return (
        f"{len(programs)} at once for {SECONDS:.0f} s: {rounds} rounds, {len(killed)} hosts killed, "
        f"{len(lost)} sandboxes lost, each told within {slowest:.1f} s"
    )
