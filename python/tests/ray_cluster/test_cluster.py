"""Commands on the nodes of a Ray cluster, with nodes that come and go."""

from __future__ import annotations

import collections
import doctest
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE

import pytest
import ray
from conftest import PER_NODE, Nodes
from support import blocks, until

import kennel
import kennel.ray
from kennel.ray import jobs, node
from kennel.ray.node import remove_stray

SLEEP = "sleep 4321.{}"


def sleepers(tag: int) -> list[str]:
    """The processes of `SLEEP` with that number."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if (each / "cmdline").read_bytes() == SLEEP.format(tag).replace(" ", "\0").encode() + b"\0":
                found.append(each.name)
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def fleet(nodes: Nodes):
    with kennel.ray.Fleet(profile="no-network", per_node=PER_NODE) as made:
        until(lambda: len(made.nodes) == 3, "three nodes")
        yield made


def test_each_command_has_one_result_and_all_nodes_work(fleet):
    results = list(fleet.map((["echo", str(number)] for number in range(90)), text=True))
    assert sorted(result.index for result in results) == list(range(90))
    assert all(result.get().stdout == f"{result.index}\n" and result.starts == 1 for result in results)
    assert {result.node for result in results} == set(fleet.nodes)
    assert pickle.loads(pickle.dumps(results[0])).get().outcome.ended == "exited"


def test_the_example_of_the_page_runs(nodes, capsys):
    (example,) = [block for block in blocks("docs/python.md") if "kennel.ray" in block]
    exec(compile(example, "docs/python.md", "exec"), {})
    lines = capsys.readouterr().out.split("\n")
    assert {"6 42", "b'one'"} <= set(lines)


@pytest.mark.parametrize("module", [jobs, node], ids=["jobs", "node"])
def test_the_examples_of_docstrings_run(module):
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)


def test_commands_start_in_an_empty_directory_of_their_own(fleet):
    look = {"args": "pwd; ls -A; echo > mine; ls", "shell": True}
    outputs = {result.get().stdout for result in fleet.map([look] * 20, text=True)}
    assert outputs == {"/work\nmine\n"}


def test_a_command_reaches_nothing_of_ray(fleet, nodes):
    host, port = nodes.cluster.address.rsplit(":", 1)
    connect = f"import socket; socket.create_connection(({host!r}, {port}), 5)"
    # The directory of Ray is beside that of sessions, of which a command sees the empty one.
    commands = [["python3", "-c", connect], ["env"], ["ls", "-A", str(nodes.directory)]]
    found = {result.index: result.get() for result in fleet.map(commands, text=True)}
    assert "ConnectionRefusedError" in found[0].stderr
    assert "RAY" not in found[1].stdout
    assert found[2].stdout == "x\n"


@pytest.mark.parametrize("profile", ["no-network", "read-only", "full-dev"])
def test_commands_leave_nothing_on_the_node(nodes, profile):
    empty = nodes.directory / "x/kennel/empty"
    write = {"args": f"touch {empty}/mine; ls -A {empty}; echo one > own && cat own", "shell": True}
    shown = "one\n" if profile == "read-only" else "mine\none\n"
    with kennel.ray.Fleet(profile=profile, per_node=2) as fleet:
        assert {result.get().stdout for result in fleet.map([write] * 12, text=True)} == {shown}
    assert not list(empty.iterdir())


def test_what_goes_wrong_with_a_command_is_its_own_result(fleet):
    commands = [
        ["true"],
        ["no-such-program"],
        {"args": ["sleep", "60"], "timeout": 0.2},
        {"args": "exit 3", "shell": True, "check": True},
        {"argv": ["true"]},
        {"args": ["cat"], "input": threading.Lock()},
        7,
        {"args": ["cat"], "input": b"in"},
    ]
    found = {result.index: result for result in fleet.map(commands, timeout=60)}
    assert found.keys() == set(range(8))
    errors = [type(found[number].error) for number in range(8)]
    assert errors[0] is None.__class__
    assert errors[7] is None.__class__
    assert errors[1:4] == [kennel.ProgramNotFoundError, kennel.TimeoutExpired, kennel.CalledProcessError]
    assert errors[4:7] == [TypeError] * 3
    assert found[7].get().stdout == b"in"
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        found[1].get()
    with pytest.raises(TypeError, match="stdin"):
        fleet.map([], stdin=0)


def test_commands_are_read_as_there_is_room(fleet):
    read = itertools.count()
    results = fleet.map(["true"] for _ in read)
    for _ in range(5):
        next(results).get()
    # Each result made room for one more.
    time.sleep(0.5)
    assert next(read) <= 3 * 2 * PER_NODE + 6
    results.close()


def test_an_iterator_that_fails_loses_no_result(fleet):
    def commands():
        yield from [["echo", "one"], ["echo", "two"]]
        raise LookupError("no more")

    results = fleet.map(commands(), text=True)
    assert {next(results).get().stdout, next(results).get().stdout} == {"one\n", "two\n"}
    with pytest.raises(LookupError, match="no more"):
        next(results)


def test_a_generator_that_is_closed_kills_its_commands(fleet):
    results = fleet.map([["true"], *[SLEEP.format(1).split()] * 5])
    assert next(results).index == 0
    until(lambda: len(sleepers(1)) == 5, "the commands")
    results.close()
    until(lambda: not sleepers(1), "their end")
    assert len(list(fleet.map([["true"]] * 30))) == 30


def test_a_policy_that_is_refused_is_told_by_each_command(nodes):
    with kennel.ray.Fleet(profile="no-network", allow=["a.example:1"], per_node=1) as fleet:
        results = list(fleet.map([["true"]] * 3))
    assert [type(result.error) for result in results] == [kennel.PolicyError] * 3


def test_commands_can_share_a_session(nodes):
    with kennel.ray.Fleet(profile="no-network", per_node=PER_NODE, fresh=False) as fleet:
        until(lambda: len(fleet.nodes) == 3, "three nodes")
        names = list(fleet.map([{"args": "echo >> log; wc -l < log", "shell": True}] * 30, text=True))
        seen = collections.Counter(result.node for result in names)
        assert all(result.error is None for result in names)
        lines = collections.defaultdict(list)
        for result in names:
            lines[result.node].append(int(result.get().stdout))
        assert {node: max(found) for node, found in lines.items()} == seen


def test_a_session_stays_on_its_node(fleet):
    with fleet.session() as session:
        session.write("notes.txt", b"one")
        session.mkdir("d")
        session.write_text("d/two", "2\n", mode=0o600)
        assert session.read("notes.txt") == b"one"
        assert session.read_text("d/two") == "2\n"
        assert session.stat("d/two").mode & 0o777 == 0o600
        assert [entry.name for entry in session.list()] == ["d", "notes.txt"]
        session.remove("d/two")
        assert not session.exists("d/two")
        assert session.run(["cat", "notes.txt"], text=True).stdout == "one"
        with pytest.raises(FileNotFoundError):
            session.read("none")
        with pytest.raises(kennel.TimeoutExpired):
            session.run(["sleep", "60"], timeout=0.1)
        copy = pickle.loads(pickle.dumps(session))
        copy.close()
        assert session.exists("notes.txt")
    with pytest.raises(kennel.SessionClosed):
        session.run(["true"])


def test_a_task_of_the_cluster_can_use_a_session(fleet):
    @ray.remote
    def task(session):
        return session.run(["cat", "given"]).stdout

    with fleet.session() as session:
        session.write("given", b"by the driver")
        assert ray.get(task.remote(session)) == b"by the driver"
        copy = pickle.loads(pickle.dumps(session))
    with pytest.raises(kennel.SessionClosed, match="is closed"):
        copy.run(["true"])


def test_sessions_are_spread_and_end_when_nobody_has_them(fleet):
    sessions = [fleet.session() for _ in range(3)]
    assert {session.node for session in sessions} == set(fleet.nodes)
    for session in sessions:
        session.detached = session.run(f"{SLEEP.format(2)} >/dev/null 2>&1 &", shell=True)
    until(lambda: len(sleepers(2)) == 3, "the commands")
    del sessions, session
    until(lambda: not sleepers(2), "their end")


def test_a_session_ends_when_it_is_idle(fleet):
    session = fleet.session(idle=0.5)
    until(lambda: ended(session), "its end")
    session.close()


def ended(session):
    time.sleep(1)
    try:
        session.run(["true"])
    except kennel.SessionClosed:
        return True
    return False


def test_a_fleet_that_is_closed_says_so(nodes):
    fleet = kennel.ray.Fleet(profile="no-network", per_node=2)
    results = fleet.map([["true"], SLEEP.format(3).split()])
    next(results)
    until(lambda: sleepers(3), "the command")
    fleet.close()
    with pytest.raises(kennel.SessionClosed, match="the fleet is closed"):
        next(results)
    until(lambda: not sleepers(3), "its end")
    with pytest.raises(kennel.SessionClosed):
        fleet.session()
    fleet.close()


def test_no_node_with_the_labels_is_an_error_in_time(nodes):
    with (
        kennel.ray.Fleet(per_node=1, labels={"kind": "none"}, start_timeout=0.5) as fleet,
        pytest.raises(kennel.SessionError, match="no node of the cluster takes commands"),
    ):
        list(fleet.map([["true"]]))


@pytest.mark.parametrize(("retries", "number"), [(0, 2000), (1, 800)])
def test_a_node_is_killed_in_the_middle(nodes, tmp_path, retries, number):
    """Each command writes a line to a file of its own, so that its runs can be counted."""
    runs = tmp_path / "runs"
    runs.mkdir()
    with kennel.ray.Fleet(profile="no-network", workspace=runs, per_node=PER_NODE, fresh=False) as fleet:
        until(lambda: len(fleet.nodes) == 3, "three nodes")
        victim = nodes.others[0].node_id
        kept = [fleet.session() for _ in range(3)]
        commands = ({"args": f"echo run >> {each}", "shell": True} for each in range(number))
        found = {}
        for result in fleet.map(commands, retries=retries, timeout=60):
            assert result.index not in found
            found[result.index] = result
            if len(found) == 200:
                nodes.kill(victim)
            if len(found) == 400:
                nodes.add()
        assert found.keys() == set(range(number))
        lost = {each for each, result in found.items() if result.error is not None}
        check_runs(runs, found, lost, retries)
        for each in lost:
            error = found[each].error
            assert isinstance(error, kennel.SessionLost)
            assert (error.reason, found[each].node) == ("node", victim)
        for session in kept:
            if session.node == victim:
                with pytest.raises(kennel.SessionLost):
                    session.run(["true"])
            else:
                assert session.run(["true"]).returncode == 0
        until(lambda: len(fleet.nodes) == 3, "the new node")
        assert victim not in fleet.nodes
        assert {result.node for result in fleet.map([["true"]] * 60)} == set(fleet.nodes)
    # Ray killed the sessions of the node. Their sockets are left until an actor starts on that machine.
    with kennel.ray.Fleet(per_node=1) as fleet:
        until(lambda: fleet.nodes, "a node")
        assert not stray_sockets()


def stray_sockets():
    """The sockets and locks of sessions whose actors are gone."""
    files = Path(os.environ["XDG_RUNTIME_DIR"], "kennel").glob("py-*")
    return [file for file in files if not Path("/proc", file.name.split("-")[1]).exists()]


def check_runs(runs, found, lost, retries):
    """No command ran more often than it was sent, and those with a result ran."""
    assert len(lost) <= (2 * PER_NODE if retries == 0 else 0)
    sent_again = {number for number, result in found.items() if result.starts > 1}
    assert sent_again if retries else lost
    assert len(sent_again) <= 2 * PER_NODE
    for number, result in found.items():
        file = runs / str(number)
        count = len(file.read_text().splitlines()) if file.exists() else 0
        assert count <= result.starts
        assert count >= (number not in lost)


def test_only_files_of_killed_sessions_are_removed(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name in (f"py-{gone.pid}-a", f"py-{gone.pid}-held", f"py-{os.getpid()}-b", "named"):
        (tmp_path / f"{name}.lock").touch()
        (tmp_path / f"{name}.sock").touch()
    held = f"py-{gone.pid}-held.lock"
    hold = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", hold, tmp_path / held], stdin=PIPE, stdout=PIPE)
    with holder:
        holder.stdout.readline()
        remove_stray(tmp_path)
        holder.stdin.close()
    left = {file.name for file in tmp_path.glob("*.lock")}
    assert left == {held, f"py-{os.getpid()}-b.lock", "named.lock"}
    assert len(list(tmp_path.iterdir())) == 6
