"""`Session.run`: each keyword, and its error."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
from support import descriptors, until

import kennel
from kennel import _connection


def test_output_and_status_are_those_of_the_command(session):
    done = session.run(["sh", "-c", "printf out; printf err >&2; exit 7"])
    assert isinstance(done, subprocess.CompletedProcess)
    assert (done.stdout, done.stderr, done.returncode) == (b"out", b"err", 7)
    assert (done.outcome.ended, done.outcome.exit_code) == ("exited", 7)
    assert done.outcome.usage is not None
    assert done.outcome.raw["stdout_bytes"] == 3
    with pytest.raises(kennel.CalledProcessError):
        done.check_returncode()


def test_a_signal_is_a_negative_status(session):
    done = session.run("kill -TERM $$", shell=True)
    assert done.returncode == -15
    assert done.outcome.signal == 15


@pytest.mark.parametrize("code", [124, 125, 126, 127])
def test_a_command_may_have_the_status_of_kennels_own_errors(session, code):
    assert session.run(f"exit {code}", shell=True, timeout=60).returncode == code


def test_text_is_decoded_as_subprocess_does(session):
    script = "printf 'a\\r\\nb\\rc\\303\\244'"
    here = subprocess.run(script, shell=True, check=False, stdout=subprocess.PIPE, encoding="utf-8")
    assert session.run(script, shell=True, encoding="utf-8").stdout == here.stdout
    assert session.run(script, shell=True).stdout == b"a\r\nb\rc\xc3\xa4"
    assert session.run(["cat"], input="ä", encoding="latin-1").stdout == "ä"


def test_output_that_is_no_text_is_an_error_or_replaced(session):
    with pytest.raises(UnicodeDecodeError):
        session.run("printf '\\377'", shell=True, encoding="utf-8")
    assert session.run("printf '\\377'", shell=True, encoding="utf-8", errors="replace").stdout == "\ufffd"
    assert session.run("printf '\\377'", shell=True).stdout == b"\xff"


def test_input_arrives_whole(session):
    given = os.urandom(3_000_000)
    assert session.run(["cat"], input=given).stdout == given
    assert session.run(["cat"], input=b"").stdout == b""
    assert session.run(["cat"]).stdout == b""
    with pytest.raises(TypeError, match="input is text"):
        session.run(["cat"], input="text")
    with pytest.raises(ValueError, match="stdin and input"):
        session.run(["cat"], input=b"", stdin=subprocess.DEVNULL)


def test_stdin_may_be_a_file(session, tmp_path):
    (tmp_path / "given").write_bytes(b"from a file")
    with open(tmp_path / "given", "rb") as file:
        assert session.run(["cat"], stdin=file).stdout == b"from a file"
    with open(tmp_path / "given", "rb") as file:
        assert session.run(["cat"], stdin=file.fileno()).stdout == b"from a file"
    assert session.run(["cat"], stdin=subprocess.DEVNULL).stdout == b""
    with pytest.raises(ValueError, match="use popen"):
        session.run(["cat"], stdin=subprocess.PIPE)


def test_streams_may_be_files(session, tmp_path):
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        done = session.run("echo o; echo e >&2; exit 2", shell=True, stdout=out, stderr=err)
    assert (done.stdout, done.stderr, done.returncode) == (None, None, 2)
    assert ((tmp_path / "out").read_bytes(), (tmp_path / "err").read_bytes()) == (b"o\n", b"e\n")
    done = session.run("echo o; echo e >&2", shell=True, stdout=subprocess.DEVNULL)
    assert (done.stdout, done.stderr) == (None, b"e\n")
    for keywords in ({"stdout": subprocess.PIPE}, {"stdout": subprocess.PIPE, "capture_output": False}):
        done = session.run("echo o; echo e >&2", shell=True, stderr=subprocess.PIPE, **keywords)
        assert (done.stdout, done.stderr) == (b"o\n", b"e\n")


def test_streams_are_inherited_without_capture(tmp_path):
    code = f"import kennel\nwith kennel.Session({str(tmp_path)!r}) as s: s.run(['echo', 'through'], capture_output=False)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert ran.stdout == b"through\n"


def test_stderr_may_go_to_stdout(session):
    script = "for i in 1 2 3; do echo out $i; echo err $i >&2; done"
    done = session.run(script, shell=True, stderr=subprocess.STDOUT, text=True)
    assert done.stdout == "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"
    assert done.stderr is None
    with pytest.raises(ValueError, match="STDOUT can only"):
        session.run(["true"], stdout=subprocess.STDOUT)


def test_variables_are_added(session):
    done = session.run("echo $A; echo ${PATH:+path}", shell=True, env={"A": "1"}, text=True)
    assert done.stdout == "1\npath\n"
    assert b"B=\xff\n" in session.run(["env"], env={b"B": b"\xff"}).stdout
    with pytest.raises(ValueError, match="variable name"):
        session.run(["true"], env={"": "1"})


def test_a_directory_is_absolute_or_starts_at_the_workspace(session, workspace):
    (workspace / "below").mkdir()
    assert session.run(["pwd"], text=True).stdout.strip() == str(workspace)
    assert session.run(["pwd"], cwd="below", text=True).stdout.strip() == str(workspace / "below")
    assert session.run(["pwd"], cwd="/tmp", text=True).stdout == "/tmp\n"
    with pytest.raises(FileNotFoundError) as missing:
        session.run(["pwd"], cwd="/nowhere")
    assert isinstance(missing.value, kennel.DirectoryError)
    assert missing.value.filename == "/nowhere"
    with pytest.raises(ValueError, match="cwd is empty"):
        session.run(["pwd"], cwd="")


def test_a_missing_program_is_the_error_of_subprocess(session):
    with pytest.raises(FileNotFoundError) as missing:
        session.run(["no-such-program", "x"])
    assert isinstance(missing.value, kennel.ProgramNotFoundError)
    assert missing.value.filename == "no-such-program"
    assert missing.value.outcome.ended == "failed"
    assert missing.value.hint
    assert missing.value.hint not in str(missing.value)
    assert missing.value.hint in "".join(traceback.format_exception(missing.value)) or sys.version_info < (3, 11)
    assert pickle.loads(pickle.dumps(missing.value)).filename == "no-such-program"


def test_what_cannot_be_executed_is_the_error_of_subprocess(session):
    with pytest.raises(PermissionError) as refused:
        session.run(["/etc/passwd"])
    assert isinstance(refused.value, kennel.ProgramPermissionError)


def test_too_many_arguments_are_the_error_of_subprocess(session):
    for words in (["true", "x" * 3_000_000], ["true", *["x" * 100_000] * 100]):
        with pytest.raises(kennel.ProgramError) as refused:
            session.run(words)
        assert refused.value.errno == errno.E2BIG
        assert not isinstance(refused.value, PermissionError)
    with pytest.raises(kennel.ProgramError):
        session.detach(["true", *["x" * 100_000] * 100])


def test_a_command_needs_a_program(session):
    with pytest.raises(ValueError, match="needs a program"):
        session.run([])


def test_a_timeout_kills_and_has_the_output_until_then(session):
    with pytest.raises(kennel.TimeoutExpired) as late:
        session.run("echo before; sleep 1000 & sleep 1000", shell=True, timeout=1.0, text=True)
    assert isinstance(late.value, subprocess.TimeoutExpired)
    assert late.value.output == "before\n"
    assert late.value.outcome.ended == "timed_out"
    assert late.value.timeout == 1.0
    until(lambda: not session.processes(), "the end of everything that the command started")
    copy = pickle.loads(pickle.dumps(late.value))
    assert (copy.output, copy.outcome.ended) == ("before\n", "timed_out")


def test_a_timeout_with_files_kills_too(session, tmp_path):
    with open(tmp_path / "out", "wb") as out, pytest.raises(kennel.TimeoutExpired):
        session.run("echo before; sleep 1000", shell=True, timeout=1.0, stdout=out)
    assert (tmp_path / "out").read_bytes() == b"before\n"


def test_no_timeout_is_hit_in_time(session):
    for timeout in (600, 1e7, float("inf")):
        assert session.run(["true"], timeout=timeout).returncode == 0


def test_check_raises_with_what_was_denied(face, tmp_path):
    with face.session(tmp_path, explain=True) as explained:
        with pytest.raises(kennel.CalledProcessError) as failed:
            explained.run(["touch", "/usr/denied"], check=True)
        assert isinstance(failed.value, subprocess.CalledProcessError)
        assert failed.value.stderr
        assert failed.value.denials
        assert "/usr" in str(failed.value)
        assert pickle.loads(pickle.dumps(failed.value)).denials == failed.value.denials
        assert explained.run(["true"], check=True).denials == []


def test_a_refused_host_is_named_with_the_keyword_that_allows_it(session):
    code = "import urllib.request as r\ntry: r.urlopen('http://refused.invalid/')\nexcept OSError: raise SystemExit(1)"
    with pytest.raises(kennel.CalledProcessError) as failed:
        session.run(["python3", "-c", code], check=True)
    assert [denial.remedy for denial in failed.value.denials] == ['allow=["refused.invalid:80"] would allow it']
    assert '; allow=["refused.invalid:80"] would allow it' in str(failed.value)
    assert failed.value.outcome.message.endswith('a session started with allow=["refused.invalid:80"] would allow it')


def test_long_calls_and_long_output_pass(session):
    words = ["x" * 90_000 for _ in range(10)]
    done = session.run(["sh", "-c", 'echo "$#"', "sh", *words], text=True)
    assert done.stdout == "10\n"
    many = session.run(["head", "-c", str(64 << 20), "/dev/zero"])
    assert len(many.stdout) == 64 << 20
    assert not many.stdout.strip(b"\0")
    both = session.run("head -c 1000000 /dev/zero; head -c 2000000 /dev/zero >&2", shell=True)
    assert (len(both.stdout), len(both.stderr)) == (1_000_000, 2_000_000)
    for size in (15_000, 15_500, 16_000, 16_200, 16_383, 16_384, 16_385, 17_000):
        assert len(session.run(["head", "-c", str(size), "/dev/zero"]).stdout) == size


def test_output_beyond_the_cap_is_cut_and_said(face, tmp_path):
    with face.session(tmp_path, limits={"output": "1K"}) as small:
        with pytest.raises(kennel.OutputLimitExceeded, match=r"limits\.output") as cut:
            small.run("head -c 5000 /dev/zero; exit 3", shell=True)
        assert (cut.value.returncode, cut.value.stdout, cut.value.stderr) == (3, b"\0" * 1024, b"")
        assert cut.value.outcome.stdout_bytes == 5000
        assert "truncate=True" in cut.value.hint
        done = small.run(["head", "-c", "5000", "/dev/zero"], check=True, truncate=True)
        assert (done.truncated, done.stdout, done.outcome.stdout_bytes) == (True, b"\0" * 1024, 5000)
        assert not small.run(["head", "-c", "1024", "/dev/zero"], check=True).truncated
        assert not small.run(["echo", '"truncated":true']).truncated
        # The cut is in the middle of a character.
        script = "printf a; yes ä | tr -d '\\n' | head -c 5000"
        done = small.run(script, shell=True, encoding="utf-8", truncate=True)
        assert done.stdout == "a" + "ä" * 511 + "\ufffd"


def test_endless_output_ends_with_the_timeout(session):
    with pytest.raises(kennel.TimeoutExpired) as late:
        session.run(["yes"], timeout=1.0)
    assert late.value.output.startswith(b"y\ny\n")


def test_programs_may_be_paths(session):
    assert session.run(Path("/bin/true")).returncode == 0
    assert session.run([Path("/bin/echo"), b"bytes", Path("/p")]).stdout == b"bytes /p\n"


def test_fifty_threads_run_commands_side_by_side(session):
    wrong: list[object] = []

    def work(number: int) -> None:
        for each in range(4):
            done = session.run(["echo", f"{number} {each}"], text=True)
            if done.stdout != f"{number} {each}\n":
                wrong.append(done)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_descriptor_is_left(session):
    session.run(["true"])
    before = descriptors()
    for _ in range(5):
        session.run(["true"])
        session.run(["cat"], input=b"x")
        session.run(["head", "-c", "100000", "/dev/zero"])
        session.run("true", shell=True, stderr=subprocess.STDOUT)
        with pytest.raises(FileNotFoundError):
            session.run(["no-such-program"])
    assert descriptors() == before


def test_a_command_gets_no_descriptor_but_its_streams(session):
    done = session.run(["ls", "/proc/self/fd"], input=b"", text=True)
    assert done.stdout.split() == ["0", "1", "2", "3"]


def test_an_exception_kills_the_command(blocking, monkeypatch):
    real = _connection.receive

    def interrupt(*given):
        monkeypatch.setattr(_connection, "receive", real)
        until(lambda: any(process.name == "sleep" for process in blocking.processes()), "the start of the command")
        raise KeyboardInterrupt

    monkeypatch.setattr(_connection, "receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        blocking.run(["sleep", "1000"])
    until(lambda: not blocking.processes(), "the end of the command")


def test_a_variable_that_the_session_keeps_as_it_is_is_an_error(session):
    for name in ("HOME", "TMPDIR", "http_proxy", "NO_PROXY"):
        with pytest.raises(kennel.StartError, match=f"{name}.*keeps it as it is") as refused:
            session.run(["true"], env={name: "/elsewhere"})
        assert "env.set" in (refused.value.hint or "")
        with pytest.raises(kennel.StartError, match=name):
            session.popen(["true"], env={name: "/elsewhere"}).wait()
        with pytest.raises(kennel.StartError, match=name):
            session.detach(["true"], env={name: "/elsewhere"})
    home = session.run("printf %s $HOME", shell=True, text=True).stdout
    assert session.run("echo $HOME $A", shell=True, text=True, env={"HOME": home, "A": "1"}).stdout == f"{home} 1\n"


def test_no_words_of_kennel_are_in_cut_output():
    with kennel.Session(limits={"output": "1K"}) as small:
        with pytest.raises(kennel.OutputLimitExceeded) as cut:
            small.run(["head", "-c", "5000", "/dev/zero"])
        assert pickle.loads(pickle.dumps(cut.value)).stdout == cut.value.stdout == b"\0" * 1024
        with pytest.raises(kennel.OutputLimitExceeded) as one:
            small.run(["head", "-c", "5000", "/dev/zero"], capture_output=False, stdout=subprocess.PIPE)
        assert (one.value.stdout, one.value.stderr) == (b"\0" * 1024, None)
        with small.popen(["head", "-c", "5000", "/dev/zero"], stdout=subprocess.PIPE) as process:
            assert process.communicate()[0] == b"\0" * 1024
            assert process.outcome.truncated
        with small.shell() as shell:
            with pytest.raises(kennel.OutputLimitExceeded):
                shell.run("head -c 5000 /dev/zero")
            said = shell.run("head -c 5000 /dev/zero", truncate=True)
            assert (said.truncated, said.stdout) == (True, b"\0" * 1024)


def test_a_large_output_takes_as_much_memory_as_it_is_long():
    script = """
import kennel, resource
with kennel.Session(profile="read-only") as session:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = session.run(["head", "-c", "60000000", "/dev/zero"])
    assert len(done.stdout) == 60_000_000
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout)
    assert grown < 1.2 * 60_000_000 / 1024


def test_a_limit_that_nothing_holds_is_refused_or_told(tmp_path):
    limits = {"cpus": 1, "cgroup": "off"}
    with pytest.raises(kennel.Unsupported, match="cpus: cannot be kept here") as refused:
        kennel.run(["true"], workspace=tmp_path, limits=limits)
    assert "degrade" in (refused.value.hint or "")
    done = kennel.run(["true"], workspace=tmp_path, limits=limits, on_unavailable="degrade")
    assert [(weak.name, weak.state) for weak in done.outcome.weaker] == [("cpus", "off")]
    done = kennel.run(["true"], workspace=tmp_path, limits={"memory": "1G", "cgroup": "off"})
    assert [(weak.name, weak.state) for weak in done.outcome.weaker] == [("memory", "degraded")]
    assert "RLIMIT_DATA" in str(done.outcome.weaker[0])


def test_a_missing_workspace_is_a_missing_file(tmp_path):
    missing = tmp_path / "not here"
    with pytest.raises(FileNotFoundError) as refused:
        kennel.Session(missing)
    assert isinstance(refused.value, kennel.SessionError)
    assert (refused.value.filename, refused.value.errno) == (str(missing), errno.ENOENT)


def test_an_unknown_key_is_answered_with_the_one_that_was_meant():
    with pytest.raises(kennel.PolicyError, match="unknown key 'worksapce'; did you mean 'workspace'"):
        kennel.Session(worksapce=".")
    with pytest.raises(kennel.PolicyError, match="Limits: unknown key 'memroy'; did you mean 'memory'"):
        kennel.Session(limits={"memroy": "1G"})
    with pytest.raises(kennel.PolicyError, match=r"unknown key 'xyzzy'(\n|$)"):
        kennel.Session(xyzzy=1)


def test_the_error_of_a_connection_names_the_port(session):
    with pytest.raises(ConnectionRefusedError, match="port 9: "):
        session.connect(9)
