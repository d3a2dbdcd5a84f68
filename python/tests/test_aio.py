"""What `kennel.AsyncSession` has of its own: tasks, cancellation, streams of asyncio."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from support import PATIENCE, descriptors

import kennel


def run(work: Callable[[kennel.AsyncSession], Coroutine[Any, Any, Any]], **keywords: Any) -> Any:
    """Runs a test with a session of its own."""

    async def main() -> Any:
        async with kennel.AsyncSession(**keywords) as session:
            return await work(session)

    return asyncio.run(main())


async def until(condition: Callable[[], Awaitable[Any]], what: str = "it") -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := await condition()):
        assert time.monotonic() < end, f"{what} did not happen"
        await asyncio.sleep(0.005)
    return found


def test_sixty_four_tasks_run_commands_and_no_thread_is_made():
    async def work(s):
        async def one(number):
            for each in range(4):
                done = await s.run(["echo", f"{number} {each}"], text=True)
                assert done.stdout == f"{number} {each}\n"

        await asyncio.gather(*(one(number) for number in range(64)))
        assert threading.active_count() == before

    before = threading.active_count()
    run(work)


@pytest.mark.parametrize("way", ["run", "files", "shell"])
def test_a_task_that_is_cancelled_kills_its_command(way, tmp_path):
    async def work(s):
        script = "sleep 1000 & sleep 1000"
        if way == "run":
            command = s.run(script, shell=True)
        elif way == "files":
            command = s.run(script, shell=True, stdout=subprocess.DEVNULL)
        else:
            command = s.shell().run("sleep 1000")
        task = asyncio.create_task(command)

        async def sleeps():
            return [each for each in await s.processes() if each.name == "sleep"]

        await until(sleeps, "the start")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def is_gone():
            return not await sleeps()

        await until(is_gone, "the end of what the command started")

    run(work)


def test_wait_for_kills_too():
    async def work(s):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(s.run(["sleep", "1000"]), 0.5)

        async def is_gone():
            return not await s.processes()

        await until(is_gone)

    run(work)


def test_popen_streams():
    async def work(s):
        async with await s.popen(["cat"], stdin=PIPE, stdout=PIPE, stderr=PIPE) as cat:
            cat.stdin.write(b"line\n")
            assert await cat.stdout.readline() == b"line\n"
            assert cat.returncode is None
            with pytest.raises(RuntimeError, match="runs"):
                _ = cat.outcome
            given = os.urandom(2_000_000)
            assert await cat.communicate(given) == (given, b"")
            assert (cat.returncode, cat.outcome.ended) == (0, "exited")
        async with await s.popen(["true"], stdin=PIPE) as deaf:
            assert await deaf.communicate(given) == (None, None)
        async with await s.popen(["sleep", "1000"]) as killed:
            killed.kill()
            assert await killed.wait() == -signal.SIGKILL
            killed.terminate()
        async with await s.popen(["no-such-program"]) as missing:
            for _ in range(2):
                with pytest.raises(FileNotFoundError):
                    await missing.wait()
        with pytest.raises(kennel.ProgramNotFoundError):
            await s.popen(["no-such-program"], terminal=(24, 80))
        with pytest.raises(ValueError, match="stdin=PIPE"):
            await (await s.popen(["true"])).communicate(b"x")

    run(work)


@pytest.mark.parametrize("way", ["close", "gone", "exception"])
def test_a_command_that_nobody_has_any_more_is_killed(way):
    async def work(s):
        running = await s.popen(["sleep", "1000"], stdout=PIPE)
        await until(s.processes, "the start")
        if way == "close":
            running.close()
            with pytest.raises(kennel.SessionClosed):
                await running.wait()
        elif way == "exception":
            with pytest.raises(ZeroDivisionError):
                async with running:
                    raise ZeroDivisionError
        del running

        async def is_gone():
            return not await s.processes()

        gc.collect()
        await until(is_gone, "the end")

    run(work)


def test_a_terminal_is_one():
    async def work(s):
        async with await s.popen(["sh", "-c", "stty size; read x; echo got $x; stty size"], terminal=(30, 90)) as shell:
            seen = b""
            while b"30 90" not in seen:
                seen += await shell.stdout.read(1000)
            shell.resize(40, 100)
            shell.stdin.write(b"it\n")
            seen += await shell.stdout.read()
            assert await shell.wait() == 0
        assert b"got it" in seen
        assert b"40 100" in seen
        async with await s.popen(["true"]) as plain:
            with pytest.raises(ValueError, match="no terminal"):
                plain.resize(1, 1)

    run(work)


def test_a_cancelled_write_leaves_nothing(tmp_path, monkeypatch):
    async def work(s):
        async def cancelled(*_: object) -> None:
            raise asyncio.CancelledError

        monkeypatch.setattr("kennel._loop.off_loop", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await s.write("half", b"half")
        assert await s.list() == []

    run(work)


def test_start_and_end(tmp_path):
    async def main():
        made = kennel.AsyncSession(profile="nonsense")
        with pytest.raises(kennel.PolicyError, match="nonsense"):
            await made.start()
        made = await kennel.AsyncSession(tmp_path).start()
        other = await kennel.AsyncSession.attach(made.name)
        assert (await other.run(["echo", "x"])).stdout == b"x\n"
        assert (await pickle.loads(pickle.dumps(made)).run(["echo", "x"])).stdout == b"x\n"
        await other.close()
        await made.close()
        await made.close()
        assert not Path(made.socket_path).exists()
        with pytest.raises(kennel.SessionClosed):
            await made.run(["true"])
        with pytest.raises(kennel.SessionClosed):
            await kennel.AsyncSession.attach(made.name)
        killed = await kennel.AsyncSession(tmp_path).start()
        os.kill(killed._host.process.pid, signal.SIGKILL)
        killed._host.process.wait()
        with pytest.raises(kennel.SessionClosed, match="status -9"):
            await killed.run(["true"])
        await killed.close()

    asyncio.run(main())


def test_a_policy_file_may_be_given(tmp_path):
    (tmp_path / "policy.toml").write_text("profile = 'read-only'\nlimits.pids = 50")

    async def work(s):
        assert (await s.describe()).profile == "read-only"

    run(work, policy=tmp_path / "policy.toml", limits={"memory": "1G"})


def test_a_start_that_is_cancelled_leaves_nothing(tmp_path, monkeypatch):
    slow = tmp_path / "kennel"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("KENNEL", str(slow))

    async def main():
        made = kennel.AsyncSession()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(made.start(), 0.2)
        assert made._host.process.returncode is not None

    asyncio.run(main())


def test_no_descriptor_is_left():
    async def work(s):
        await s.run(["true"])
        before = descriptors()
        for _ in range(5):
            await s.run(["cat"], input=b"x")
            await s.write("x", b"x")
            await s.read("x")
            async with await s.popen(["cat"], stdin=PIPE, stdout=PIPE) as cat:
                await cat.communicate(b"x")
            async with await s.popen(["true"], terminal=(24, 80)) as short:
                await short.wait()
        # Transports close their pipes in the next turn of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        assert descriptors() == before

    run(work)
