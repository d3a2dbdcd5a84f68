"""`kennel.Remote` is a `kennel.Session` on a server: each promise, with a real `kennel serve`."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, running
from support import PATIENCE, blocks, python, until

import kennel
from kennel import _remote_command


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("server"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def remote(server: Served) -> Iterator[kennel.Remote]:
    with server.remote() as made:
        yield made


def refused(call: Any) -> tuple[Any, ...]:
    """An error as a program sees it."""
    try:
        call()
    except Exception as error:
        return type(error), getattr(error, "errno", None), getattr(error, "filename", None)
    raise AssertionError("it was not refused")


def program(s: Any, here: Path) -> list[Any]:
    """What a program sees of a session."""
    seen: list[Any] = []
    for words, keywords in [
        (["sh", "-c", "printf out; printf err >&2; exit 7"], {}),
        ("printf 'a\\r\\nb'; exit 3", {"shell": True, "text": True}),
        ("kill -TERM $$", {"shell": True}),
        ("kill -HUP $$", {"shell": True}),
        (["cat"], {"input": b"abc"}),
        (["cat"], {"input": "ä", "encoding": "latin-1"}),
        (["cat"], {}),
        ("echo $A; pwd", {"shell": True, "env": {"A": "ä"}, "cwd": "/tmp", "encoding": "utf-8"}),
        ("echo out; sleep 0.3; echo err >&2", {"shell": True, "stderr": subprocess.STDOUT}),
        ("exit 124", {"shell": True, "timeout": 60}),
        ("exit 125", {"shell": True}),
        ("exit 126", {"shell": True}),
        ("exit 127", {"shell": True}),
    ]:
        done = s.run(words, **keywords)
        assert isinstance(done, kennel.Completed)
        seen.append((done.stdout, done.stderr, done.returncode, done.outcome.ended, done.outcome.signal, done.truncated))
    seen += [
        refused(lambda: s.run(["no-such-program"])),
        refused(lambda: s.run(["/etc/passwd"])),
        refused(lambda: s.run(["true"], cwd="/no/such")),
        refused(lambda: s.run([])),
        refused(lambda: s.run(["a\0b"])),
        refused(lambda: s.run(["true"], env={"A=B": "1"})),
        refused(lambda: s.run(["true"], cwd="")),
        refused(lambda: s.run(["true", "x" * (9 << 20)])),
        refused(lambda: s.run(["cat"], input="text")),
        refused(lambda: s.run(["cat"], input=b"", stdin=subprocess.DEVNULL)),
        refused(lambda: s.run(["cat"], stdin=subprocess.PIPE)),
        refused(lambda: s.run("printf '\\377'", shell=True, encoding="utf-8")),
        refused(lambda: s.run("exit 1", shell=True, check=True)),
    ]
    with pytest.raises(kennel.TimeoutExpired) as late:
        s.run("echo started; sleep 60", shell=True, timeout=0.5, text=True)
    assert late.value.outcome is not None
    seen.append((late.value.output, late.value.stderr, late.value.timeout, late.value.outcome.ended))

    s.write("a", b"\0" * 300_000)
    s.write_text("b", "ä", mode=0o600)
    s.mkdir("d/e/f", parents=True)
    s.mkdir("d/e/f", exist_ok=True)
    s.run(["ln", "-s", "a", "link"], check=True)
    seen += [s.read("a"), s.read_text("b"), s.list("."), s.list("d"), s.exists("a"), s.exists("a/b"), s.exists("nothing")]
    seen += [(s.stat(path).kind, oct(s.stat(path).mode)) for path in ("a", "b", "d", "link")]
    assert abs(s.stat("a").modified.timestamp() - time.time()) < 600
    (here / "given").write_bytes(b"given")
    (here / "given").chmod(0o750)
    s.copy_in(here / "given", "taken")
    s.copy_out("taken", here / "back")
    seen += [(here / "back").read_bytes(), oct((here / "back").stat().st_mode), oct(s.stat("taken").mode)]
    for call in [
        lambda: s.read("nothing"),
        lambda: s.read("d"),
        lambda: s.read("a/b"),
        lambda: s.write("/etc/new", b""),
        lambda: s.list("a"),
        lambda: s.list("nothing"),
        lambda: s.stat("nothing"),
        lambda: s.mkdir("d"),
        lambda: s.mkdir("a", exist_ok=True),
        lambda: s.mkdir("x/y"),
        lambda: s.mkdir("/etc/new"),
        lambda: s.remove("nothing"),
        lambda: s.remove("d"),
        lambda: s.copy_out("nothing", here / "never"),
        lambda: s.copy_in(here / "nothing", "never"),
    ]:
        seen.append(refused(call))
    for path in ("a", "b", "link", "taken", "d/e/f", "d/e", "d"):
        s.remove(path)
    seen += [s.list(), (here / "never").exists()]
    return seen


def test_one_line_moves_a_program_to_a_server(server, tmp_path):
    (tmp_path / "workspace").mkdir()
    with kennel.Session(tmp_path / "workspace") as s:
        here = program(s, tmp_path)
    with kennel.Remote(server.url, server.token) as s:
        there = program(s, tmp_path)
    assert there == here


def test_streams_may_be_files(remote, tmp_path):
    (tmp_path / "in").write_bytes(b"from a file")
    with open(tmp_path / "in", "rb") as given, open(tmp_path / "out", "wb") as out:
        done = remote.run("cat; echo err >&2", shell=True, stdin=given, stdout=out)
    assert (done.stdout, done.stderr, (tmp_path / "out").read_bytes()) == (None, b"err\n", b"from a file")
    assert remote.run(["echo"], stdout=subprocess.DEVNULL).stdout is None
    code = "import kennel, sys; kennel.Remote.attach(*sys.argv[1:]).run('echo seen', shell=True, capture_output=False)"
    assert python(code, remote.url, remote.id, remote._sandbox._key["X-API-KEY"]).communicate()[0] == "seen\n"


def test_long_input_and_output_arrive_whole(remote):
    given = os.urandom(5_000_000)
    assert remote.run(["cat"], input=given).stdout == given
    remote.write("long", given)
    assert remote.read("long") == given
    assert remote.run(["cksum", "long"], text=True, check=True).stdout.split()[1] == "5000000"


def test_input_that_nobody_reads_delays_nothing(remote):
    begun = time.monotonic()
    assert remote.run(["true"], input=b"x" * 5_000_000).returncode == 0
    assert remote.run("exec 0</dev/null; echo on", shell=True, input=b"x" * 5_000_000).stdout == b"on\n"
    # A process that stays has the stdin of the command.
    held = remote.run("exec 3<&0; (sleep 30 <&3 >/dev/null 2>&1 &) ; echo off", shell=True, input=b"x" * 5_000_000)
    assert held.stdout == b"off\n"
    # Nothing comes from the caller's own stdin, and nothing of it is taken after the end.
    read, write = os.pipe()
    assert remote.run(["true"], stdin=read).returncode == 0
    os.write(write, b"later")
    assert os.read(read, 9) == b"later"
    os.close(write)
    assert remote.run(["cat"], stdin=read).stdout == b""
    os.close(read)
    assert time.monotonic() - begun < 25
    assert not [thread for thread in threading.enumerate() if thread.name == "kennel-input"]


def test_more_output_than_is_kept_is_an_error_or_cut(remote, monkeypatch):
    monkeypatch.setattr(_remote_command, "MOST_KEPT", 1000)
    with pytest.raises(kennel.OutputLimitExceeded) as error:
        remote.run("head -c 5000 /dev/zero; exit 3", shell=True)
    assert (error.value.returncode, len(error.value.stdout)) == (3, 1000)
    assert error.value.outcome.stdout_bytes == 5000
    done = remote.run("head -c 5000 /dev/zero; exit 3", shell=True, truncate=True)
    assert (done.returncode, len(done.stdout), done.truncated) == (3, 1000, True)
    assert not remote.run("head -c 1000 /dev/zero", shell=True).truncated


def test_what_a_server_cannot_take_is_said_before(remote):
    with pytest.raises(ValueError, match="UTF-8 only"):
        remote.run([b"echo", b"\xff"])
    with pytest.raises(ValueError, match="UTF-8 only"):
        remote.read(b"\xff")
    remote.write("~", b"tilde")
    assert remote.run("cat ./~", shell=True).stdout == b"tilde"


def test_many_threads_use_one_sandbox(server):
    with server.remote() as s:
        wrong: list[Any] = []

        def use(number: int) -> None:
            for turn in range(5):
                word = f"{number}-{turn}"
                try:
                    s.write(word, word.encode())
                    found = s.run(["cat", word, "-"], input=b"!").stdout, s.read(word)
                    if found != (word.encode() + b"!", word.encode()):
                        wrong.append(found)
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not wrong
        assert len(s._sandbox.server._kept) <= 8


# Cancellation and deadlines.


def test_a_command_is_killed_after_its_timeout(remote):
    mark = secrets.token_hex(8)
    with pytest.raises(kennel.TimeoutExpired):
        remote.run(["sh", "-c", "sleep 600 & wait", mark], timeout=0.3)
    until(lambda: not running(mark.encode()), "the end of the command")


def test_an_interrupt_kills_the_command(server, remote):
    mark = secrets.token_hex(8)
    code = """
import kennel, sys
s = kennel.Remote.attach(*sys.argv[1:4])
try:
    s.run(["sh", "-c", "sleep 600; echo never", sys.argv[4]])
except KeyboardInterrupt:
    print("interrupted", s.run(["echo", "goes on"], text=True).stdout)
"""
    other = python(code, remote.url, remote.id, server.token, mark)
    until(lambda: running(mark.encode(), b"sleep 600; echo never"), "the start of the command")
    other.send_signal(signal.SIGINT)
    assert other.communicate()[0] == "interrupted goes on\n\n"
    until(lambda: not running(mark.encode(), b"sleep 600; echo never"), "the end of the command")


def test_an_error_of_the_caller_kills_the_command(remote):
    mark = secrets.token_hex(8)
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError):
        remote.run(["sh", "-c", "echo a; sleep 600; echo never", mark], stdout=write)
    os.close(write)
    until(lambda: not running(mark.encode()), "the end of the command")


def test_a_silent_command_is_waited_for(remote, monkeypatch):
    """The server says that it lives, so that a dead connection can be told from a slow command."""
    monkeypatch.setattr(_remote_command, "_PING_SECONDS", 1)
    monkeypatch.setattr("kennel._http.Server.ask.__kwdefaults__", {**kennel._http.Server.ask.__kwdefaults__, "silence": 2.0})
    assert remote.run(["sleep", "4"]).returncode == 0
    monkeypatch.setattr(_remote_command, "_PING_SECONDS", 100)
    mark = secrets.token_hex(8)
    with pytest.raises(kennel.SessionError, match="did not answer in time"):
        remote.run(["sh", "-c", "sleep 600; true", mark])
    until(lambda: not running(mark.encode()), "the end of the command")


@pytest.mark.parametrize("page", ["python/README.md", "docs/server.md"])
def test_the_example_of_a_page_runs_as_it_stands(server, page, monkeypatch):
    code = next(block for block in blocks(page) if "kennel.Remote(" in block)
    monkeypatch.setenv("E2B_API_KEY", server.token)
    exec(compile(code.replace("http://127.0.0.1:49983", server.url), page, "exec"), {})
