"""`kennel.Fleet`: jobs through a real NATS server, with a real worker."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, missing
from support import until

import kennel


class Nats:
    """nats-server in a directory of its own."""

    def __init__(self, place: Path) -> None:
        self._place = place
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Starts it: again with the same files."""
        words = ["nats-server", "-js", "-a", "127.0.0.1", "-p", str(self._port), "-sd", str(self._place / "store")]
        with (self._place / "log").open("a") as log:
            self.process = subprocess.Popen(words, stderr=log)
        until(self._listens, "nats-server")

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    if shutil.which("nats-server") is None:
        missing("nats-server is missing")
    place = tmp_path / "nats"
    place.mkdir()
    server = Nats(place)
    yield server
    server.kill()


@pytest.fixture
def worker(nats: Nats, tmp_path: Path) -> Iterator[Callable[[str], Served]]:
    """Starts workers with these lines in `[nats]`."""
    made: list[Served] = []

    def make(lines: str = "", more: str = "") -> Served:
        place = tmp_path / f"worker-{len(made)}"
        place.mkdir()
        made.append(Served(place, f"name = 'w{len(made)}'\n{more}[nats]\nurl = '{nats.url}'\nack_wait = '2s'\n{lines}\n"))
        return made[-1]

    yield make
    for server in made:
        server.stop()


def opened(nats: Nats, **options: Any) -> kennel.Fleet:
    """A fleet, as soon as a worker has made the queue."""
    end = time.monotonic() + 20
    while True:
        try:
            return kennel.Fleet(nats.url, **options)
        except kennel.SessionError:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_results_come_as_they_are_ready(nats, worker):
    worker("jobs = 4")
    with opened(nats) as fleet:
        jobs = [["sh", "-c", f"sleep {pause}; echo {pause}; exit 3"] for pause in (1.5, 0.1, 0.8)]
        found = list(fleet.map(jobs, text=True))
    assert [result.index for result in found] == [1, 2, 0]
    assert [result.completed.stdout for result in found] == ["0.1\n", "0.8\n", "1.5\n"]
    assert {(result.completed.returncode, result.deliveries, result.worker) for result in found} == {(3, 1, "w0")}
    assert len({result.id for result in found}) == 3


def test_a_job_is_a_body_of_v1_run(nats, worker):
    worker()
    body = {
        "argv": ["sh", "-c", "cat; cat a > b"],
        "stdin": {"text": "in"},
        "files": [{"path": "a", "content": {"base64": "/w=="}}],
        "outputs": ["b"],
        "timeout": 20,
    }
    with opened(nats) as fleet:
        (result,) = fleet.map([body])
    assert (result.completed.stdout, result.completed.files) == (b"in", {"b": b"\xff"})
    assert body["argv"] == ["sh", "-c", "cat; cat a > b"]


def test_large_jobs_and_results(nats, worker):
    worker()
    text = "x" * (2 << 20)
    body = {"argv": ["cat", "big"], "files": [{"path": "big", "content": {"text": text}}]}
    with opened(nats) as fleet:
        (result,) = fleet.map([body], text=True)
        assert result.completed.stdout == text


def test_denials_of_a_job(nats, worker, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("profile = 'repo-write'\n[network]\nallow = ['a.example:443']\n")
    worker(more=f"[template.base]\npolicy = '{policy}'\n")
    script = (
        "p=${https_proxy##*:}; exec 3<>/dev/tcp/127.0.0.1/${p%/};"
        r"printf 'CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n' >&3; head -1 <&3"
    )
    with opened(nats) as fleet:
        (result,) = fleet.map([["bash", "-c", script]])
    assert b" 403 " in result.completed.stdout, result.completed
    assert [denial.subject for denial in result.completed.denials] == ["other.example:443"]


def test_ends_that_are_no_exit(nats, worker):
    worker()
    jobs = [["no-such-program"], {"argv": ["sleep", "100"], "timeout": 0.3}, ["sh", "-c", "kill -9 $$"]]
    with opened(nats) as fleet:
        found = {result.index: result for result in fleet.map(jobs)}
    with pytest.raises(kennel.ProgramNotFoundError, match="no-such-program"):
        _ = found[0].completed
    assert found[1].completed.outcome.ended == "timed_out"
    assert found[2].completed.returncode == -9


def test_a_dead_job_is_an_error_with_its_history(nats, worker):
    served = worker("deliveries = 2")
    with opened(nats) as fleet:
        (refused,) = fleet.map([{"argv": ["true"], "template": "other"}])
        assert isinstance(refused.error, kennel.JobDead)
        assert (refused.error.status, refused.error.history) == (404, [])
        with pytest.raises(kennel.JobDead, match="template"):
            _ = refused.completed

        results = fleet.map([{"argv": ["sleep", "1000"], "timeout": 2000}])
        for _ in range(2):
            time.sleep(2)
            served.kill_front()
            served.start()
            until(lambda: len(list((served.state / "sandboxes").iterdir())) > 0, "the next attempt")
        (dead,) = results
    assert isinstance(dead.error, kennel.JobDead)
    assert [attempt["delivery"] for attempt in dead.error.history] == [1, 2]
    assert {attempt["worker"] for attempt in dead.error.history} == {"w0"}


def sandboxes(served: Served) -> int:
    return len(list((served.state / "sandboxes").iterdir()))


def test_a_loop_that_is_left_cancels_what_is_left(nats, worker):
    served = worker("jobs = 2")
    long = {"argv": ["sleep", "1000"], "timeout": 2000}
    with opened(nats) as fleet:
        results = fleet.map([["true"], long, long, long])
        assert next(results).index == 0
        until(lambda: sandboxes(served) == 2, "both run")
        results.close()
        until(lambda: sandboxes(served) == 0, "both are killed")
        # And the one that waited is not run.
        assert [result.completed.returncode for result in fleet.map([["true"]])] == [0]
        until(lambda: sandboxes(served) == 0, "nothing else runs")


def test_jobs_are_late(nats, worker):
    served = worker()
    with opened(nats) as fleet:
        begun = time.monotonic()
        found = list(fleet.map([["echo", "a"], {"argv": ["sleep", "1000"], "timeout": 2000}], timeout=3))
        assert 3 <= time.monotonic() - begun < 8
        assert found[0].completed.stdout == b"a\n"
        assert (found[1].index, type(found[1].error)) == (1, kennel.JobTimeout)
        until(lambda: sandboxes(served) == 0, "it is killed")


def test_a_job_is_cancelled_by_its_id(nats, worker):
    served = worker()
    with opened(nats) as fleet, opened(nats) as other:
        results = fleet.map([{"id": "mine", "argv": ["sleep", "1000"], "timeout": 2000}])
        until(lambda: sandboxes(served) == 1, "it runs")
        other.cancel("mine")
        (result,) = results
        assert (result.id, type(result.error)) == ("mine", kennel.JobCancelled)
    until(lambda: sandboxes(served) == 0, "it is killed")


def test_a_job_with_a_result_is_not_run_again(nats, worker):
    worker()
    job = {"id": "once", "argv": ["sh", "-c", "date +%s%N"]}
    with opened(nats) as fleet:
        (first,) = fleet.map([job])
        (again,) = fleet.map([job])
    assert first.completed.stdout == again.completed.stdout


def published(nats: Nats, messages: dict[str, str]) -> None:
    """Publishes to streams, by subject."""

    async def publish() -> None:
        client = await pytest.importorskip("nats").connect(nats.url)
        for subject, text in messages.items():
            await client.jetstream().publish(subject, text.encode())
        await client.close()

    asyncio.run(publish())


def test_a_result_that_nobody_can_read_is_the_error_of_its_job(nats, worker):
    worker()
    line = {"job": "a", "outcome": "done", "deliveries": 1, "worker": "w", "time": "t", "nonce": "n"}
    info = {"bucket": "kennel-bodies", "nuid": "a", "size": 10}
    objects = {
        "link": {**info, "options": {"link": {"bucket": "kennel-bodies", "name": "link"}}},
        "bucket": {**info, "bucket": "other"},
        "longer": {**info, "nuid": "longer"},
        "huge": {**info, "size": 1 << 40},
    }
    # The first three are no results for workers either, which run those jobs: they are looked for meanwhile.
    values = {"text": "x", "list": "[]\n", "short": '{"outcome": "done"}\n{}', "answer": f"{json.dumps(line)}\n[]"}
    with opened(nats) as fleet:
        published(nats, {f"$KV.kennel-results.{name}": value for name, value in values.items()})
        for name, more in objects.items():
            meta = base64.urlsafe_b64encode(name.encode()).decode()
            published(nats, {f"$O.kennel-bodies.M.{meta}": json.dumps({**more, "name": name})})
            published(nats, {f"$KV.kennel-results.{name}": json.dumps({**line, "object": name}) + "\n"})
        published(nats, {"$O.kennel-bodies.C.longer": "x" * 11})
        names = [*values, *objects]
        jobs = [{"argv": ["sleep", "8"], "id": name} for name in names]
        found = {result.id: result for result in fleet.map([*jobs, ["echo", "good"]], timeout=60)}
    assert len(found) == len(names) + 1
    for name in names:
        assert isinstance(found[name].error, (kennel.ProtocolError, kennel.SessionError)), (name, found[name])
    assert "is a link" in str(found["link"].error)
    assert [result.completed.stdout for result in found.values() if result.error is None] == [b"good\n"]


def test_nats_and_a_worker_die(nats, worker):
    first = worker("jobs = 2\ndeliveries = 20")
    worker("jobs = 2\ndeliveries = 20")
    with opened(nats) as fleet:
        results = fleet.map([["sh", "-c", f"sleep 0.3; echo {number}"] for number in range(30)], text=True, timeout=100)
        found = [next(results)]
        nats.kill()
        time.sleep(0.5)
        nats.start()
        found.append(next(results))
        first.kill_front()
        first.start()
        found.extend(results)
    assert sorted((result.index, result.completed.stdout) for result in found) == [(n, f"{n}\n") for n in range(30)]


def test_wrong_jobs_are_told_before_any_is_sent(nats, worker):
    worker()
    with opened(nats) as fleet:
        for job, words in (
            ({"argv": ["true"], "id": "a.b"}, r"jobs\[0\]: id"),
            ({}, "argv is missing"),
        ):
            with pytest.raises(ValueError, match=words):
                fleet.map([job])
        with pytest.raises(TypeError, match="list of words"):
            fleet.map(["true"])
        with pytest.raises(ValueError, match="the same id"):
            fleet.map([{"argv": ["true"], "id": "a"}] * 2)
    with pytest.raises(kennel.SessionClosed):
        fleet.map([["true"]])


def test_what_is_missing_is_named(nats):
    with pytest.raises(kennel.SessionError, match="no queue kennel") as error:
        kennel.Fleet(nats.url)
    assert "kennel serve --nats" in str(error.value.hint)
    nats.kill()
    with pytest.raises(kennel.SessionError, match=r"NATS at nats://127\.0\.0\.1"):
        kennel.Fleet(nats.url, connect_timeout=1)
    nats.start()
