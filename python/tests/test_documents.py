"""The examples of the pages run as shown."""

from __future__ import annotations

import re

import pytest
from support import ROOT, blocks

import kennel


@pytest.mark.parametrize("page", ["docs/python.md", "python/README.md"])
def test_the_examples_run_one_after_the_other(page):
    # The README shows pytest, which the sandbox need not have.
    given = [block.replace('["pytest", "-q"]', '["true"]') for block in blocks(page)]
    # Those of a server and of a cluster are run with one: test_remote.py, ray_cluster/test_cluster.py.
    given = [block for block in given if "kennel.Remote(" not in block and "kennel.ray" not in block]
    assert given
    names: dict[str, object] = {}
    try:
        for block in given:
            exec(compile(block, page, "exec"), names)
    finally:
        if "s" in names:
            names["s"].close()


def test_the_page_names_every_error():
    page = (ROOT / "docs/python.md").read_text()
    kinds = {name: getattr(kennel, name) for name in kennel.__all__}
    errors = {name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Exception)}
    # Those are named by what they also are, or are what others have in common.
    errors -= {name for name in errors if issubclass(kinds[name], kennel.FileError)} - {"FileError"}
    for name in errors - {"StartError", "ProtocolError"}:
        assert re.search(rf"`(kennel\.)?{name}`", page), name
