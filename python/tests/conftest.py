"""What tests share: a workspace, a session in it, and servers that are no session."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import AsyncFace, Face, FakeServer

import kennel


@pytest.fixture(scope="module", params=[Face, AsyncFace], ids=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    made = request.param()
    yield made
    made.close()


@pytest.fixture(scope="module")
def workspace(face: Face, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="module")
def session(face: Face, workspace: Path) -> Iterator[Any]:
    """A session of each face."""
    with face.session(workspace) as made:
        yield made


@pytest.fixture(scope="module")
def blocking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kennel.Session]:
    with kennel.Session(tmp_path_factory.mktemp("workspace")) as made:
        yield made


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docstrings start sessions in the current directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[[Callable[[socket.socket], None]], FakeServer]]:
    servers: list[FakeServer] = []

    def make(serve: Callable[[socket.socket], None]) -> FakeServer:
        servers.append(FakeServer(tmp_path / f"fake{len(servers)}", serve))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own. The machine's directory for temporary files may be one that no store can be on."""
    monkeypatch.setenv("KENNEL_IMAGES", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system with a shell and its libraries."""
    root = tmp_path / "root"
    loaded = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    for file in ["/bin/sh", *re.findall(r"/\S+", loaded)]:
        at = root / file.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(file).resolve(), at)
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nguest:x:7:8::/home/guest:/bin/sh\n")
    return root
