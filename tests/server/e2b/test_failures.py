"""Fronts and hosts are killed while sandboxes work: only what ran in a killed host is lost, and that is told."""

import os
import random
import signal
import time

import e2b
import pytest
from conftest import Server, wait_until
from e2b import Sandbox, SandboxException
from load import SANDBOXES, SECONDS, Killed, Program, judge


def test_only_sandboxes_of_killed_hosts_are_lost(tmp_path):
    server = Server(tmp_path, 'orphan = "30s"\n')
    server.start()
    until = time.monotonic() + SECONDS
    programs = [Program(number, until, server.url, os.environ["E2B_API_KEY"]) for number in range(SANDBOXES)]
    killed = Killed()
    without_front: list[tuple[float, float]] = []
    try:
        for program in programs:
            program.start()
        while time.monotonic() < until - 4:
            time.sleep(2)
            if len(without_front) <= len(killed):
                begun = time.monotonic()
                server.kill()
                time.sleep(0.2)
                server.start(server.address)
                without_front.append((begun, time.monotonic()))
            else:
                index = random.randrange(2)
                victim = server.host(index)
                killed.note(f"kennel-{'ab'[index]}")
                os.kill(victim, signal.SIGKILL)
                wait_until(lambda: server.host(index) not in (None, victim), "another host takes its place", 30)
        # pytest -s shows it.
        print(judge(programs, killed, {server.url: without_front}), f"{len(without_front)} fronts killed")
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
