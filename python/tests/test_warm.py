"""Interpreters that start before their command is known, as the package shows them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from support import until

import kennel


def interpreter() -> str:
    """A Python that commands see, and that is no script which starts another one."""
    return "/usr/bin/python3" if Path("/usr/bin/python3").exists() else str(Path(sys.executable).resolve())


PYTHON = interpreter()
WARM = {PYTHON: ["decimal"]}
IMPORTED = "import sys; print('decimal' in sys.modules)"


def wait(session: Any) -> Any:
    """The interpreter of the session, once it waits for a command."""
    return until(lambda: next((each for each in session.interpreters() if each.state == "waiting"), None), "the wait")


@pytest.fixture(scope="module", params=["session", "command"])
def warm(request: pytest.FixtureRequest, face: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with face.session(tmp_path_factory.mktemp("workspace"), warm=WARM, isolation=request.param) as made:
        yield made


def test_a_command_takes_over_the_interpreter_that_waits(warm):
    waiting = wait(warm)
    assert (waiting.program, waiting.modules, waiting.reason) == (PYTHON, ["decimal"], None)
    assert waiting.memory > 1 << 20
    done = warm.run([PYTHON, "-c", IMPORTED], text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
    assert (done.outcome.started, done.outcome.executed_because) == ("warm", None)
    assert done.outcome.raw["started"] == "warm"


def test_cold_executes_the_program(warm):
    wait(warm)
    done = warm.run([PYTHON, "-c", IMPORTED], text=True, cold=True)
    assert (done.stdout, done.outcome.started, done.outcome.executed_because) == ("False\n", "exec", None)
    # Nobody has taken the interpreter that waits.
    assert warm.run([PYTHON, "-c", IMPORTED], text=True).outcome.started == "warm"


@pytest.mark.parametrize("cold", [False, True])
def test_a_running_command_says_how_it_was_started(warm, cold):
    wait(warm)
    with warm.popen([PYTHON, "-"], stdin=PIPE, stdout=PIPE, cold=cold) as process:
        out, _ = process.communicate(IMPORTED.encode())
        outcome = process.outcome
    assert (out, outcome.started) == ((b"False\n", "exec") if cold else (b"True\n", "warm"))


@pytest.mark.parametrize("cold", [False, True])
def test_output_into_a_file_says_it_too(warm, tmp_path, cold):
    wait(warm)
    with open(tmp_path / "out", "w+b") as file:
        done = warm.run([PYTHON, "-c", IMPORTED], stdout=file, cold=cold)
        assert done.outcome.started == ("exec" if cold else "warm")
        file.seek(0)
        assert file.read() == (b"False\n" if cold else b"True\n")


def test_it_gets_what_every_command_gets(warm):
    warm.write(
        "script.py", b"import os, sys\nprint(sys.argv, os.environ['A'], os.getcwd())\nsys.exit(len(sys.stdin.read()))\n"
    )
    wait(warm)
    done = warm.run([PYTHON, "-u", "script.py", "x y"], text=True, input="four", env={"A": "1"})
    directory = warm.describe().directory
    assert (done.stdout, done.returncode) == (f"['script.py', 'x y'] 1 {directory}\n", 4)
    assert done.outcome.started == "warm"
    wait(warm)
    with pytest.raises(kennel.TimeoutExpired) as late:
        warm.run([PYTHON, "-uc", "import time; print('begun'); time.sleep(60)"], timeout=0.5)
    assert (late.value.output, late.value.outcome.started) == (b"begun\n", "warm")
    wait(warm)
    with pytest.raises(kennel.CalledProcessError) as failed:
        warm.run([PYTHON, "-c", "1/0"], check=True, text=True)
    assert failed.value.outcome.started == "warm"
    assert failed.value.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_command_that_it_cannot_become_says_why(warm):
    wait(warm)
    done = warm.run([PYTHON, "-O", "-c", "print(__debug__)"], text=True)
    assert (done.stdout, done.outcome.started) == ("False\n", "exec")
    assert "option" in done.outcome.executed_because
    other = warm.run(["true"]).outcome
    assert (other.started, other.executed_because) == ("exec", None)
    with pytest.raises(kennel.ProgramNotFoundError) as missing:
        warm.run(["no-such-program"])
    assert missing.value.outcome.started is None


def test_two_hundred_programs_have_their_own_answers(warm):
    """One that waits is awaited for every fourth. The others take what they meet."""
    warm_ones = 0
    for number in range(200):
        if number % 4 == 0:
            wait(warm)
        code = f"kept = globals().get('kept', 0) + {number}; import decimal; print(decimal.Decimal(kept) * 3, __name__)"
        done = warm.run([PYTHON, "-c", code], text=True)
        assert (done.stdout, done.stderr, done.returncode) == (f"{number * 3} __main__\n", "", 0)
        assert (done.outcome.started == "warm") == (done.outcome.executed_because is None), done.outcome
        warm_ones += done.outcome.started == "warm"
    assert warm_ones >= 50


def test_programs_side_by_side_have_their_own_answers(warm):
    def one(number: int) -> bool:
        done = warm.run([PYTHON, "-c", f"print({number} * 7)"], text=True)
        return done.stdout == f"{number * 7}\n"

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(one, range(64)))


@pytest.mark.parametrize("isolation", ["session", "command"])
def test_a_module_that_does_not_exist_is_the_reason(face, tmp_path, isolation):
    with face.session(tmp_path, warm={PYTHON: ["no_such_module"]}, isolation=isolation) as made:
        failed = until(lambda: next((each for each in made.interpreters() if each.state == "failed"), None), "the failure")
        assert "no_such_module" in failed.reason
        outcome = made.run([PYTHON, "-c", ""]).outcome
        assert (outcome.started, outcome.exit_code) == ("exec", 0)
        assert "no_such_module" in outcome.executed_because


def test_a_program_that_starts_another_one_is_the_reason(tmp_path):
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    shim = str(tmp_path / "python3")
    with kennel.Session(tmp_path, warm={shim: ()}) as made:
        failed = until(lambda: next((each for each in made.interpreters() if each.state == "failed"), None), "the failure")
        assert shim in failed.reason
        done = made.run([shim, "-c", "print(1)"])
        assert (done.stdout, done.outcome.started) == (b"1\n", "exec")
        assert shim in done.outcome.executed_because


def test_a_session_without_the_key_has_no_interpreters(session):
    assert session.interpreters() == []
    outcome = session.run([PYTHON, "-c", ""]).outcome
    assert (outcome.started, outcome.executed_because) == ("exec", None)


def test_a_report_without_it_is_that_of_an_older_session():
    outcome = kennel.Outcome.parse(b'{"ended": "exited", "exit_code": 0}')
    assert (outcome.started, outcome.executed_because) == (None, None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ruby": []}, "ruby.*names no Python"),
        ({"python3": ["os; exit()"]}, "is no name of a module"),
        ({"python3": "numpy"}, "invalid type: string"),
        (["python3"], "invalid type: list"),
    ],
)
def test_what_kennel_does_not_take_is_an_error_of_the_policy(given, words):
    with pytest.raises(kennel.PolicyError, match=words):
        kennel.Session(warm=given)


def test_keywords_add_programs_to_those_of_a_policy():
    policy = kennel.Policy(warm={"python3": ["json"]})
    made = kennel.Policy.of(policy, warm={"python3": ("decimal",), "python3.12": ()})
    assert made.to_dict() == {"warm": {"python3": ["decimal"], "python3.12": []}}
    assert policy.warm == {"python3": ["json"]}


def test_each_session_of_a_pool_has_its_interpreter(tmp_path):
    with kennel.Pool(2, workspace=tmp_path, warm=WARM) as pool:
        for _ in range(4):
            with pool.checkout() as made:
                wait(made)
                done = made.run([PYTHON, "-c", IMPORTED])
                assert (done.stdout, done.outcome.started) == (b"True\n", "warm")


def test_each_session_of_a_pool_for_asyncio_has_its_interpreter(tmp_path):
    async def one(pool: kennel.AsyncPool) -> tuple[bytes, str | None]:
        async with pool.checkout() as made:
            while [each.state for each in await made.interpreters()] != ["waiting"]:
                await asyncio.sleep(0.005)
            done = await made.run([PYTHON, "-c", IMPORTED])
            return done.stdout, done.outcome.started

    async def main() -> None:
        async with kennel.AsyncPool(2, workspace=tmp_path, warm=WARM) as pool:
            found = await asyncio.wait_for(asyncio.gather(*(one(pool) for _ in range(4))), 60)
            assert found == [(b"True\n", "warm")] * 4

    asyncio.run(main())


def test_one_command_has_nothing_to_start_ahead(tmp_path):
    with pytest.raises(TypeError, match="'warm'"):
        kennel.run(["true"], warm=WARM)
    with pytest.raises(TypeError, match="'warm'"):
        asyncio.run(kennel.arun(["true"], warm=WARM))
    file = tmp_path / "policy.toml"
    file.write_text(f'workspace = "{tmp_path}"\nwarm."{PYTHON}" = ["decimal"]\n')
    # The policy of several sessions may have it.
    for policy in (file, {"warm": WARM}, kennel.Policy(warm=WARM)):
        for done in (
            kennel.run([PYTHON, "-c", IMPORTED], policy=policy),
            asyncio.run(kennel.arun([PYTHON, "-c", IMPORTED], policy=policy)),
        ):
            assert (done.stdout, done.outcome.started, done.outcome.executed_because) == (b"False\n", "exec", None)
    with kennel.Session(policy=file) as made:
        assert wait(made).program == PYTHON


def test_an_attached_session_takes_over_interpreters_too(face, warm):
    wait(warm)
    made = face.attach(warm.socket_path if isinstance(warm, kennel.Session) else warm._made.socket_path)
    assert made.run([PYTHON, "-c", IMPORTED], stderr=subprocess.STDOUT).outcome.started == "warm"
