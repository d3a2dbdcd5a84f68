"""`kennel.Popen`: the shape of `subprocess.Popen`."""

from __future__ import annotations

import os
import signal
import subprocess
from subprocess import DEVNULL, PIPE, STDOUT

import pytest
from support import descriptors, until

import kennel


def test_streams_are_pipes(blocking):
    with blocking.popen(["cat"], stdin=PIPE, stdout=PIPE, stderr=PIPE) as cat:
        assert cat.poll() is None
        cat.stdin.write(b"line\n")
        cat.stdin.flush()
        assert cat.stdout.readline() == b"line\n"
        cat.stdin.close()
        assert cat.stdout.read() == b""
        assert cat.wait() == 0
    assert cat.returncode == 0
    assert cat.outcome.ended == "exited"
    assert cat.denials == []


def test_text_streams(blocking):
    with blocking.popen(["cat"], stdin=PIPE, stdout=PIPE, encoding="utf-8", bufsize=1) as cat:
        cat.stdin.write("ä\n")
        assert cat.stdout.readline() == "ä\n"


def test_communicate_moves_more_than_pipes_hold(blocking):
    given = os.urandom(2_000_000)
    with blocking.popen("tee /dev/stderr", shell=True, stdin=PIPE, stdout=PIPE, stderr=PIPE) as tee:
        out, err = tee.communicate(given)
    assert out == given
    assert err == given
    with blocking.popen(["true"], stdin=PIPE) as deaf:
        assert deaf.communicate(given) == (None, None)
    with blocking.popen(["true"]) as plain, pytest.raises(ValueError, match="stdin=PIPE"):
        plain.communicate(b"x")


def test_stderr_may_go_to_stdout_or_nowhere(blocking):
    with blocking.popen("echo o; echo e >&2", shell=True, stdout=PIPE, stderr=STDOUT, text=True) as both:
        assert both.communicate()[0] == "o\ne\n"
    with blocking.popen("echo o; echo e >&2", shell=True, stdout=DEVNULL, stderr=PIPE) as one:
        assert one.communicate() == (None, b"e\n")


def test_output_after_a_timeout_of_communicate_is_not_lost(blocking):
    with blocking.popen("echo first; sleep 1; echo second", shell=True, stdout=PIPE, text=True) as slow:
        with pytest.raises(subprocess.TimeoutExpired):
            slow.communicate(timeout=0.01)
        assert slow.communicate() == ("first\nsecond\n", None)


def test_signals_arrive(blocking):
    script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
    with blocking.popen(script, shell=True, stdout=PIPE) as waiting:
        assert waiting.stdout.readline() == b"ready\n"
        waiting.terminate()
        assert waiting.communicate()[0] == b"caught\n"
        assert waiting.returncode == 5
        waiting.kill()
    with blocking.popen(["sleep", "1000"]) as killed:
        killed.kill()
        assert killed.wait() == -signal.SIGKILL
    with blocking.popen(["sleep", "1000"]) as asked:
        asked.send_signal(signal.SIGINT)
        assert asked.wait() == -signal.SIGINT
        with pytest.raises(ValueError, match="not a valid"):
            asked.send_signal(0)


def test_wait_may_time_out_and_the_command_goes_on(blocking):
    with blocking.popen(["cat"], stdin=PIPE) as cat:
        with pytest.raises(subprocess.TimeoutExpired):
            cat.wait(0.01)
        assert cat.poll() is None
        cat.stdin.close()
        assert cat.wait(60) == 0


def test_a_missing_program_is_told_by_each_method_that_waits(blocking):
    with blocking.popen(["no-such-program"]) as missing:
        for _ in range(2):
            with pytest.raises(kennel.ProgramNotFoundError):
                missing.wait()
        with pytest.raises(FileNotFoundError):
            missing.communicate()
        with pytest.raises(FileNotFoundError):
            missing.poll()
        assert missing.outcome.ended == "failed"
    with pytest.raises(kennel.ProgramNotFoundError):
        blocking.popen(["no-such-program"], terminal=(24, 80))


@pytest.mark.parametrize("way", ["close", "gone", "exception"])
def test_a_command_that_nobody_has_any_more_is_killed(blocking, way):
    running = blocking.popen("sleep 1000 & sleep 1000", shell=True)
    until(lambda: len(blocking.processes()) >= 3, "the start")
    if way == "close":
        running.close()
        running.close()
        for do in (running.wait, running.poll, running.communicate, lambda made=running: made.outcome):
            with pytest.raises(kennel.SessionClosed, match="was closed"):
                do()
    elif way == "exception":
        with pytest.raises(ZeroDivisionError), running:
            raise ZeroDivisionError
    del running
    until(lambda: not blocking.processes(), "the end")


def test_a_terminal_is_one(blocking):
    script = "test -t 0 -a -t 1 -a -t 2 && stty size; read x; echo got $x; stty size"
    with blocking.popen(["sh", "-c", script], terminal=(30, 90)) as shell:
        terminal = shell.terminal
        seen = b""
        while b"30 90" not in seen:
            seen += terminal.read(1000)
        terminal.resize(40, 100)
        terminal.write(b"it\n")
        while piece := terminal.read(1000):
            seen += piece
        assert shell.wait() == 0
    assert b"got it" in seen
    assert b"40 100" in seen
    assert shell.stdin is None
    with pytest.raises(ValueError, match="terminal"):
        blocking.popen(["true"], terminal=(24, 80), stdin=PIPE)


def test_a_terminal_command_that_reads_at_once_is_not_stopped(blocking):
    for _ in range(10):
        with blocking.popen(["head", "-n", "1"], terminal=(24, 80)) as head:
            head.terminal.write(b"x\n")
            assert head.wait(60) == 0


def test_no_descriptor_is_left(blocking):
    blocking.run(["true"])
    before = descriptors()
    for _ in range(5):
        with blocking.popen(["cat"], stdin=PIPE, stdout=PIPE, stderr=PIPE) as cat:
            cat.communicate(b"x")
        with blocking.popen(["true"], terminal=(24, 80)) as short:
            short.wait()
        with pytest.raises(kennel.StartError), blocking.popen(["no-such-program"], stdout=PIPE) as missing:
            missing.wait()
        with pytest.raises(OSError, match="Bad file descriptor"):
            blocking.popen(["true"], stdin=PIPE, stdout=99_999)
    assert descriptors() == before
