"""Every word with which deploy/ starts Kennel is one that Kennel knows, and no file of it is in a published crate."""

import re
import subprocess

import pytest
from conftest import DEPLOY, KENNEL, KUBERNETES, ROOT, documents, pods, rendered


def starts() -> list[tuple[str, list[str]]]:
    """Where Kennel is started, and the words after `kennel`."""
    found = []
    objects = [thing for name in ("", "per-image") for thing in rendered(KUBERNETES / name)]
    for name, pod in pods(objects + documents(KUBERNETES / "agent-sandbox.yaml")).items():
        found += [(name, container["args"]) for container in pod["spec"]["containers"]]
    for path in sorted([*DEPLOY.glob("systemd/*.service"), *DEPLOY.glob("slurm/*.sbatch")]):
        text = path.read_text().replace("\\\n", " ")
        for words in re.findall(r"^(?:ExecStart=\S*/| *exec | *)kennel ((?:serve|route) .*)$", text, re.MULTILINE):
            found.append((path.name, words.removesuffix("&").split()))
    return found


def test_all_places_are_found():
    verbs = [(place, words[0]) for place, words in starts()]
    assert sorted(verbs) == [
        ("fleet.sbatch", "route"),
        ("fleet.sbatch", "serve"),
        ("kennel-python", "serve"),
        ("kennel-route.service", "route"),
        ("kennel-routers", "route"),
        ("kennel-serve.service", "serve"),
        ("kennel-workers", "serve"),
        ("tenant-a", "serve"),
    ]


@pytest.mark.parametrize(("place", "words"), starts(), ids=lambda value: value if isinstance(value, str) else value[0])
def test_kennel_knows_the_words(place, words):
    help_ = subprocess.run([f"{KENNEL}-server", words[0], "--help"], capture_output=True, text=True)
    assert help_.returncode == 0, help_.stderr
    flags = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", help_.stdout, re.MULTILINE))
    for word in words[1:]:
        if word.startswith("-"):
            assert word in flags, f"{place}: {word}"


def test_no_published_crate_has_a_file_of_deploy():
    for manifest in [ROOT / "Cargo.toml", ROOT / "helper/Cargo.toml", *sorted(ROOT.glob("crates/*/Cargo.toml"))]:
        words = ["cargo", "package", "--list", "--allow-dirty", "--offline", "--manifest-path", manifest]
        listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
        assert "Cargo.toml" in listed, manifest
        assert not [name for name in listed if "deploy" in name], manifest
