"""The checks that Inspect ships for providers, against a sandbox of Kennel, and the table of them in `docs/inspect.md`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

if os.environ.get("KENNEL_MUST_RUN") != "1":
    pytest.importorskip("inspect_ai")

from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

pytestmark = pytest.mark.anyio

REFUSED = {"test_exec_as_user": "refused: it switches users"}
PAGE = Path(__file__).parents[3] / "docs" / "inspect.md"


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, shared_env: SandboxEnvironment) -> SandboxEnvironment:
    if request.node.originalname in REFUSED:
        # Strict: the table says that it does not pass.
        request.node.add_marker(pytest.mark.xfail(strict=True, reason=REFUSED[request.node.originalname]))
    return shared_env


def table() -> str:
    """Two checks a row. What it says is the same for root and other users."""
    cells = [f"`{name[5:]}` | {REFUSED.get(name, 'passes')}" for name in self_check.__all__]
    half = (len(cells) + 1) // 2
    rows = [f"| {left} | {right} |" for left, right in zip(cells, [*cells[half:], " | "], strict=False)]
    return "\n".join(["| check | result | check | result |", "| --- | --- | --- | --- |", *rows, ""])


def test_the_page_has_the_table_of_these_checks() -> None:
    """`KENNEL_WRITE=1` writes it. What it says of each check is what this module has just found."""
    page = PAGE.read_text()
    between = re.compile(r"(?<=<!-- checks -->\n).*?(?=<!-- end of checks -->)", re.DOTALL)
    assert between.search(page), f"{PAGE} has no marks of the table"
    if os.environ.get("KENNEL_WRITE") == "1":
        PAGE.write_text(between.sub(lambda _: table(), page))
    else:
        assert between.search(page)[0] == table(), "run this test with KENNEL_WRITE=1"
