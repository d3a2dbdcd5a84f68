"""Units: systemd understands them, and the server starts with their file."""

import configparser
import re
import subprocess

import pytest
from conftest import DEPLOY, HASH, KENNEL, Server, require

UNITS = sorted(DEPLOY.glob("systemd/*.service"))

# Each of them takes away a namespace, a mount, a part of /proc, or the cgroup.
BREAK_SANDBOXES = {
    "PrivateUsers",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelTunables",
    "ProtectProc",
    "RestrictNamespaces",
    "SystemCallFilter",
}


def service(name: str) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / "systemd" / name)
    return unit["Service"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_the_unit(path, tmp_path):
    analyze = require("systemd-analyze")
    unit = tmp_path / path.name
    # The executable must be there.
    unit.write_text(path.read_text().replace("/usr/local/bin/kennel", KENNEL))
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if path.name in line]
    version = int(re.search(r"^systemd (\d+)", subprocess.run([analyze, "--version"], capture_output=True, text=True).stdout)[1])
    if version < 254:
        said = [line for line in said if "'DelegateSubgroup'" not in line]
    assert not said, said


def test_a_worker_keeps_what_sandboxes_are_made_of():
    found = service("kennel-serve.service")
    assert not BREAK_SANDBOXES & set(found)
    assert (found["Delegate"], found["DelegateSubgroup"], found["OOMPolicy"]) == ("yes", "server", "continue")
    assert found["User"] not in ("root", "0")


def test_hosts_outlive_the_front_and_the_drain_is_over_before_systemd_is_impatient():
    found = service("kennel-serve.service")
    assert (found["KillMode"], found["Restart"]) == ("process", "always")
    drain = re.search(r'^drain = "(\d+)m"$', (DEPLOY / "systemd/serve.toml").read_text(), re.MULTILINE)[1]
    assert int(found["TimeoutStopSec"].removesuffix("min")) > int(drain)


def test_the_server_starts_with_the_file(tmp_path):
    (tmp_path / "serve.toml").write_text((DEPLOY / "systemd/serve.toml").read_text())
    (tmp_path / "tokens.toml").write_text(f"[token.ci]\nsha256 = '{HASH}'\n")
    words = [KENNEL, "serve", "--config", tmp_path / "serve.toml", "--state", tmp_path / "state"]
    server = Server([*words, "--listen", "127.0.0.1:0", "--name", "node-1"], tmp_path)
    try:
        assert "kennel_server_room 500\n" in server.ask("GET", "/metrics")[1]
    finally:
        server.stop()
