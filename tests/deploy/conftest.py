"""What is in deploy/, as the programs that read it see it, and a server that is started as they start it."""

import hashlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
KENNEL = os.environ["KENNEL"]

KEY = "key-of-ci"
HASH = hashlib.sha256(KEY.encode()).hexdigest()


def skip(what: str) -> None:
    """Something is missing on this machine. With KENNEL_MUST_RUN=1 that is a failure."""
    assert "KENNEL_MUST_RUN" not in os.environ, f"required here, but missing: {what}"
    pytest.skip(what)


def require(program: str) -> str:
    found = shutil.which(program)
    if not found:
        skip(program)
    return found


def documents(path: pathlib.Path) -> list[dict]:
    return list(yaml.safe_load_all(path.read_text()))


def rendered(directory: pathlib.Path) -> list[dict]:
    """What `kubectl apply --kustomize` sends. The kustomizations here name files, a namespace and the place of images."""
    kustomization = documents(directory / "kustomization.yaml")[0]
    allowed = {"apiVersion", "kind", "namespace", "resources", "images"}
    assert set(kustomization) <= allowed, "the tests render no more than that"
    objects = [found for name in kustomization["resources"] for found in documents(directory / name)]
    for found in objects:
        if found["kind"] != "Namespace":
            found["metadata"].setdefault("namespace", kustomization["namespace"])
    return objects


def pods(objects: list[dict]) -> dict[str, dict]:
    """The pods of the objects, by the names of those that make them."""
    templates = {}
    for found in objects:
        spec = found["spec"].get("template") or found["spec"].get("podTemplate") if "spec" in found else None
        if spec:
            templates[found["metadata"]["name"]] = spec
    return templates


def one(objects: list[dict], kind: str, name: str) -> dict:
    [found] = [found for found in objects if (found["kind"], found["metadata"]["name"]) == (kind, name)]
    return found


class Server:
    """A program of Kennel that serves at a port of this machine."""

    def __init__(self, words: list[str], place: pathlib.Path, environment: dict[str, str] | None = None) -> None:
        self.errors = place / "errors"
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=self.errors.open("a"), text=True, env=environment
        )
        first = self.process.stdout.readline()
        assert first.startswith("# Kennel serves at"), self.errors.read_text()
        self.address = first.split("://")[1].strip()

    def ask(self, method: str, path: str, body: object = None, key: str = KEY) -> tuple[int, object]:
        return ask(self.address, method, path, body, key)

    def stop(self) -> None:
        for _ in range(2):
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                time.sleep(0.2)
        self.process.wait(20)


def ask(address: str, method: str, path: str, body: object = None, key: str = KEY) -> tuple[int, object]:
    connection = http.client.HTTPConnection(address, timeout=30)
    headers = {"X-API-KEY": key, "Content-Type": "application/json"}
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, text
