"""A Ray cluster of three nodes on this machine, and proof that nothing of it is left."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import until

if os.environ.get("KENNEL_MUST_RUN") != "1":
    pytest.importorskip("ray")

# Read when Ray is imported. With a token of its own it writes none to the home. The last one keeps it to the loopback, which
# it takes for itself on other systems.
os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": uuid.uuid4().hex,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}

import ray
from ray.cluster_utils import Cluster

MARK = "KENNEL_FLEET_TEST"
PER_NODE = 4
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}


def processes(mark: str) -> list[str]:
    """The processes that have the mark in their environment, by what they are."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and int(each.name) != os.getpid() and mark.encode() in (each / "environ").read_bytes():
                found.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


class Nodes:
    """The cluster. Its first node has what belongs to all of them; the others come and go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Two processors cannot do without patience: a slow node is not a dead one.
        checks = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
        self.cluster = Cluster(
            initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "_system_config": checks}
        )
        self.others: list[Any] = []
        self.add()
        self.add()

    def add(self) -> Any:
        self.others.append(self.cluster.add_node(**NODE))
        return self.others[-1]

    def kill(self, name: str | None = None) -> str:
        """Kills a node as a power cut does, and returns its id. The first node cannot be had."""
        node = next(node for node in self.others if name in (None, node.node_id))
        self.others.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)
        return str(node.node_id)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    # Short: paths of sockets have 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="kf-", dir="/tmp"))
    for name in ("x", "r"):
        (directory / name).mkdir(mode=0o700)
    before = dict(os.environ)
    mark = uuid.uuid4().hex
    places = {"XDG_RUNTIME_DIR": "x", "RAY_TMPDIR": "r"}
    os.environ |= {MARK: mark, **{name: str(directory / place) for name, place in places.items()}}
    made = Nodes(directory)
    ray.init(address=made.cluster.address, log_to_driver=False)
    try:
        yield made
    finally:
        ray.shutdown()
        made.cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)
        until(lambda: not [line for line in processes(mark) if "kennel" in line], "the end of all sessions")
    left = {path.name for path in (directory / "x/kennel").iterdir()}
    assert left <= {"empty", "kennel-exec"}
    assert not any((directory / "x/kennel/empty").iterdir())
    shutil.rmtree(directory, ignore_errors=True)
