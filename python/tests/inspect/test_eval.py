"""A whole eval: 100 samples, a model without a network, a tool call into the sandbox of each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

if os.environ.get("KENNEL_MUST_RUN") != "1":
    pytest.importorskip("inspect_ai")

from inspect_ai import Task
from inspect_ai import eval as run_eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash

SAMPLES = 100


@pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")  # of Inspect's own
def test_an_eval_of_100_samples_runs_in_100_sandboxes(tmp_path: Path) -> None:
    samples = [
        Sample(
            input="What is in the file?",
            target=f"secret-{n}",
            files={"given.txt": f"secret-{n}"},
            setup="cp given.txt copied.txt",
        )
        for n in range(SAMPLES)
    ]

    def answer(messages: list[object], *_: object) -> ModelOutput:
        last = messages[-1]
        if isinstance(last, ChatMessageTool):
            output = ModelOutput.from_content("mockllm", last.text)
        else:
            output = ModelOutput.for_tool_call("mockllm", "bash", {"command": "cat copied.txt; pwd"})
        # Without a usage the mock model counts tokens, for which it would load a file from the network.
        output.usage = ModelUsage()
        return output

    task = Task(dataset=samples, solver=[use_tools(bash(timeout=60)), generate()], scorer=includes(), sandbox="kennel")
    (log,) = run_eval(
        task,
        model=get_model("mockllm/model", custom_outputs=answer),
        log_dir=str(tmp_path),
        display="none",
        max_samples=20,
    )
    assert log.status == "success", log.error
    assert log.samples is not None
    assert len(log.samples) == SAMPLES
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    directories = {sample.output.completion.split()[-1] for sample in log.samples}
    assert len(directories) == SAMPLES, "each sample has a workspace of its own"
    assert not any(Path(directory).exists() for directory in directories)
