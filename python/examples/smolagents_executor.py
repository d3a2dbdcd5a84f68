"""smolagents: the Python that a `CodeAgent` writes runs in a sandbox; the tools of the agent run where the agent does.

The slot is `CodeAgent(executor=…)`, an object with the three methods of `PythonExecutor`. One Python runs in the session, so
variables and imports last. Each tool is there as a function that asks this process, with JSON both ways: a tool keeps its
credentials, and what it gets is what a tool gets from any model.
"""

from __future__ import annotations

import json
import subprocess
import threading
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
    names.update(order["variables"])
    for name in order["tools"]:
        names.setdefault(name, tool(name))
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        try:
            value = run(order["code"])
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
    """Runs the code of an agent in a session: `CodeAgent(tools=[…], model=model, executor=KennelExecutor(session))`.

    A piece of code that takes longer than `timeout` seconds ends the Python, and so does one that exits. The next piece runs
    in a new one, without the variables.
    """

    def __init__(self, session: kennel.Session, python: str = "python3", timeout: float = 120) -> None:
        self._session = session
        self._command = [python, "-u", "-c", _INTERPRETER]
        self._timeout = timeout
        self._tools: dict[str, Any] = {}
        self._python: kennel.Popen | None = None

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Makes functions of the agent's tools and managed agents."""
        self._tools = dict(tools)

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Sets variables, which must be JSON."""
        self._order("", variables)

    def __call__(self, code_action: str) -> CodeOutput:
        """Runs one piece of code. The text of its exception is for the model."""
        done = self._order(code_action, {})
        logs = str(done.get("logs", ""))
        if "error" in done:
            raise RuntimeError(f"{logs}\n{done['error']}")
        is_final = "answer" in done
        return CodeOutput(done["answer"] if is_final else done.get("value"), logs, is_final)

    def _order(self, code: str, variables: dict[str, Any]) -> dict[str, Any]:
        if self._python is None:
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            self._python = self._session.popen(self._command, stdin=pipe, stdout=pipe, stderr=null)
        is_late = threading.Event()
        timer = threading.Timer(self._timeout, _end, (self._python, is_late))
        timer.start()
        try:
            _tell(self._python, {"code": code, "variables": variables, "tools": list(self._tools)})
            while True:
                said = _heard(self._python)
                if "tool" not in said:
                    return said
                _tell(self._python, self._answer(said))
        except (EOFError, BrokenPipeError, ValueError, RecursionError):
            self.cleanup()
            why = f"did not end within {self._timeout:g} s" if is_late.is_set() else "ended the Python"
            raise RuntimeError(f"the code {why}: its variables are lost") from None
        finally:
            timer.cancel()

    def _answer(self, said: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = {"result": self._tools[said["tool"]](*said["args"], **said["kwargs"])}
            json.dumps(answer)
            return answer
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def cleanup(self) -> None:
        """Ends the Python. The session stays the caller's."""
        python, self._python = self._python, None
        if python is not None:
            python.kill()
            python.close()


def _end(python: kennel.Popen, is_late: threading.Event) -> None:
    is_late.set()
    python.kill()


def _tell(python: kennel.Popen, what: dict[str, Any]) -> None:
    assert python.stdin is not None
    python.stdin.write(json.dumps(what).encode() + b"\n")
    python.stdin.flush()


def _heard(python: kennel.Popen) -> dict[str, Any]:
    assert python.stdout is not None
    line = python.stdout.readline(_LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise EOFError
    said = json.loads(line)
    if not isinstance(said, dict):
        raise EOFError
    return said
