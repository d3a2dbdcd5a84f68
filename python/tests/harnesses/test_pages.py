"""The blocks of `docs/agents.md` and `docs/inspect.md` are what they say."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest

import kennel

if os.environ.get("KENNEL_MUST_RUN") != "1":
    for each in ("inspect_ai", "smolagents", "swerex"):
        pytest.importorskip(each)

from examples import bash_tool
from examples.smolagents_executor import KennelExecutor
from examples.swerex_deployment import KennelDeployment
from smolagents import CodeAgent
from smolagents.models import ChatMessage, MessageRole, Model
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert found, page
    return found


def executed(code: str, **names: Any) -> dict[str, Any]:
    """Runs code that may await. Returns its names."""
    compiled = compile(code, "<page>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, names))
    else:
        exec(compiled, names)
    return names


class Final(Model):  # type: ignore[misc]
    def generate(self, messages: Any, **_: Any) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content="<code>\nfinal_answer(3)\n</code>")


def test_the_tool_on_the_page_is_the_one_of_the_example() -> None:
    assert blocks("agents.md", "python")[0] in Path(bash_tool.__file__).read_text()


def test_the_snippets_for_harnesses_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    _, smolagents, swerex = blocks("agents.md", "python")
    executed(smolagents, kennel=kennel, CodeAgent=CodeAgent, KennelExecutor=KennelExecutor, model=Final())
    names = executed(
        f"{swerex}await deployment.stop()\n",
        KennelDeployment=KennelDeployment,
        CreateBashSessionRequest=CreateBashSessionRequest,
        BashAction=BashAction,
    )
    assert names["deployment"]


def test_the_policy_the_compose_file_and_the_task_for_inspect_are_valid(tmp_path: Path) -> None:
    from kennel.inspect.compose import service_of

    (python,) = blocks("inspect.md", "python")
    assert executed(python)["task"].sandbox.config == "compose.yaml"
    (tmp_path / "compose.yaml").write_text(blocks("inspect.md", "yaml")[0])
    service = service_of(str(tmp_path / "compose.yaml"), {"SAMPLE_METADATA_VERSION": "7"})
    assert (service.image, service.directory) == ("astropy:7", "/testbed")
    (tmp_path / "data").mkdir()
    (tmp_path / "policy.toml").write_text(blocks("inspect.md", "toml")[0])
    (mount,) = kennel.Policy.from_file(tmp_path / "policy.toml").mounts
    assert mount.source == str(tmp_path / "data")
