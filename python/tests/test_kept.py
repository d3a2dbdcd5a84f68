"""Connections that serve one command after the other."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading

import pytest
from support import until

import kennel
from kennel import _connection


def test_commands_one_after_the_other_use_one_connection():
    with kennel.Session(profile="read-only") as session:
        session.run(["true"])
        (first,) = session._kept
        for number in range(5):
            assert session.run(["sh", "-c", f"echo {number}; exit {number}"], text=True).returncode == number
            assert session._kept == [(first[0], None)]
        assert session.stats().served >= 6
        # Nobody uses the session meanwhile.
        until(lambda: session.stats().idle_ms is not None)
    assert first[0].fileno() == -1, "the end of the session closes it"


def test_side_by_side_each_command_has_its_connection():
    with kennel.Session(profile="read-only") as session:
        outputs = []
        threads = [
            threading.Thread(target=lambda n=n: outputs.append(session.run(["echo", str(n)], text=True).stdout))
            for n in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outputs) == sorted(f"{n}\n" for n in range(12))
        assert 1 <= len(session._kept) <= 8


def test_a_timeout_of_one_command_is_not_that_of_the_next(monkeypatch):
    monkeypatch.setattr(_connection, "MARGIN_SECONDS", 0.2)
    with kennel.Session(profile="read-only") as session:
        session.run(["true"], timeout=0.2)
        assert session.run(["sleep", "1"]).returncode == 0
        with pytest.raises(kennel.TimeoutExpired):
            session.run(["sleep", "60"], timeout=0.1)
        assert session.run(["true"]).returncode == 0


def test_a_forked_process_does_not_read_the_answers_of_its_parent():
    with kennel.Session(profile="read-only") as session:
        session.run(["true"])
        child = os.fork()
        if not child:
            is_own = not session._kept and session.run(["echo", "child"]).stdout == b"child\n"
            os._exit(0 if is_own else 1)
        for _ in range(20):
            assert session.run(["echo", "parent"]).stdout == b"parent\n"
        assert os.waitpid(child, 0)[1] == 0
        assert session.run(["true"]).returncode == 0


def test_a_connection_that_the_session_closed_is_replaced():
    with kennel.Session(profile="read-only") as session:
        session.run(["true"])
        kept = session._kept[0][0]
        others = []
        try:
            # More clients without a request than the session keeps.
            for _ in range(140):
                others.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                others[-1].connect(session.socket_path)
            until(lambda: not _connection.is_open(kept))
            assert session.run(["echo", "again"]).stdout == b"again\n"
        finally:
            for other in others:
                other.close()


def test_a_command_that_is_given_up_takes_its_connection_along():
    async def main() -> None:
        async with kennel.AsyncSession(profile="read-only") as session:
            await session.run(["true"])
            task = asyncio.create_task(session.run(["sleep", "600"]))
            while not await session.processes():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await session.run(["echo", "next"])).stdout == b"next\n"
            while await session.processes():
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_session_that_has_ended_is_told():
    with kennel.Session(profile="read-only") as session:
        session.run(["true"])
        session._host.process.kill()
        session._host.process.wait()
        with pytest.raises(kennel.SessionClosed):
            session.run(["true"])


def test_a_process_that_entered_a_user_namespace_loses_its_connection(tmp_path):
    script = """
import ctypes, sys, kennel
session = kennel.Session.attach(sys.argv[1])
assert session.run(["echo", "before"]).stdout == b"before\\n"
assert session._kept
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):  # CLONE_NEWUSER
    sys.exit("unshare failed")
try:
    session.run(["touch", "after"])
except kennel.SessionError:
    sys.exit(7)
"""
    with kennel.Session(tmp_path) as session:
        ended = subprocess.run([sys.executable, "-c", script, session.socket_path], capture_output=True, text=True)
        assert ended.returncode == 7, ended.stderr
        assert not (tmp_path / "after").exists()
