"""`examples/bash_tool.py`: the loop of an agent with a model that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import bash_tool

import kennel


@pytest.fixture
def session(tmp_path: Path) -> Iterator[kennel.Session]:
    with kennel.Session(workspace=str(tmp_path), explain=True) as started:
        yield started


def script(*commands: str) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """A model that calls the tool with each command, and then answers with the last result."""
    left = iter(commands)

    def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        command = next(left, None)
        if command is None:
            return {"text": messages[-1]["content"]}
        return {"tool": "bash", "input": {"command": command}}

    return model


def test_the_shell_keeps_its_state_between_calls(session: kennel.Session) -> None:
    assert bash_tool.run_agent("", script("mkdir src && cd src; x=7", "basename $PWD; echo $x"), session) == "src\n7"


def test_a_failure_is_told_with_its_status(session: kennel.Session) -> None:
    assert bash_tool.run_agent("", script("echo broken >&2; (exit 3)"), session) == "broken\n[exit status 3]"


def test_a_long_output_keeps_both_ends(session: kennel.Session) -> None:
    said = bash_tool.bash(session, "echo first; seq 100000; echo last")
    assert said.startswith("first\n1\n")
    assert said.endswith("100000\nlast")
    assert "characters left out" in said
    assert len(said) < bash_tool.SHOWN + 100


def test_a_timeout_ends_the_call_and_not_the_shell(session: kennel.Session) -> None:
    said = bash_tool.bash(session, "x=8; echo begun; sleep 600", timeout=1)
    assert "begun" in said
    assert "timed out" in said
    assert bash_tool.bash(session, "echo $x") == "8"


def test_what_the_sandbox_refused_is_told_to_the_model(session: kennel.Session) -> None:
    said = bash_tool.bash(session, "curl -sS --max-time 20 https://example.com")
    assert "denied: example.com:443" in said
    assert "exit status" in said


def test_the_whole_example_runs(tmp_path: Path) -> None:
    assert bash_tool.example(script("pwd"), str(tmp_path)) == str(tmp_path)
