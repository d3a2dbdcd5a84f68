"""Scripts for Slurm: sound, and a job of one node that runs here, with stand-ins for Slurm's own programs."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import pytest
from conftest import DEPLOY, KENNEL, ask, require

SCRIPTS = sorted(DEPLOY.glob("slurm/*.sbatch"))

# What the job asks of Slurm. `srun` runs one task, on this machine; `scancel` signals it.
STANDINS = {
    "scontrol": '[ "$1 $2 $3" = "show hostnames one" ] && echo localhost',
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; echo $$ > "$PLACE/step"; SLURMD_NODENAME=Node_1.test exec "$@"',
    "scancel": '[ "$*" = "--signal=TERM 7" ] && kill -TERM "$(cat "$PLACE/step")"',
}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_bash_understands_the_script(path):
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path):
    subprocess.run([require("shellcheck"), path], check=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(condition, what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Job:
    """`fleet.sbatch` as the job 7 on the node `Node_1.test`."""

    def __init__(self, place: pathlib.Path) -> None:
        programs = place / "programs"
        programs.mkdir()
        for name, script in STANDINS.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        path = f"{programs}:{pathlib.Path(KENNEL).parent}:{os.environ['PATH']}"
        self.port, self.router = free_port(), free_port()
        variables = {
            "PATH": path,
            "HOME": str(place),
            "PLACE": str(place),
            "TMPDIR": str(place),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "one",
            "KENNEL_PORT": str(self.port),
            "KENNEL_ROUTER_PORT": str(self.router),
        }
        self.place = place / "kennel/7"
        errors = (place / "errors").open("w")
        script = DEPLOY / "slurm/fleet.sbatch"
        self.process = subprocess.Popen(["bash", script], env=variables, stdout=errors, stderr=errors)
        wait_until((self.place / "env").exists, "the file for clients")

    def variables(self) -> dict[str, str]:
        return dict(re.findall(r"^export (\w+)=(.*)$", (self.place / "env").read_text(), re.MULTILINE))


def answers(address: str) -> bool:
    try:
        return ask(address, "GET", "/readyz")[0] == 200
    except OSError:
        return False


def test_a_job_serves_until_it_is_told_to_end(tmp_path):
    job = Job(tmp_path)
    try:
        variables = job.variables()
        assert variables["E2B_API_URL"] == variables["E2B_SANDBOX_URL"] == f"http://localhost:{job.router}"
        assert (job.place / "env").stat().st_mode & 0o777 == 0o600
        router, key = f"localhost:{job.router}", variables["E2B_API_KEY"]
        wait_until(lambda: answers(router), (tmp_path / "errors").read_text())
        status, made = ask(router, "POST", "/v2/sandboxes", {"timeout": 60}, key)
        assert status == 201, made
        assert made["sandboxID"].startswith("node-1-")
        assert ask(router, "POST", "/v2/sandboxes", {}, "another key")[0] == 401

        # Slurm tells the script that its time is nearly over: the worker drains.
        job.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not answers(f"localhost:{job.port}"), "the worker drains")
        assert job.process.poll() is None, "its sandbox lives"
        assert ask(router, "GET", f"/sandboxes/{made['sandboxID']}", key=key)[0] == 200
        assert ask(router, "DELETE", f"/sandboxes/{made['sandboxID']}", key=key)[0] == 204
        assert job.process.wait(20) == 0
        assert not (job.place / "env").exists(), "nobody is sent there any more"
    finally:
        if job.process.poll() is None:
            job.process.terminate()
            job.process.wait(20)
