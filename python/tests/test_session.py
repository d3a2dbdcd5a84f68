"""Sessions: their start, their end, who ends them, and what else they can do."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support import detached, process_start, python, until

import kennel
from kennel import _launch


def is_gone(socket_path: str) -> bool:
    return not os.path.exists(socket_path)


def host_of(session: kennel.Session) -> int:
    assert session._host is not None
    return session._host.process.pid


# Start and end.


def test_a_session_starts_with_its_policy_and_ends_with_its_block(tmp_path):
    with kennel.Session(tmp_path, profile="read-only", name="named-by-a-test", hostname="inside") as made:
        assert made.name == "named-by-a-test"
        assert made.socket_path.endswith("/named-by-a-test.sock")
        assert made.run(["uname", "-n"], text=True).stdout == "inside\n"
        assert made.run(["touch", "x"]).returncode != 0
        described = made.describe()
        assert (described.profile, described.workspace) == ("read-only", str(tmp_path))
        assert (described.directory, described.isolation) == (str(tmp_path), "session")
        assert described.enforcement["level"] in ("full", "partial")
        process = host_of(made)
    assert is_gone(made.socket_path)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    made.close()
    with pytest.raises(kennel.SessionClosed, match="is closed"):
        made.run(["true"])
    with pytest.raises(kennel.SessionClosed):
        made.read("x")


def test_a_session_that_ends_at_once_leaves_no_socket(tmp_path):
    for _ in range(10):
        made = kennel.Session(tmp_path)
        made.close()
        assert is_gone(made.socket_path)


def test_the_current_directory_is_the_workspace(tmp_path):
    with kennel.Session() as made:
        assert made.run(["pwd"], text=True).stdout == f"{tmp_path}\n"


def test_configuration_of_the_workspace_is_not_read(tmp_path):
    (tmp_path / "kennel.toml").write_text("nonsense = 1")
    with kennel.Session(tmp_path) as made:
        assert made.run(["true"]).returncode == 0


@pytest.mark.parametrize(
    ("keywords", "kind", "words"),
    [
        ({"profile": "nonsense"}, kennel.PolicyError, "unknown variant"),
        ({"limits": {"memory": "-1"}}, kennel.PolicyError, "memory|invalid|size"),
        ({"limits": {"memorry": 1}}, kennel.PolicyError, "unknown key 'memorry'"),
        ({"nonsense": 1}, kennel.PolicyError, "unknown key 'nonsense'"),
        ({"workspace": "/nowhere"}, kennel.Error, "/nowhere"),
        ({"name": "../x"}, kennel.Error, "name"),
        (
            {"limits": {"memory": "1G", "cgroup": "off"}, "require": {"memory": "required"}},
            kennel.Unsupported,
            "cannot be kept in full",
        ),
        ({"allow": ["not a rule"]}, kennel.PolicyError, "rule|not a rule"),
    ],
)
def test_a_session_that_cannot_start_says_why(keywords, kind, words):
    with pytest.raises(kind, match=words):
        kennel.Session(**keywords)


def test_a_name_is_taken_once(blocking):
    with pytest.raises(kennel.SessionError, match=blocking.name):
        kennel.Session(name=blocking.name)
    assert blocking.run(["true"]).returncode == 0


def test_a_session_that_does_not_start_in_time_is_killed(tmp_path, monkeypatch):
    slow = tmp_path / "kennel"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("KENNEL", str(slow))
    with pytest.raises(kennel.SessionError, match=r"did not start within 0\.2 s") as late:
        kennel.Session(start_timeout=0.2)
    assert "start_timeout" in late.value.hint


@pytest.mark.parametrize("script", ["exit 3", "echo garbage >&2; exit 1", "printf /tmp", "kill -9 $$"])
def test_an_executable_that_is_no_kennel_is_an_error(tmp_path, monkeypatch, script):
    wrong = tmp_path / "kennel"
    wrong.write_text(f"#!/bin/sh\n{script}\n")
    wrong.chmod(0o755)
    monkeypatch.setenv("KENNEL", str(wrong))
    with pytest.raises(kennel.SessionError):
        kennel.Session()


def test_the_executable_is_found_or_the_remedy_is_named(tmp_path, monkeypatch):
    real = _launch.executable()
    monkeypatch.setenv("KENNEL", "/nowhere/kennel")
    with pytest.raises(kennel.SessionError, match="KENNEL names"):
        _launch.executable()
    monkeypatch.delenv("KENNEL")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "scripts"))
    monkeypatch.setenv("PATH", "relative:.")
    Path("kennel").symlink_to(real)
    with pytest.raises(kennel.SessionError, match="was not found") as missing:
        _launch.executable()
    assert "install the wheel" in missing.value.hint
    for directory in ("path", "scripts", "bin"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "kennel").symlink_to(real)
        monkeypatch.setenv("PATH", str(tmp_path / "path"))
        assert _launch.executable() == str(tmp_path / directory / "kennel")


def test_a_session_that_was_killed_is_an_error_of_each_method(tmp_path):
    with kennel.Session(tmp_path) as made:
        os.kill(host_of(made), signal.SIGKILL)
        made._host.process.wait()
        for do in (
            lambda: made.run(["true"]),
            lambda: made.popen(["true"]),
            lambda: made.read("x"),
            lambda: made.stats(),
            lambda: made.detach(["true"]),
            lambda: made.shell().run("true"),
        ):
            with pytest.raises(kennel.SessionClosed, match="has ended: status -9"):
                do()


def test_a_command_whose_session_is_killed_is_an_error(tmp_path):
    with kennel.Session(tmp_path) as made:
        thread = threading.Thread(
            target=lambda: (until(made.processes), os.kill(host_of(made), signal.SIGKILL)), daemon=True
        )
        thread.start()
        with pytest.raises(kennel.SessionClosed):
            made.run(["sleep", "1000"])
        thread.join()


def test_a_stopped_session_ends_all_the_same(tmp_path, monkeypatch):
    made = kennel.Session(tmp_path)
    os.kill(host_of(made), signal.SIGSTOP)
    made._host.end(patience=0.2)
    made.close()
    assert is_gone(made.socket_path)
    assert is_gone(made.socket_path.removesuffix("sock") + "lock")


def test_a_stopped_session_does_not_answer_within_the_bound(tmp_path, monkeypatch):
    from kennel import _connection

    monkeypatch.setattr(_connection, "MARGIN_SECONDS", 0.1)
    monkeypatch.setattr(_connection, "QUESTION_SECONDS", 0.2)
    with kennel.Session(tmp_path) as made:
        os.kill(host_of(made), signal.SIGSTOP)
        try:
            with pytest.raises(kennel.SessionError, match="did not answer"):
                made.run(["true"], timeout=0.1)
            with pytest.raises(kennel.SessionError, match="did not answer"):
                made.stats()
        finally:
            os.kill(host_of(made), signal.SIGCONT)


def test_an_object_that_is_gone_ends_its_session(tmp_path):
    made = kennel.Session(tmp_path)
    path = made.socket_path
    del made
    gc.collect()
    assert is_gone(path)


ENDS = {
    "killed": "os.kill(os.getpid(), 9)",
    "exits": "os._exit(0)",
    "ends": "",
    "raises": "raise SystemExit(1)",
}


@pytest.mark.parametrize("way", ENDS)
def test_an_interpreter_that_is_gone_leaves_nothing(tmp_path, way):
    code = f"""
import kennel, os, sys
s = kennel.Session({str(tmp_path)!r})
s.detach(["sleep", "1000"])
p = s.popen(["sleep", "1000"])
pids = [process.host_pid for process in s.processes()]
print(s.socket_path, s._host.process.pid, *pids, flush=True)
sys.stdin.read()
{ENDS[way]}
"""
    child = python(code, stdin=subprocess.PIPE)
    with child:
        path, *pids = child.stdout.readline().split()
        assert len(pids) >= 2
        identities = [process_start(pid) for pid in pids]
        assert all(identities)
        child.stdin.close()
        child.wait()
    for pid, identity in zip(pids, identities, strict=True):
        until(lambda pid=pid, identity=identity: process_start(pid) != identity, f"the end of {pid}")
    until(lambda: is_gone(path) or not answers(path), "the end of the session")


def answers(path: str) -> bool:
    try:
        kennel.attach(path).close()
    except kennel.SessionError:
        return False
    return True


# Other processes, and other objects.


def test_an_attached_session_does_the_same_and_ends_nothing(blocking):
    with kennel.attach(blocking.name) as other:
        assert other.run(["echo", "through"], text=True).stdout == "through\n"
    with kennel.attach(blocking.socket_path) as other:
        assert other.name == blocking.name
    assert blocking.run(["true"]).returncode == 0
    with pytest.raises(kennel.SessionClosed, match="nobody-has-this-name is not running"):
        kennel.attach("nobody-has-this-name")


def test_a_directory_that_others_can_enter_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(kennel.SessionError, match="yours alone"):
        kennel.attach(str(tmp_path / "open" / "x.sock"))
    with pytest.raises(kennel.SessionError, match="No such file"):
        kennel.attach(str(tmp_path / "missing" / "x.sock"))


def test_a_session_of_the_command_line_is_attached(tmp_path):
    name = f"cli-{os.getpid()}"
    subprocess.run([_launch.executable(), "session", "start", "--name", name, "--workspace", tmp_path], check=True)
    try:
        with kennel.attach(name) as other:
            assert other.run(["pwd"], text=True).stdout == f"{tmp_path}\n"
            assert other.describe().workspace == str(tmp_path)
    finally:
        subprocess.run([_launch.executable(), "session", "stop", name], check=True)


def work(session: kennel.Session, answer: Any) -> None:
    """What a process of `multiprocessing` does with a session."""
    answer.put(session.run(["echo", "from a child"], text=True).stdout)
    session.close()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_use_a_session_and_do_not_end_it(blocking, method):
    context = multiprocessing.get_context(method)
    answer = context.Queue()
    child = context.Process(target=work, args=(blocking, answer))
    child.start()
    assert answer.get(timeout=60) == "from a child\n"
    child.join()
    assert blocking.run(["true"]).returncode == 0


def test_a_fork_that_exits_as_a_program_ends_nothing(tmp_path):
    code = f"""
import kennel, os, sys
with kennel.Session({str(tmp_path)!r}) as s:
    p = s.popen(["cat"], stdin=-1, stdout=-1)
    if os.fork() == 0:
        del p
        s.close()
        sys.exit()
    os.wait()
    assert p.communicate(b"alive") == (b"alive", None)
    print(s.run(["echo", "alive"], text=True).stdout, end="")
"""
    with python(code) as child:
        assert child.communicate()[0].splitlines()[-1] == "alive"
        assert child.returncode == 0


def test_a_pickled_session_is_an_attachment(blocking):
    copy = pickle.loads(pickle.dumps(blocking))
    assert (copy.name, copy.socket_path) == (blocking.name, blocking.socket_path)
    copy.close()
    assert blocking.run(["true"]).returncode == 0
    assert blocking.name in repr(blocking)


def test_a_peer_of_another_user_gets_nothing(tmp_path):
    if os.geteuid() != 0:
        # Only root can make such a socket; for a user the directory's mode keeps others away.
        assert stat.S_IMODE(os.stat(_launch.runtime_directory()).st_mode) == 0o700
        return
    directory = tmp_path / "sockets"
    directory.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(directory / "other.sock"))
    os.seteuid(1000)
    try:
        # The kernel notes who listens.
        listener.listen()
    finally:
        os.seteuid(0)
    with listener, pytest.raises(kennel.SessionError, match="belongs to user 1000"):
        kennel.attach(str(directory / "other.sock"))


# What else a session can do.


def test_commands_that_stay(session, tmp_path):
    script = "echo out; echo $A; pwd; exit 3"
    stays = session.detach(["sh", "-c", script], log=tmp_path / "log", env={"A": "1"}, cwd="/tmp")
    done = stays.wait()
    assert (done.returncode, done.outcome.ended) == (3, "exited")
    assert b"".join(data for stream, data in stays.logs() if stream == "stdout") == b"out\n1\n/tmp\n"
    assert (tmp_path / "log").read_text() == "out\n1\n/tmp\n"
    assert b"".join(data for _, data in stays.logs(lines=1)) == b"/tmp\n"
    found = {each.id: each for each in session.detached()}[stays.id]
    assert (found.info.state, found.info.code, found.program) == ("ended", 3, "sh")
    stays.kill()
    failing = session.detach("echo err >&2", shell=True)
    failing.wait()
    assert list(failing.logs()) == [("stderr", b"err\n")]


def test_a_command_that_stays_is_followed_waited_for_and_killed(session):
    stays = session.detach("echo ready; exec sleep 1000", shell=True)
    logs = stays.logs(follow=True)
    assert next(logs) == ("stdout", b"ready\n")
    with pytest.raises(kennel.TimeoutExpired):
        stays.wait(timeout=0.05)
    stays.kill(signal.SIGKILL)
    assert stays.wait(timeout=60).returncode == -signal.SIGKILL
    assert list(logs) == []
    logs.close()


def test_output_that_is_not_kept_is_counted(session):
    stays = session.detach(["head", "-c", "3000000", "/dev/zero"])
    stays.wait()
    logs = stays.logs()
    assert sum(len(data) for _, data in logs) + logs.dropped == 3_000_000
    assert logs.dropped > 0


def test_what_cannot_stay_is_an_error(session, tmp_path):
    with pytest.raises(kennel.ProgramNotFoundError):
        session.detach(["no-such-program"])
    with pytest.raises(kennel.DirectoryError):
        session.detach(["true"], cwd="/nowhere")
    missing = detached(session, 4_000_000)
    for do in (missing.wait, missing.kill, lambda: list(missing.logs())):
        with pytest.raises(kennel.SessionError, match="4000000"):
            do()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        session.detach(["true"], log=tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_a_shell_keeps_its_state(session):
    with session.shell("kept") as shell:
        done = shell.run("mkdir -p at; cd at; export A=1; f() { echo f $A; }")
        assert done.directory == f"{session.describe().workspace}/at"
        assert shell.run("f; echo e >&2", text=True).stdout == "f 1\n"
        failed = shell.run("(exit 7)")
        assert (failed.returncode, shell.run("echo $?", text=True).stdout) == (7, "7\n")
        with pytest.raises(kennel.CalledProcessError):
            shell.run("false", check=True)
        with pytest.raises(kennel.TimeoutExpired) as late:
            shell.run("echo before; sleep 1000", timeout=1.0, text=True)
        assert late.value.output == "before\n"
        assert shell.run("echo still $A", text=True).stdout == "still 1\n"
        assert len(shell.run("echo " + "x" * 100_000).stdout) == 100_001
        assert session.shell("other").run("echo $A").stdout == b"\n"
    session.shell("other").close()
    assert session.shell("kept").run("echo $A").stdout == b"\n"


def test_an_overlay_is_listed_committed_and_discarded(face, tmp_path):
    (tmp_path / "old").write_text("old")
    made = face.session(tmp_path, overlay={}, isolation="command")
    with made:
        made.run("echo new > new; echo changed > old; echo other > other", shell=True, check=True)
        assert {(each.path, each.kind) for each in made.changes()} == {
            ("new", "added"),
            ("old", "modified"),
            ("other", "added"),
        }
        done = made.commit(["new"])
        assert [(each.path, each.kind, each.file) for each in done.applied] == [("new", "added", "file")]
        assert sorted(each.path for each in done.left) == ["old", "other"]
        assert (tmp_path / "new").read_text() == "new\n"
        (tmp_path / "old").write_text("meanwhile")
        refused = made.commit(["old"]).refused
        assert [each.path for each in refused] == ["old"]
        assert refused[0].reason
        assert [each.path for each in made.commit(["old"], overwrite=True).applied] == ["old"]
        with pytest.raises(TypeError):
            made.commit("old")
        made.discard()
        with pytest.raises(kennel.SessionClosed):
            made.changes()
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


def test_a_session_without_an_overlay_has_no_changes(session):
    with pytest.raises(kennel.SessionError, match="overlay"):
        session.changes()


def test_processes_and_numbers(session):
    with session.popen(["sleep", "1000"]) as sleeping:
        found = until(lambda: [each for each in session.processes() if each.arguments == ["sleep", "1000"]])
        assert Path(f"/proc/{found[0].host_pid}").exists()
        assert session.stats().running >= 1
        sleeping.kill()
        sleeping.wait()
    assert session.stats().served >= 1


SERVER = "import http.server as h; h.HTTPServer(('127.0.0.1', 8123), h.SimpleHTTPRequestHandler).serve_forever()"


def test_ports_are_published_and_connected_to(session, workspace):
    (workspace / "page").write_text("served")
    with session.popen(["python3", "-c", SERVER], stderr=subprocess.DEVNULL) as server:
        connection = until(lambda: connected(session, 8123), "the server")
        with connection:
            connection.setblocking(True)
            connection.sendall(b"GET /page HTTP/1.0\r\n\r\n")
            assert connection.makefile("rb").read().endswith(b"served")
        published = session.publish("0:8123")
        assert published in session.published()
        assert published.inside == 8123
        with urllib.request.urlopen(f"http://{published.address}/page") as page:
            assert page.read() == b"served"
        server.kill()
        server.wait()
    with pytest.raises(ConnectionRefusedError):
        session.connect(8123)
    with pytest.raises(kennel.Error):
        session.publish("no port")


def connected(session: kennel.Session, port: int) -> socket.socket | None:
    try:
        return session.connect(port)
    except ConnectionRefusedError:
        return None


def test_a_session_that_nobody_uses_ends_after_its_time(tmp_path):
    made = kennel.Session(tmp_path, idle=0.5)
    # To ask for numbers is no use.
    with pytest.raises(kennel.SessionClosed):
        until(lambda: made.stats().idle_ms is None)
    until(lambda: is_gone(made.socket_path))
    made.close()
