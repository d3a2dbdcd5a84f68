"""`examples/smolagents_executor.py`: a `CodeAgent` whose code runs in a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import kennel

if os.environ.get("KENNEL_MUST_RUN") != "1":
    pytest.importorskip("smolagents")

from examples.smolagents_executor import KennelExecutor
from smolagents import CodeAgent, Tool
from smolagents.models import ChatMessage, MessageRole, Model


class HostName(Tool):  # type: ignore[misc]
    name = "host_name"
    description = "The name of the host, as the process of the agent sees it."
    inputs: ClassVar = {"suffix": {"type": "string", "description": "what to append"}}
    output_type = "string"

    def forward(self, suffix: str) -> str:
        if not suffix:
            raise ValueError("no suffix")
        return os.uname().nodename + suffix


class Scripted(Model):  # type: ignore[misc]
    """A model that answers with one piece of code after the other."""

    def __init__(self, *codes: str) -> None:
        super().__init__()
        self._codes = iter(codes)

    def generate(self, messages: Any, **_: Any) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: next.\n<code>\n{next(self._codes)}\n</code>")


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[KennelExecutor]:
    with kennel.Session(workspace=str(tmp_path)) as session:
        made = KennelExecutor(session)
        yield made
        made.cleanup()


def test_code_runs_in_the_sandbox_and_tools_outside(executor: KennelExecutor, tmp_path: Path) -> None:
    model = Scripted(
        "import os\ninside = os.uname().nodename\nopen('made', 'w').write('x')",
        "final_answer([inside, host_name('!')])",
    )
    answer = CodeAgent(tools=[HostName()], model=model, executor=executor, verbosity_level=0).run("Where are you?")
    assert answer == ["kennel", os.uname().nodename + "!"]
    assert (tmp_path / "made").read_text() == "x"


def test_variables_output_and_values_last(executor: KennelExecutor) -> None:
    executor.send_variables({"given": [1, 2, 3]})
    done = executor("import subprocess\nprint('said')\n_ = subprocess.run(['echo', 'by a child'])\nsum(given)")
    assert (done.output, done.logs, done.is_final_answer) == ("6", "said\nby a child\n", False)
    assert executor("given[0]").output == "1"


def test_an_exception_is_for_the_model(executor: KennelExecutor) -> None:
    executor.send_tools({"host_name": HostName()})
    with pytest.raises(RuntimeError, match=r"(?s)before.*ZeroDivisionError"):
        executor("print('before')\n1 / 0")
    with pytest.raises(RuntimeError, match="ValueError: no suffix"):
        executor("host_name('')")
    with pytest.raises(RuntimeError, match="SyntaxError"):
        executor("1 +")
    executor.send_tools({"odd": lambda: object()})
    with pytest.raises(RuntimeError, match="TypeError: Object of type object is not JSON"):
        executor("odd()")
    assert executor("'still here'").output == "still here"


def test_code_cannot_name_what_is_no_tool(executor: KennelExecutor) -> None:
    with pytest.raises(RuntimeError, match="KeyError: '__class__'"):
        executor("tool = __import__('__main__').tool\ntool('__class__')()")


@pytest.mark.parametrize("code", ["import os\nos._exit(3)", "import os\nos.close(4)\nos.write(3, b'[]')\nos._exit(0)"])
def test_code_that_ends_the_python_loses_its_variables(executor: KennelExecutor, code: str) -> None:
    executor("x = 1")
    with pytest.raises(RuntimeError, match="ended the Python: its variables are lost"):
        executor(code)
    with pytest.raises(RuntimeError, match="NameError"):
        executor("x")


def test_code_that_never_ends_is_ended(executor: KennelExecutor) -> None:
    executor._timeout = 1
    with pytest.raises(RuntimeError, match="did not end within 1 s"):
        executor("while True: pass")
    assert executor("'still here'").output == "still here"
