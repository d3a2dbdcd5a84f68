"""Commands and terminals, as E2B's documentation uses them."""

import base64
import threading
import time

import pytest
from conftest import wait_until
from e2b import CommandExitException, PtySize, Sandbox, TimeoutException


def test_a_command_answers_with_its_output_and_status(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo no; exit 7")
    assert (failed.value.exit_code, failed.value.stdout) == (7, "no\n")


def test_a_command_begins_in_its_own_directory_with_its_own_variables(server):
    with Sandbox.create(envs={"COLOR": "red", "SHAPE": "round"}) as sandbox:
        out = sandbox.commands.run('echo "$COLOR $SHAPE $HOME $PWD $E2B_SANDBOX_ID"', envs={"SHAPE": "flat"}).stdout
        assert out.split() == ["red", "flat", "/home/user", "/home/user", sandbox.sandbox_id]
        assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"


def test_what_one_command_leaves_the_next_one_finds(sandbox):
    sandbox.commands.run("echo one > /tmp/a; echo two > b; (sleep 30 & echo $! > /tmp/pid)")
    assert sandbox.commands.run("cat /tmp/a b; kill $(cat /tmp/pid) && echo alive").stdout == "one\ntwo\nalive\n"


def test_output_comes_while_the_command_runs(sandbox):
    times = []
    begun = time.monotonic()
    sandbox.commands.run(
        "for i in 1 2 3; do echo $i; sleep 0.3; done", on_stdout=lambda line: times.append(time.monotonic() - begun)
    )
    assert len(times) == 3 and times[0] < 0.25 < times[1]


def test_all_of_a_large_output_arrives_in_order(sandbox):
    out = sandbox.commands.run("seq 1 200000").stdout
    assert out == "".join(f"{number}\n" for number in range(1, 200001))


def test_bytes_that_are_no_text_do_not_end_the_stream(sandbox):
    out = sandbox.commands.run("head -c 100000 /dev/urandom | base64 -w0; printf '\\377\\376 end'").stdout
    assert out.endswith("end") and len(base64.b64decode(out[: out.index("\ufffd")] )) == 100000


def test_a_background_command_is_listed_fed_and_killed(sandbox):
    handle = sandbox.commands.run("while read line; do echo got $line; done", background=True, stdin=True)
    assert [process.pid for process in sandbox.commands.list()] == [handle.pid]
    sandbox.commands.send_stdin(handle.pid, "a line\n")
    out = []
    reading = threading.Thread(target=lambda: out.extend(stdout for stdout, _, _ in handle))
    reading.start()
    time.sleep(0.3)
    assert out == ["got a line\n"]
    assert handle.kill()
    reading.join(5)
    assert not sandbox.commands.list()
    assert not sandbox.commands.kill(handle.pid), "it is gone already"


@pytest.mark.skipif(not hasattr(__import__("e2b").sandbox_sync.commands.command.Commands, "close_stdin"), reason="a newer client")
def test_closed_input_is_the_end_of_the_file(sandbox):
    handle = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "12345")
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.strip() == "5"


@pytest.mark.skipif(not hasattr(__import__("e2b").sandbox_sync.commands.command.Commands, "stream_input"), reason="a newer client")
def test_input_can_be_streamed(sandbox):
    handle = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.stream_input(handle.pid, ["x" * 70_000 for _ in range(20)])
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.strip() == "1400000"


def test_a_command_ends_at_its_timeout(sandbox):
    begun = time.monotonic()
    # The client's own clock may be first; then the error is that of its transport.
    with pytest.raises(Exception) as late:
        sandbox.commands.run("sleep 30", timeout=0.5)
    assert isinstance(late.value, TimeoutException) or "Timeout" in type(late.value).__name__, repr(late.value)
    assert time.monotonic() - begun < 3
    wait_until(lambda: not sandbox.commands.list(), "it was killed", 2)


def test_a_command_lives_on_without_its_client_and_can_be_found_again(sandbox):
    handle = sandbox.commands.run("for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done; exit 4", background=True)
    handle.disconnect()
    time.sleep(0.5)
    with pytest.raises(CommandExitException) as ended:
        sandbox.commands.connect(handle.pid).wait()
    assert ended.value.exit_code == 4
    assert ended.value.stdout.endswith("5\n6\n") and "3" in ended.value.stdout


def test_a_killed_command_has_no_invented_status(sandbox):
    with pytest.raises(CommandExitException) as ended:
        sandbox.commands.run("kill -9 $$")
    assert ended.value.exit_code == -1 and "killed" in (ended.value.error or "")


def test_a_program_that_is_missing_says_so(sandbox):
    with pytest.raises(CommandExitException) as ended:
        sandbox.commands.run("no-such-program")
    assert ended.value.exit_code == 127 and "not found" in ended.value.stderr


def test_a_terminal_has_a_size_and_echoes(sandbox):
    handle = sandbox.pty.create(PtySize(rows=33, cols=99))
    sandbox.pty.send_stdin(handle.pid, b"stty size\n")
    time.sleep(0.3)
    sandbox.pty.resize(handle.pid, PtySize(rows=20, cols=50))
    sandbox.pty.send_stdin(handle.pid, b"stty size; exit\n")
    out = []
    handle.wait(on_pty=out.append)
    text = b"".join(out)
    assert b"33 99" in text and b"20 50" in text


def test_many_commands_run_side_by_side(sandbox):
    results = [None] * 12

    def run(number):
        results[number] = sandbox.commands.run(f"sleep 0.2; echo {number}").stdout

    threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [f"{number}\n" for number in range(12)]


def test_another_user_is_refused_with_a_sentence(sandbox):
    from e2b import InvalidArgumentException

    assert sandbox.commands.run("true", user="user").exit_code == 0
    with pytest.raises(InvalidArgumentException, match="one user"):
        sandbox.commands.run("true", user="nobody-else")
