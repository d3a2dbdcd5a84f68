"""Sandboxes from compose files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("KENNEL_MUST_RUN") != "1":
    pytest.importorskip("inspect_ai")

from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util import ComposeConfig, SandboxUserUnsupportedError

from kennel import images
from kennel.inspect import KennelSandboxEnvironment as Provider
from kennel.inspect.compose import ComposeError, Service, service_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(text: str) -> str:
        path = tmp_path / "compose.yaml"
        path.write_text(text)
        return str(path)

    return written


def read(path: str, **variables: str) -> Service:
    return service_of(path, variables)


def test_the_keys_of_a_service_become_those_of_a_policy(write: Any) -> None:
    text = """
x-common: &common
  mem_limit: 512m
  cpus: 0.5
services:
  default:
    <<: *common
    image: "${REGISTRY:-local}/app:${TAG}"
    x-default: true
    x-local: true
    init: true
    command: sleep 'a b' $$HOME
    entrypoint: ["/bin/sh", "-c"]
    working_dir: /srv/app
    user: 1000
    network_mode: none
    environment: {A: 1, B: "x=$TAG", C: }
    tmpfs: [/run, "/scratch:size=64m"]
    cpus: "1.5"
"""
    service = read(write(text), TAG="3")
    assert service == Service(
        image="local/app:3",
        policy={
            "image": "local/app:3",
            "user": "1000",
            "env": {"set": {"A": "1", "B": "x=3"}, "pass": ["C"]},
            "mounts": [
                {"type": "tmpfs", "target": "/run"},
                {"type": "tmpfs", "target": "/scratch", "size": 64 << 20},
            ],
            "limits": {"memory": 512 << 20, "cpus": 1.5},
        },
        user="1000",
        directory="/srv/app",
        entrypoint=["/bin/sh", "-c"],
        command=["sleep", "a b", "$HOME"],
    )
    listed = read(write("services:\n  a:\n    image: b\n    environment: [A=1=2, B]\n    tmpfs: /x\n"))
    assert listed.policy["env"] == {"set": {"A": "1=2"}, "pass": ["B"]}
    assert listed.policy["mounts"] == [{"type": "tmpfs", "target": "/x"}]


def test_the_command_is_docker_s() -> None:
    config = {"Entrypoint": ["/entry"], "Cmd": ["given"]}
    assert Service("i").argv(config) == []
    assert Service("i", command=["a"]).argv(config) == ["/entry", "a"]
    assert Service("i", command=["a"]).argv({}) == ["a"]
    assert Service("i", entrypoint=["b"]).argv(config) == ["b"]
    assert Service("i", entrypoint=["b"], command=["a"]).argv(config) == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "it has no services|must have keys"),
        ("services: {}\n", "it has no services"),
        ("services:\n  a: {image: x}\n  b: {image: y}\n", ":3: `b` is a second service"),
        ("services:\n  a:\n    build: .\n", ":3: no image is built here.*kennel image import"),
        ("services:\n  a:\n    image: x\n    ports: ['80:80']\n", ":4: `ports` has no meaning"),
        ("networks: {}\nservices:\n  a: {image: x}\n", ":1: `networks` has no meaning"),
        ("services:\n  a:\n    command: x\n", ":2: the service `a` names no image"),
        ("services:\n  a:\n    image: x\n    network_mode: host\n", ":4: `network_mode` can only be none"),
        ("services:\n  a:\n    image: x\n    mem_limit: much\n", ":4: 'much' is no size"),
        ("services:\n  a:\n    image: x\n    cpus: many\n", ":4: a number"),
        ("services:\n  a:\n    image: x\n    working_dir: here\n", ":4: 'here' must be an absolute path"),
        ("services:\n  a:\n    image: x\n    environment: {A: yes}\n", ":4: write the value of A in quotes"),
        ("services:\n  a:\n    image: x\n    tmpfs: /x:exec\n", ":4: of a tmpfs only `size`"),
        ("services:\n  a:\n    image: x\n    init: maybe\n", ":4: true or false"),
        ("services:\n  a:\n    image: ${NO_SUCH_VARIABLE}\n", ":3: the variable NO_SUCH_VARIABLE is not set"),
        ("services:\n  a:\n    image: ${BROKEN\n", ":3: a variable of"),
        ("services:\n  a:\n    image: [x]\n", ":3: a single value"),
        ("services:\n  a:\n    image: x\n    command: 'a \"b'\n", ":4: .* is no command"),
        ("services:\n\ta: x\n", ":2: "),
        ("services: [a]\n", ":1: services must have keys"),
        ("a: &a [*a]\n", "`a` has no meaning|it has no services"),
        ("x" * (2 << 20), "more than"),
    ],
)
def test_what_a_sandbox_has_no_answer_for_is_an_error_with_its_line(write: Any, text: str, expected: str) -> None:
    with pytest.raises(ComposeError, match=expected):
        read(write(text))


async def test_a_sample_runs_in_the_image_of_its_compose_file(store: Path, root: Path, write: Any) -> None:
    images.import_(root, name="app:one")
    text = """
services:
  default:
    image: app:${SAMPLE_METADATA_TAG}
    command: sh -c 'echo $$GREETING > /served; read line < /never-ends || true'
    working_dir: /srv/app
    environment: [GREETING=hello]
"""
    config = write(text)
    metadata = {"tag": "one", "other": "x"}
    assert await Provider.task_init_environment(config, metadata) == {"SAMPLE_METADATA_TAG": "one"}
    with pytest.raises(PrerequisiteError, match="SAMPLE_METADATA_TAG is not set"):
        await Provider.task_init("task", config)
    environments = await Provider.sample_init("task", config, metadata)
    try:
        sandbox = environments["default"].as_type(Provider)
        await sandbox.write_file("given.txt", "1\n")
        script = (
            "pwd; read line < given.txt; echo $line $GREETING; until [ -e /served ]; do :; done; read x < /served; echo $x"
        )
        done = await sandbox.exec(["sh", "-c", script], timeout=60)
        assert (done.stdout, done.stderr) == ("/srv/app\n1 hello\nhello\n", "")
        assert await sandbox.read_file("/srv/app/given.txt") == "1\n"
        assert (await sandbox.exec(["sh", "-c", "pwd"], cwd="/etc", user="root")).stdout == "/etc\n"
        with pytest.raises(SandboxUserUnsupportedError, match="run as 0 or root"):
            await sandbox.exec(["true"], user="guest")
        assert not list(sandbox.workspace.path.iterdir()), "the workspace is not shown"
    finally:
        await Provider.sample_cleanup("task", config, environments, interrupted=False)
    assert not sandbox.workspace.path.exists()


async def test_a_compose_config_and_its_user_count(store: Path, root: Path) -> None:
    images.import_(root, name="app:one")
    config = ComposeConfig.model_validate({"services": {"default": {"image": "app:one", "user": "guest"}}})
    environments = await Provider.sample_init("task", config, {})
    try:
        sandbox = environments["default"].as_type(Provider)
        assert (await sandbox.exec(["sh", "-c", "pwd; echo $HOME"], user="guest")).stdout == "/\n/home/guest\n"
    finally:
        await Provider.sample_cleanup("task", config, environments, interrupted=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("services:\n  a: {image: 'localhost:1/none:1'}\n", "localhost:1/none:1.*Connection refused"),
        ("services:\n  a: {image: 'app:one', command: no-such-program}\n", "no-such-program"),
        ("services:\n  a: {image: 'app:one', user: nobody}\n", "nobody"),
    ],
)
async def test_what_cannot_start_is_told_before_the_first_sample(
    store: Path, root: Path, write: Any, text: str, expected: str
) -> None:
    images.import_(root, name="app:one")
    with pytest.raises(PrerequisiteError, match=expected):
        await Provider.task_init("task", write(text))


async def test_a_dockerfile_is_not_built() -> None:
    with pytest.raises(PrerequisiteError, match="no image is built"):
        await Provider.task_init("task", "Dockerfile")
    assert Provider.is_docker_compatible()
