"""Pools, one-shots, the probe, and results."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import threading
import time
from pathlib import Path

import pytest
from support import descriptors, process_start, python, until

import kennel
from kennel.results import Outcome


def test_each_session_of_a_pool_is_fresh_and_used_once(tmp_path):
    with kennel.Pool(2, workspace=tmp_path) as pool:
        names = []
        for _ in range(5):
            with pool.checkout() as session:
                names.append(session.name)
                assert session.run("test ! -e /tmp/used; echo $?; touch /tmp/used", shell=True).stdout == b"0\n"
            with pytest.raises(kennel.SessionClosed):
                session.run(["true"])
        assert len(set(names)) == 5
        with pool.checkout() as one, pool.checkout() as other:
            assert one.name != other.name
    with pytest.raises(kennel.SessionClosed, match="pool is closed"), pool.checkout():
        pass
    pool.close()
    with pytest.raises(ValueError, match="at least 1"):
        kennel.Pool(0)


def test_a_pool_tells_why_a_session_does_not_start():
    with kennel.Pool(1, profile="nonsense") as pool:
        for _ in range(2):
            with pytest.raises(kennel.PolicyError, match="nonsense"), pool.checkout():
                pass


def test_a_thread_that_waits_for_a_session_hears_that_the_pool_closes(tmp_path, monkeypatch):
    slow = tmp_path / "kennel"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("KENNEL", str(slow))
    pool = kennel.Pool(1, start_timeout=1.0)
    heard = []

    def wait() -> None:
        try:
            for _ in range(3):
                try:
                    with pool.checkout():
                        pass
                except kennel.SessionClosed:
                    raise
                except kennel.SessionError:
                    continue
        except kennel.SessionClosed as error:
            heard.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0)
    pool.close()
    thread.join()
    assert heard


def test_a_pool_for_asyncio(tmp_path):
    async def main():
        async with kennel.AsyncPool(2, workspace=tmp_path) as pool:

            async def one():
                async with pool.checkout() as session:
                    return session.name, (await session.run(["echo", "x"])).stdout

            found = await asyncio.gather(*(one() for _ in range(5)))
            assert len({name for name, _ in found}) == 5
            assert {out for _, out in found} == {b"x\n"}
        with pytest.raises(kennel.SessionClosed):
            await one()
        async with kennel.AsyncPool(1, profile="nonsense") as pool:
            with pytest.raises(kennel.PolicyError):
                async with pool.checkout():
                    pass

    asyncio.run(main())
    with pytest.raises(ValueError, match="at least 1"):
        kennel.AsyncPool(0)


def test_one_shot(tmp_path):
    done = kennel.run("cat; echo e >&2; exit 7", shell=True, input="ä", encoding="utf-8", workspace=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("ä", "e\n", 7)
    assert done.outcome.ended == "exited"
    assert kennel.run("kill -9 $$", shell=True).returncode == -9
    assert kennel.run(["pwd"], cwd="/tmp", text=True).stdout == "/tmp\n"
    assert kennel.run("echo $A", shell=True, env={"A": "1"}, text=True).stdout == "1\n"
    assert kennel.run(["touch", "x"], profile="read-only", workspace=tmp_path).returncode == 1
    assert kennel.run(["echo", "x"], stdout=subprocess.DEVNULL).stdout is None
    with pytest.raises(kennel.ProgramNotFoundError):
        kennel.run(["no-such-program"])
    with pytest.raises(kennel.CalledProcessError):
        kennel.run(["false"], check=True)
    with pytest.raises(kennel.TimeoutExpired) as late:
        kennel.run("echo before; sleep 1000", shell=True, timeout=1.0)
    assert late.value.output == b"before\n"
    with pytest.raises(kennel.PolicyError):
        kennel.run(["true"], profile="nonsense")
    with pytest.raises(ValueError, match="stdin and input"):
        kennel.run(["true"], input=b"", stdin=subprocess.DEVNULL)


def test_one_shot_for_asyncio(tmp_path):
    async def main():
        done = await kennel.arun(["cat"], input=b"x", workspace=tmp_path)
        assert done.stdout == b"x"
        with pytest.raises(kennel.ProgramNotFoundError):
            await kennel.arun(["no-such-program"])
        with pytest.raises(kennel.TimeoutExpired):
            await kennel.arun(["sleep", "1000"], timeout=0.5)
        marker = tmp_path / "runs"
        task = asyncio.create_task(kennel.arun("touch runs; exec sleep 1000", shell=True, workspace=tmp_path))
        await asyncio.to_thread(until, marker.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_one_shots_leave_no_descriptor():
    kennel.run(["true"])
    before = descriptors()
    kennel.run(["true"])
    with pytest.raises(kennel.PolicyError):
        kennel.run(["true"], profile="nonsense")
    assert descriptors() == before


def test_a_killed_interpreter_ends_its_one_shot(tmp_path):
    code = f"import kennel\nkennel.run('touch runs; exec sleep 1000', shell=True, workspace={str(tmp_path)!r})"
    with python(code) as child:
        until((tmp_path / "runs").exists)
        kids = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        started = {kid: process_start(kid) for kid in kids}
        assert started
        child.kill()
    for kid, start in started.items():
        until(lambda kid=kid, start=start: process_start(kid) != start, "the end of the session")


def test_the_probe_says_what_the_command_line_says():
    found = kennel.probe()
    assert found.verdict
    assert found.host["kernel"]
    assert {"seccomp", "landlock"} <= {each.name for each in found.findings}
    assert isinstance(found.is_full, bool)


def test_a_probe_that_fails_is_an_error(tmp_path, monkeypatch):
    wrong = tmp_path / "kennel"
    wrong.write_text("#!/bin/sh\necho 'kennel: broken' >&2; exit 1\n")
    wrong.chmod(0o755)
    monkeypatch.setenv("KENNEL", str(wrong))
    with pytest.raises(kennel.SessionError, match="broken"):
        kennel.probe()


def test_an_outcome_bears_new_fields_and_lacks_old_ones():
    found = Outcome.parse(b'{"ended":"exited","exit_code":0,"new":1,"denials":[],"usage":null}', "kennel: hint: x")
    assert (found.raw["new"], found.hints, found.usage) == (1, ["x"], None)
    assert pickle.loads(pickle.dumps(found)) == found
    for wrong in (b"[]", b"{}", b'{"ended":"x","exit_code":0,"denials":[1]}', b'{"ended":"x","exit_code":0,"denials":7}'):
        with pytest.raises(kennel.ProtocolError):
            Outcome.parse(wrong)
