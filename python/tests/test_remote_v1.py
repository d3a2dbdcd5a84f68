"""What `kennel.Remote` asks of Kennel's own routes: reports, changes of overlays, and one command in one request."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from served import END, MADE, START, Fake, Request, Served, answered, frame

import kennel

DENIAL = {"protection": "proxy", "subject": "a.example:443", "reason": "not on the list", "basis": "observed"}
REPORT = {"ended": "exited", "exit_code": 3, "signal": None, "duration_ms": 5, "truncated": False, "denials": [DENIAL]}


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, Any]], Fake]]:
    """A server whose answers are given by their routes."""
    made: list[Fake] = []

    def make(routes: dict[str, Any]) -> Fake:
        def answer(request: Request) -> bytes | None:
            if request.target == "/v2/sandboxes":
                return answered(MADE, "201 Created")
            if request.method == "DELETE":
                return answered(b"", "204 No Content")
            found = routes.get(request.target)
            if found is not None:
                return found if isinstance(found, bytes) else answered(found)
            return answered({"code": 501, "message": "this route is not served"}, "501 Not Implemented")

        made.append(Fake(answer))
        return made[-1]

    yield make
    for server in made:
        server.close()


def ended(code: int) -> bytes:
    end = {"exitCode": code, "exited": True, "status": f"exit status {code}"}
    body = START + frame({"event": {"end": end}}) + END
    return answered(body)


ROUTE = "/v1/sandboxes/kennel-a/commands/7/report"


def test_the_report_of_a_command_is_its_outcome(serve):
    server = serve({"/process.Process/Start": ended(3), ROUTE: REPORT})
    with kennel.Remote(server.url, "key") as s:
        done = s.run(["true"])
        with pytest.raises(kennel.CalledProcessError, match=r"a\.example:443") as error:
            s.run(["true"], check=True)
    assert (done.returncode, done.outcome.duration_ms, done.denials[0].subject) == (3, 5, "a.example:443")
    assert error.value.denials == done.denials
    asked = next(request for request in server.requests if request.target == ROUTE)
    assert (asked.method, asked.headers["x-api-key"]) == ("GET", "key")


@pytest.mark.parametrize("status", ["404 Not Found", "409 Conflict", "501 Not Implemented", "500 Internal Server Error"])
def test_without_a_report_only_the_end_is_told(serve, status):
    refused = answered({"code": 0, "message": "none"}, status)
    server = serve({"/process.Process/Start": ended(3), ROUTE: refused})
    with kennel.Remote(server.url, "key") as s:
        done = s.run(["true"])
    assert (done.returncode, done.outcome.ended, done.outcome.exit_code, done.outcome.usage) == (3, "exited", 3, None)


def test_a_program_that_failed_to_start_is_told_by_the_report(serve):
    failed = {**REPORT, "ended": "failed", "exit_code": 127, "failure": {"message": "x: not found in the sandbox"}}
    server = serve({"/process.Process/Start": ended(127), ROUTE: failed})
    with kennel.Remote(server.url, "key") as s, pytest.raises(kennel.ProgramNotFoundError, match="not found") as error:
        s.run(["x"])
    assert (error.value.filename, error.value.outcome.exit_code) == ("x", 127)


def test_changes_are_those_of_an_overlay(serve):
    change = {"path": "50%25", "kind": "added", "file": "file"}
    committed = {
        "applied": [change],
        "left": [],
        "refused": [{**change, "reason": "somebody else changed it"}],
        "denials": [DENIAL],
    }
    server = serve({"/v1/sandboxes/kennel-a/changes": {"changes": [change]}, "/v1/sandboxes/kennel-a/commit": committed})
    with kennel.Remote(server.url, "key") as s:
        assert s.changes() == [kennel.Change("50%", "added", "file")]
        done = s.commit(["50%"], overwrite=True)
        assert done.applied == [kennel.Change("50%", "added", "file")]
        assert (done.refused[0].reason, done.denials[0].subject) == ("somebody else changed it", "a.example:443")
        s.commit()
        with pytest.raises(TypeError, match="list of paths"):
            s.commit("a")
    bodies = [request.json for request in server.requests if request.target.endswith("/commit")]
    assert bodies == [{"overwrite": True, "paths": ["50%25"]}, {"overwrite": False}]


def test_a_sandbox_without_an_overlay_says_so(serve):
    refused = answered({"code": 409, "message": "the template has no files"}, "409 Conflict")
    forbidden = answered({"code": 403, "message": "template base: commit is not set"}, "403 Forbidden")
    server = serve({"/v1/sandboxes/kennel-a/changes": refused, "/v1/sandboxes/kennel-a/commit": forbidden})
    with kennel.Remote(server.url, "key") as s:
        with pytest.raises(kennel.SessionError, match="no files"):
            s.changes()
        with pytest.raises(kennel.PolicyError, match="commit is not set"):
            s.commit()


RUN = {
    "report": REPORT,
    "stdout": {"text": "ä\n"},
    "stderr": {"base64": "/w=="},
    "files": [{"path": "o", "content": {"base64": "/w=="}}],
}


def test_one_command_is_one_request(serve):
    server = serve({"/v1/run": RUN})
    done = kennel.remote_run(
        server.url,
        "cat a",
        shell=True,
        token="key",
        template="python",
        files={"a": b"\xff", "b": "text"},
        outputs=["o", "none"],
        limits={"memory": "64M"},
        allow=[],
        input=b"in",
        timeout=5,
        env={"A": "1"},
        cwd="d",
    )
    assert isinstance(done, kennel.Completed)
    assert (done.stdout, done.stderr, done.returncode, done.files) == ("ä\n".encode(), b"\xff", 3, {"o": b"\xff"})
    assert done.denials[0].subject == "a.example:443"
    (request,) = server.requests
    assert request.headers["x-api-key"] == "key"
    assert request.json == {
        "template": "python",
        "argv": ["/bin/sh", "-c", "cat a"],
        "stdin": {"base64": "aW4="},
        "env": {"A": "1"},
        "cwd": "/home/user/d",
        "timeout": 5,
        "limits": {"memory": "64M"},
        "network": {"allow": []},
        "files": [{"path": "a", "content": {"base64": "/w=="}}, {"path": "b", "content": {"text": "text"}}],
        "outputs": ["o", "none"],
    }


def test_one_command_has_the_errors_of_run(serve):
    def run(report: dict[str, Any], **keywords: Any) -> Any:
        server = serve({"/v1/run": {**RUN, "report": {**REPORT, **report}}})
        return kennel.remote_run(server.url, ["x"], token="key", encoding="utf-8", errors="replace", **keywords)

    assert run({"ended": "signaled", "exit_code": 137, "signal": 9}).returncode == -9
    with pytest.raises(subprocess.TimeoutExpired) as late:
        run({"ended": "timed_out", "exit_code": 124}, timeout=5)
    assert (late.value.output, late.value.timeout) == ("ä\n", 5)
    with pytest.raises(kennel.CalledProcessError):
        run({}, check=True)
    with pytest.raises(kennel.ProgramNotFoundError):
        run({"ended": "failed", "exit_code": 127, "failure": {"message": "x: not found"}})
    with pytest.raises(kennel.OutputLimitExceeded):
        run({"truncated": True})
    assert run({"truncated": True}, truncate=True).truncated
    assert run({}).files == {"o": b"\xff"}


@pytest.mark.parametrize(
    "wrong", [{}, {**RUN, "report": 7}, {**RUN, "report": {}}, {**RUN, "stdout": {}}, {**RUN, "files": [7]}]
)
def test_a_wrong_answer_is_told(serve, wrong):
    server = serve({"/v1/run": wrong})
    with pytest.raises(kennel.ProtocolError):
        kennel.remote_run(server.url, ["x"], token="key")


def test_a_command_that_may_have_run_is_not_sent_again(serve):
    server = serve({})
    with pytest.raises(kennel.Unsupported, match="not served"):
        kennel.remote_run(server.url, ["x"], token="key")
    gone = answered({"code": 502, "message": "The sandbox was not found"}, "502 Bad Gateway", "x-kennel-reason: memory")
    with pytest.raises(kennel.SessionLost) as lost:
        kennel.remote_run(serve({"/v1/run": gone}).url, ["x"], token="key")
    assert lost.value.reason == "memory"
    fake = Fake(lambda _: None)
    with pytest.raises(kennel.SessionError, match="cut"):
        kennel.remote_run(fake.url, ["x"], token="key")
    assert len(fake.requests) == 1
    fake.close()
    refused = answered({"code": 400, "message": "limits.memory: more than the template has"}, "400 Bad Request")
    server = serve({"/v1/run": refused})
    with pytest.raises(kennel.PolicyError, match=r"limits\.memory"):
        kennel.remote_run(server.url, ["x"], token="key", limits={"memory": "1T"})
    assert json.loads(server.requests[0].body)["limits"] == {"memory": "1T"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A real one, whose sandboxes begin with files and may change them."""
    place = tmp_path_factory.mktemp("server")
    (place / "files").mkdir()
    (place / "files/given").write_text("one")
    config = f'[template.base]\nfiles = "{place}/files"\ncommit = true\n'
    made = Served(place, config)
    made.files = place / "files"
    yield made
    made.stop()


def test_a_real_report_tells_what_a_session_tells(server, tmp_path):
    with server.remote() as there, kennel.Session(tmp_path) as here:
        for words in (["true"], ["sh", "-c", "printf abc; exit 3"], ["sh", "-c", "kill -TERM $$"]):
            outcomes = [s.run(words).outcome for s in (there, here)]
            one, other = [(o.ended, o.exit_code, o.signal, o.stdout_bytes, o.truncated, sorted(o.raw)) for o in outcomes]
            assert one == other
            assert outcomes[0].usage.max_rss_bytes > 0
        with pytest.raises(kennel.TimeoutExpired) as late:
            there.run(["sleep", "60"], timeout=0.2)
        assert (late.value.outcome.ended, late.value.outcome.limit) == ("timed_out", "wall_time")


def test_real_changes_are_committed(server):
    with server.remote() as s:
        assert s.changes() == []
        s.write("new", b"2")
        s.remove("given")
        found = sorted(s.changes(), key=lambda change: change.path)
        assert found == [kennel.Change("given", "deleted", "file"), kennel.Change("new", "added", "file")]
        assert [change.path for change in s.commit(["new"]).applied] == ["new"]
    assert sorted(path.name for path in server.files.iterdir()) == ["given", "new"]
    with server.remote() as s:
        assert (s.read("given"), s.read("new")) == (b"one", b"2")


def test_one_real_command_in_one_request(server):
    def run(words: Any, **keywords: Any) -> Any:
        return kennel.remote_run(server.url, words, token=server.token, **keywords)

    done = run("cat in; cat; cp in out; echo $A; exit 3", shell=True, files={"in": b"1\n"}, outputs=["out", "none"])
    assert (done.stdout, done.returncode, done.files, done.outcome.ended) == (b"1\n\n", 3, {"out": b"1\n"}, "exited")
    assert run(["cat"], input="ä", encoding="utf-8").stdout == "ä"
    assert run("echo $A; pwd", shell=True, env={"A": "1"}, cwd="/tmp", text=True).stdout == "1\n/tmp\n"
    with pytest.raises(kennel.TimeoutExpired):
        run(["sleep", "60"], timeout=0.2)
    with pytest.raises(kennel.ProgramNotFoundError):
        run(["no-such-program"])
    with pytest.raises(kennel.DirectoryError):
        run(["true"], cwd="/no/such")
    with pytest.raises(kennel.CalledProcessError):
        run(["false"], check=True)
    assert run(["true"], allow=[], limits={"output": "1M"}).returncode == 0
    with pytest.raises(kennel.PolicyError, match=r"example\.com"):
        run(["true"], allow=["example.com"])
    with pytest.raises(kennel.PolicyError, match="none"):
        run(["true"], template="none")
    with pytest.raises(kennel.OutputLimitExceeded):
        run("head -c 5000 /dev/zero", shell=True, limits={"output": "1K"})
