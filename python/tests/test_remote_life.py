"""The life of a sandbox of `kennel.Remote`: how it begins, how it ends, and who is told. Fronts and hosts are killed."""

from __future__ import annotations

import gc
import os
import pickle
import secrets
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from served import Served, missing, running
from support import PATIENCE, python, until

import kennel


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("server"))
    yield made
    made.stop()


def lost(s: kennel.Remote, reason: str) -> None:
    for call in [
        lambda: s.run(["true"]),
        lambda: s.read("a"),
        lambda: s.write("a", b""),
        lambda: s.stat("a"),
        lambda: s.exists("a"),
        lambda: s.renew(60),
    ]:
        with pytest.raises(kennel.SessionLost, match="has ended") as error:
            call()
        assert error.value.reason == reason
        assert pickle.loads(pickle.dumps(error.value)).reason == reason
    assert issubclass(kennel.SessionLost, kennel.SessionClosed)


def in_background(call: Any) -> tuple[threading.Thread, list[Any]]:
    """Runs in a thread, which tells its error or result."""
    told: list[Any] = []

    def work() -> None:
        try:
            told.append(call())
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, told


def running_command(s: kennel.Remote, mark: str) -> tuple[threading.Thread, list[Any]]:
    found = in_background(lambda: s.run(["sh", "-c", "echo begun >>count; echo begun; sleep 600; true", mark]))
    until(lambda: s._sandbox.call("process.Process/List", {})["processes"] and s.exists("count"), "the start of the command")
    return found


def test_a_sandbox_that_somebody_ended_is_lost(server):
    with server.remote() as s:
        thread, told = running_command(s, secrets.token_hex(8))
        other = kennel.Remote.attach(s.url, s.id, server.token)
        other._sandbox.control("DELETE", f"/sandboxes/{s.id}")
        thread.join(PATIENCE)
        assert isinstance(told[0], kennel.SessionLost)
        assert told[0].reason == "ended"
        lost(s, "ended")
    with pytest.raises(kennel.SessionLost):
        kennel.Remote.attach(s.url, s.id, server.token)


def test_a_sandbox_whose_time_is_over_is_lost_and_renewal_keeps_it(server):
    with server.remote(timeout=2) as kept, server.remote(timeout=2) as s:
        kept.renew(60)
        thread, told = running_command(s, secrets.token_hex(8))
        thread.join(PATIENCE)
        assert isinstance(told[0], kennel.SessionLost), told
        assert told[0].reason == "expired"
        lost(s, "expired")
        assert kept.run(["true"]).returncode == 0


def test_a_killed_host_is_told_as_a_lost_session(tmp_path):
    server = Served(tmp_path)
    try:
        with server.remote() as s:
            thread, told = running_command(s, secrets.token_hex(8))
            for pid in server.hosts():
                os.kill(pid, signal.SIGKILL)
            thread.join(PATIENCE)
            assert isinstance(told[0], kennel.SessionLost), told
            assert told[0].reason == "session_lost"
            lost(s, "session_lost")
        until(lambda: len(server.hosts()) == 2, "new hosts")
        with server.remote() as s:
            assert s.run(["true"]).returncode == 0
    finally:
        server.stop()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_killed_front_is_no_exit_status_and_the_sandbox_goes_on(tmp_path, kind):
    server = Served(tmp_path, 'orphan = "60s"\n', f"unix:{tmp_path}/s" if kind == "unix" else "127.0.0.1:0")
    try:
        with server.remote() as s:
            mark = secrets.token_hex(8)
            thread, told = running_command(s, mark)
            server.kill_front()
            thread.join(PATIENCE)
            assert type(told[0]) is kennel.SessionError, told
            assert "cut" in str(told[0])
            with pytest.raises(kennel.SessionError, match=r"refused|No such file"):
                s.run(["true"])
            # It could not be killed, so it goes on until somebody does.
            assert running(mark.encode())
            server.start(f"unix:{tmp_path}/s" if kind == "unix" else None)
            # Connections that were kept are closed, and nothing was sent on them.
            assert s.run(["cat", "count"]).stdout == b"begun\n"
            command = {"process": {"pid": 1}, "signal": "SIGNAL_SIGKILL"}
            s._sandbox.call("process.Process/SendSignal", command)
            until(lambda: not running(mark.encode()), "the end of the command")
    finally:
        server.stop()


def test_a_kept_connection_that_is_closed_is_no_error(tmp_path):
    server = Served(tmp_path, 'orphan = "60s"\n')
    try:
        with server.remote() as s:
            assert s.run(["true"]).returncode == 0
            assert s._sandbox.server._kept
            server.kill_front()
            server.start()
            assert s.run(["true"]).returncode == 0
            # A front that is just being started anew is waited for.
            server.kill_front()
            later = threading.Timer(0.3, server.start)
            later.start()
            s.write("a", b"1")
            later.join()
    finally:
        server.stop()


def test_a_sandbox_ends_with_its_block_and_its_program(server, monkeypatch):
    def is_there(name: str) -> bool:
        try:
            kennel.Remote.attach(server.url, name, server.token)
        except kennel.SessionLost:
            return False
        return True

    with server.remote() as s:
        assert is_there(s.id)
        kennel.Remote.attach(server.url, s.id, server.token).close()
        assert is_there(s.id)
    s.close()
    assert not is_there(s.id)
    with pytest.raises(kennel.SessionClosed, match="is closed"):
        s.run(["true"])

    name = server.remote().id
    gc.collect()
    assert not is_there(name)
    code = "import kennel, sys; s = kennel.Remote(sys.argv[1]); print(s.id); sys.exit(1)"
    monkeypatch.setenv("E2B_API_KEY", server.token)
    name = python(code, server.url).communicate()[0].strip()
    assert name.startswith("kennel-")
    assert not is_there(name)

    # The first error is the one that a program sees.
    with pytest.raises(KeyError), server.remote(timeout=60) as s:
        monkeypatch.setattr(s._sandbox, "control", lambda *_, **__: 1 / 0)
        raise KeyError
    with server.remote() as s:
        pid = os.fork()
        if not pid:
            os._exit(s.run(["sh", "-c", "exit 5"]).returncode)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        pid = os.fork()
        if not pid:
            s.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert s.run(["true"]).returncode == 0


# Creation.


def test_a_refused_creation_says_why(server, tmp_path):
    for keywords, words in [
        ({"template": "none"}, "template .*none"),
        ({"timeout": 1e6}, "timeout: "),
        ({"allow": ["example.com"]}, "network"),
    ]:
        with pytest.raises(kennel.PolicyError, match=words):
            server.remote(**keywords)
    with pytest.raises(kennel.SessionError, match="no token has this key") as error:
        kennel.Remote(server.url, "wrong")
    assert "E2B_API_KEY" in str(error.value.hint)
    with pytest.raises(kennel.SessionError, match="X-API-KEY is missing"):
        kennel.Remote(server.url, "")
    with pytest.raises(ValueError, match="token"):
        kennel.Remote(server.url, "a\r\nb: c")
    with pytest.raises(TypeError, match="lists of hosts"):
        server.remote(allow="example.com")


def test_what_a_creation_names_is_there(server):
    with server.remote(env={"A": "1"}, metadata={"b": "2"}, allow=[]) as s:
        assert s.run("echo $A", shell=True).stdout == b"1\n"
        assert s.run("echo $A", shell=True, env={"A": "2"}).stdout == b"2\n"
        assert b'"b":"2"' in s._sandbox.control("GET", f"/sandboxes/{s.id}")
        assert repr(s) == f"<kennel.Remote {s.id} at {server.url}>"


def test_bad_addresses_are_refused_at_once():
    for url in [
        "",
        "127.0.0.1:49983",
        "ftp://127.0.0.1",
        "http://",
        "http://host:x",
        "http://host:99999",
        "http://user:key@host",
        "http://host/path",
        "http://host?query",
        "http+unix://relative",
        "http+unix://",
    ]:
        with pytest.raises(ValueError, match="write http"):
            kennel.Remote(url, "key")


def test_a_server_that_is_not_there_is_an_error_soon(tmp_path):
    begun = time.monotonic()
    for url in ["http://127.0.0.1:1", f"http+unix://{tmp_path}/none", "https://127.0.0.1:1"]:
        with pytest.raises(kennel.SessionError, match=r"refused|No such file"):
            kennel.Remote(url, "key")
    assert time.monotonic() - begun < 10


def test_a_socket_may_be_encoded_in_an_address(tmp_path):
    (tmp_path / "a b").mkdir()
    server = Served(tmp_path, listen=f"unix:{tmp_path}/a b/s")
    try:
        path = f"{tmp_path}/a b/s"
        for url in [path.replace(" ", "%20"), path.replace(" ", "%20").replace("/", "%2F")]:
            with kennel.Remote(f"http+unix://{url}", server.token) as s:
                assert s.run(["true"]).returncode == 0
    finally:
        server.stop()


def test_a_creation_waits_for_room_within_its_time(tmp_path):
    server = Served(tmp_path, 'sandboxes = 1\nadmit_wait = "100ms"\n')
    try:
        first = server.remote()
        begun = time.monotonic()
        with pytest.raises(kennel.SessionError):
            server.remote(start_timeout=2)
        assert time.monotonic() - begun < 10
        later = threading.Timer(1.5, first.close)
        later.start()
        with server.remote(start_timeout=60) as s:
            assert s.run(["true"]).returncode == 0
        later.join()
    finally:
        server.stop()


def test_tls_is_verified(tmp_path):
    if not shutil.which("openssl"):
        missing("openssl makes the certificate")
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(words, check=True, capture_output=True)
    server = Served(tmp_path, f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n')
    try:
        url = server.url.replace("127.0.0.1", "localhost")
        with pytest.raises(kennel.SessionError, match=r"(?i)certificate"):
            kennel.Remote(url, server.token)
        context = ssl.create_default_context(cafile=certificate)
        with pytest.raises(kennel.SessionError, match=r"(?i)certificate"):
            kennel.Remote(server.url, server.token, ssl_context=context)
        with kennel.Remote(url, server.token, ssl_context=context) as s:
            given = os.urandom(2_000_000)
            assert s.run(["cat"], input=given).stdout == given
            assert s.run("exit 3", shell=True).returncode == 3
            server.kill_front()
            server.start()
            assert s.run("exit 3", shell=True).returncode == 3
    finally:
        server.stop()
