"""smolagents: the Python that a `CodeAgent` writes runs in a sandbox; the tools of the agent run where the agent does.

The slot is `CodeAgent(executor=…)`, an object with the three methods of `PythonExecutor`. One Python runs in the session, so
variables and imports last. Each tool is there as a function that asks this process, with JSON both ways: a tool keeps its
credentials, and what it gets is what a tool gets from any model.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from smolagents.local_python_executor import CodeOutput, PythonExecutor  # type: ignore[import-untyped]

import kennel

# Runs in the sandbox. A line of JSON tells it what to do, and it answers with one; in between it may ask for tools. Code of
# the model can write to these descriptors and spoil its own answer, so this process believes nothing that it reads.
_INTERPRETER = r"""
import ast, json, os, sys, tempfile, threading, traceback
asked, told = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
names, turn = {"__name__": "__main__"}, threading.Lock()

class FinalAnswer(BaseException):
    pass

def tell(what):
    told.write(json.dumps(what, default=str) + "\n")
    told.flush()

def tool(name):
    def call(*args, **kwargs):
        if name == "final_answer":
            raise FinalAnswer(*args, *kwargs.values())
        with turn:
            tell({"tool": name, "args": args, "kwargs": kwargs})
            answer = json.loads(asked.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]
    return call

def run(code):
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<agent>", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "<agent>", "eval"), names)

for line in asked:
    order, done = json.loads(line), {}
    names.update(order.get("variables", {}))
    names.update({name: tool(name) for name in order.get("tools", [])})
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        try:
            value = run(order.get("code", ""))
            done["value"] = None if value is None else str(value)
        except FinalAnswer as answer:
            done["answer"] = answer.args[0] if len(answer.args) == 1 else answer.args
        except BaseException as error:
            done["error"] = "".join(traceback.format_exception(type(error), error, error.__traceback__.tb_next)[-4:])
        sys.stdout.flush()
        sys.stderr.flush()
        said.seek(0)
        done["logs"] = said.read(100_000).decode("utf-8", "replace")
    tell(done)
"""

_LONGEST_LINE = 16 * 1024 * 1024


class KennelExecutor(PythonExecutor):  # type: ignore[misc]
    """Runs the code of an agent in a session: `CodeAgent(tools=[…], model=model, executor=KennelExecutor(session))`."""

    def __init__(self, session: kennel.Session, python: str = "python3") -> None:
        self._tools: dict[str, Any] = {}
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._python = session.popen([python, "-u", "-c", _INTERPRETER], stdin=pipe, stdout=pipe, stderr=null)
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._told, self._heard = self._python.stdin, self._python.stdout

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Makes functions of the agent's tools and managed agents."""
        self._tools = dict(tools)
        self._order({"tools": list(tools)})

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Sets variables, which must be JSON."""
        self._order({"variables": variables})

    def __call__(self, code_action: str) -> CodeOutput:
        """Runs one piece of code. The text of its exception is for the model."""
        done = self._order({"code": code_action})
        logs = str(done.get("logs", ""))
        if "error" in done:
            raise RuntimeError(f"{logs}\n{done['error']}")
        is_final = "answer" in done
        return CodeOutput(done["answer"] if is_final else done.get("value"), logs, is_final)

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        self._tell(order)
        while True:
            line = self._heard.readline(_LONGEST_LINE)
            if not line.endswith(b"\n"):
                raise RuntimeError("the Python of the sandbox has ended")
            said = json.loads(line)
            if not isinstance(said, dict):
                raise RuntimeError("the Python of the sandbox said something else")
            if "tool" not in said:
                return said
            try:
                answer = {"result": self._tools[said["tool"]](*said["args"], **said["kwargs"])}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            self._tell(answer)

    def _tell(self, what: dict[str, Any]) -> None:
        try:
            self._told.write(json.dumps(what).encode() + b"\n")
            self._told.flush()
        except BrokenPipeError:
            raise RuntimeError("the Python of the sandbox has ended") from None

    def cleanup(self) -> None:
        """Ends the Python. The session stays the caller's."""
        self._python.kill()
        self._python.wait()
