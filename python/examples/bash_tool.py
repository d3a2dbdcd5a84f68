"""The bash tool of an agent, in plain Python: one shell that keeps its state, behind the walls of one policy.

The model reads what a person at a terminal would read, the exit status, and what the sandbox refused, with the keyword that
a person could give. Nothing that the model says can change the policy of the session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kennel

TOOL = {
    "name": "bash",
    "description": "Runs a snippet in a bash shell that keeps its state: directory, variables, functions.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "number", "description": "seconds, at most 600"}},
        "required": ["command"],
    },
}

SHOWN = 16_000  # characters of output that the model reads of one call


def bash(session: kennel.Session, command: str, timeout: float = 120) -> str:
    """Runs one tool call and returns the text for the model."""
    try:
        done = session.shell("main").run(command, timeout=min(timeout, 600), text=True, truncate=True)
    except kennel.TimeoutExpired as expired:
        return f"{shortened(expired.output or '')}\n[timed out after {expired.timeout} s; the shell keeps its state]"
    parts = [shortened(done.stdout + done.stderr)]
    if done.returncode:
        parts.append(f"[exit status {done.returncode}]")
    parts += [f"[{denial}]" for denial in done.denials]
    return "\n".join(part for part in parts if part)


def shortened(text: str) -> str:
    """The beginning and the end, which is where the errors are."""
    if len(text) <= SHOWN:
        return text.rstrip("\n")
    half = SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}".rstrip("\n")


def run_agent(task: str, model: Callable[[list[dict[str, Any]]], dict[str, Any]], session: kennel.Session) -> str:
    """The loop. `model` gets the messages and returns `{"text": …}`, or `{"tool": "bash", "input": {…}}`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    while True:
        answer = model(messages)
        if "tool" not in answer:
            return str(answer["text"])
        result = bash(session, **answer["input"])
        messages += [{"role": "assistant", "content": answer}, {"role": "tool", "content": result}]


def example(model: Callable[[list[dict[str, Any]]], dict[str, Any]], workspace: str) -> str:
    """The whole thing: a session on a directory, with one place of the network."""
    with kennel.Session(workspace=workspace, allow=["pypi.org:443"], explain=True) as session:
        return run_agent("Fix the failing test.", model, session)
