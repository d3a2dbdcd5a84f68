"""Policies: the keys are those of Kennel, and Kennel takes what the dataclasses say."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import kennel
from kennel import Audit, Env, Io, Limits, Mount, Network, NetworkLimits, Overlay, Policy, Proxy
from kennel._launch import PROTECTIONS, executable, memfd

DOCUMENT = Path(__file__).parents[2] / "docs" / "policy.md"

FULL = Policy(
    profile="repo-write",
    workspace=".",
    mounts=[
        Mount.ro("/usr/share", "/mnt/ro"),
        Mount.rw("/tmp", "/mnt/rw"),
        Mount.tmpfs("/mnt/tmpfs", "1M"),
        Mount.mask("hidden"),
        Mount.file("/mnt/file", "contents", executable=True),
        Mount.symlink("/mnt/link", "file"),
        Mount.device("/dev/null"),
        Mount.proc("/mnt/proc"),
    ],
    protect=["ci"],
    git="protect",
    cwd=".",
    hostname="h",
    tmp="session",
    isolation="command",
    warm={"python3": ["json", "os.path"], "python3.12": []},
    toolchains="none",
    caches="none",
    explain=True,
    on_unavailable="degrade",
    network=Network(
        mode="proxy",
        allow=["a.invalid:1"],
        deny=["b.invalid:1"],
        allow_addresses=["10.0.0.0/8"],
        name_servers=["127.0.0.53"],
        upstream="http://proxy.invalid:1",
        transparent=False,
        publish=["0:8080"],
        limits=NetworkLimits(1, "64K", "1s", 1.5, "1G", "1M"),
    ),
    env=Env("scrubbed", ["A"], {"B": "1"}),
    limits=Limits(
        memory="1G",
        swap="1M",
        pids=9,
        cpus=0.5,
        cpuset="0",
        io=Io("1M", "1M", 5, 5),
        cgroup="off",
        cpu_time="10s",
        timeout=60,
        output="1M",
        output_ends=True,
        tmp_size="1M",
        tmp_inodes=100,
        open_files=100,
        file_size="1M",
    ),
    overlay=Overlay(size="1M"),
    audit=Audit("/tmp/audit.log", True, True, True),
    require={"seccomp": "required"},
)


def shown(policy: Policy | None) -> dict[str, Any]:
    """What Kennel makes of a policy."""
    words = [executable(), "policy", "show", "--as-file", "--no-config"]
    given = [] if policy is None else [memfd(policy.to_json().encode())]
    words += [f"--policy=/dev/fd/{each}" for each in given]
    ran = subprocess.run(words, capture_output=True, pass_fds=given, check=False, text=True)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def names(kind: type) -> set[str]:
    return {field.name.rstrip("_") for field in fields(kind)}


def test_the_keys_are_those_that_kennel_shows():
    found = shown(FULL)
    assert names(Policy) == set(found)
    assert names(Network) == set(found["network"])
    assert names(NetworkLimits) == set(found["network"]["limits"])
    assert names(Env) == set(found["env"])
    assert names(Limits) == set(found["limits"])
    assert names(Io) == set(found["limits"]["io"])
    assert names(Overlay) == set(found["overlay"])
    assert names(Audit) == set(found["audit"])
    mounts = set().union(*(set(each) for each in found["mounts"]))
    assert names(Mount) == mounts
    proxy = shown(Policy(network=Network(proxy=Proxy("/tmp/proxy.sock"))))["network"]["proxy"]
    assert names(Proxy) == set(proxy)


def test_the_keys_are_those_of_the_page():
    rows = re.findall(r"^\| `([a-z_.]+)`(?:, `([a-z_.]+)`)? \|", DOCUMENT.read_text(), re.M)
    documented = {key for row in rows for key in row if key}
    ours = {"require"} | {f"limits.{name}" for name in names(Limits)} | names(Policy) - {"network", "env", "limits"}
    ours |= {f"overlay.{name}" for name in names(Overlay)} | {f"audit.{name}" for name in names(Audit)}
    ours |= {f"env.{name}" for name in names(Env)} | {f"network.{name}" for name in names(Network)}
    ours |= {"network.proxy.unix"} | names(NetworkLimits)
    missing = documented - ours - {"mounts", "ro", "rw", "tmpfs", "mask", "file", "symlink", "device", "proc"}
    assert not {key for key in missing if "." in key or key in names(Policy)}, missing
    assert ours - documented <= {"network.proxy", "audit"}


def test_what_may_be_required_is_that_of_the_page():
    section = DOCUMENT.read_text().partition("\n## Require\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `") and "`require`" not in line]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == PROTECTIONS


def test_kennel_takes_every_key_with_its_value():
    found = shown(FULL)
    assert (found["hostname"], found["limits"]["pids"], found["env"]["pass"]) == ("h", 9, ["A"])
    assert [each["type"] for each in found["mounts"]] == [each.type for each in FULL.mounts]
    assert found["limits"]["io"]["read_ops"] == 5
    assert found["warm"] == FULL.warm
    assert Policy.from_dict(found).to_dict()["network"]["limits"] == found["network"]["limits"]


def test_an_empty_policy_is_that_of_the_defaults(tmp_path):
    assert Policy().to_json() == "{}"
    assert {**shown(Policy()), "workspace": None} == {**shown(None), "workspace": None}


def test_a_policy_survives_its_text():
    again = Policy.from_dict(json.loads(FULL.to_json()))
    assert again == FULL
    assert Policy.from_dict({"env": {"pass": ["A"]}}).env == Env(pass_=["A"])
    assert Policy.from_dict({"audit": "/a"}).audit == Audit("/a")


def test_an_image_needs_no_workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "p.toml"
    file.write_text("image = 'a:1'\nuser = '0'")
    policy = Policy.from_file(file)
    assert (policy.image, policy.user, policy.root, policy.workspace) == ("a:1", "0", None, "")
    assert not policy.protect
    assert shown(policy)["image"] == shown(Policy(image="a:1"))["image"] == "a:1"
    assert shown(Policy(root=tmp_path))["workspace"] == ""


def test_mistakes_are_errors():
    for keys in ({"nonsense": 1}, {"limits": {"x": 1}}, {"mounts": [{"type": "ro", "x": 1}]}):
        with pytest.raises(kennel.PolicyError, match="unknown key"):
            Policy.from_dict(keys)
    with pytest.raises(kennel.PolicyError):
        Policy(workspace=b"\xff").to_json()  # type: ignore[arg-type]
    with pytest.raises(kennel.PolicyError):
        Policy(workspace="\udcff").to_json()
    with pytest.raises(TypeError, match="list of rules"):
        Policy.of(allow="pypi.org:443")


def test_keywords_come_over_a_policy():
    base = Policy(profile="read-only", network=Network(allow=["a:1"]), limits=Limits(pids=9), env=Env(set={"A": "1"}))
    made = Policy.of(base, workspace=Path("/w"), allow=["b:2"], limits=Limits(memory="1G"), env={"pass": ["C"]})
    assert made.to_dict() == {
        "profile": "read-only",
        "workspace": "/w",
        "network": {"allow": ["a:1", "b:2"]},
        "env": {"pass": ["C"], "set": {"A": "1"}},
        "limits": {"memory": "1G", "pids": 9},
    }
    assert base.network.allow == ["a:1"]
    assert Policy.of({"profile": "ci-only"}, profile="read-only").profile == "read-only"


def test_a_file_is_read_as_kennel_reads_it_and_stays_as_it_is(tmp_path):
    (tmp_path / "policy.toml").write_text("mounts = [{ type = 'ro', source = 'below' }]\nlimits.timeout = '2m'")
    (tmp_path / "below").mkdir()
    policy = Policy.from_file(tmp_path / "policy.toml")
    assert policy.workspace == str(tmp_path)
    assert policy.mounts == [Mount.ro(str(tmp_path / "below"))]
    with kennel.Session(policy=tmp_path / "policy.toml", limits={"pids": 100}) as session:
        assert session.run("echo x >> policy.toml", shell=True).returncode != 0
        assert session.run(["touch", "new"]).returncode == 0
    (tmp_path / "wrong.toml").write_text("profil = 1")
    with pytest.raises(kennel.PolicyError, match=r"wrong.toml:1:1: unknown field `profil`"):
        Policy.from_file(tmp_path / "wrong.toml")
    with pytest.raises(kennel.PolicyError, match="missing"):
        Policy.from_file(tmp_path / "missing.toml")
    work = tmp_path / "work"
    work.mkdir()
    with kennel.Session(work, policy=tmp_path / "policy.toml", mounts=[Mount.rw(tmp_path)]) as session:
        assert session.run(f"echo x >> {tmp_path}/policy.toml", shell=True).returncode != 0
