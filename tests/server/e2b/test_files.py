"""Files, as E2B's documentation uses them."""

import hashlib
import io
import os

import pytest
import e2b
from e2b import FileNotFoundException, FileType, InvalidArgumentException, Sandbox, SandboxException


def test_what_is_written_is_read(sandbox):
    info = sandbox.files.write("notes/today.txt", "milk\n")
    assert info.path == "/home/user/notes/today.txt"
    assert sandbox.files.read("notes/today.txt") == "milk\n"
    assert sandbox.files.read("/home/user/notes/today.txt", format="bytes") == b"milk\n"
    assert sandbox.commands.run("cat notes/today.txt").stdout == "milk\n"


def test_contents_of_any_size_and_kind_arrive_whole(sandbox):
    for size in (0, 1, 255 << 10, 256 << 10, (256 << 10) + 1, 20 << 20):
        contents = os.urandom(size)
        sandbox.files.write("big", contents)
        assert sandbox.files.read("big", format="bytes") == contents, size
        got = b"".join(sandbox.files.read("big", format="stream"))
        assert hashlib.sha256(got).digest() == hashlib.sha256(contents).digest(), size
    with pytest.raises(Exception):
        sandbox.commands.run("test -e big.part")


def test_a_stream_is_written_as_it_comes(sandbox):
    contents = os.urandom(3 << 20)
    sandbox.files.write("streamed", io.BytesIO(contents))
    assert sandbox.files.read("streamed", format="bytes") == contents


def test_several_files_are_written_at_once(sandbox):
    written = sandbox.files.write_files([{"path": f"d/{name}", "data": name} for name in ("a", "b", "ü ñ")])
    assert [info.name for info in written] == ["a", "b", "ü ñ"]
    assert sandbox.files.read("d/ü ñ") == "ü ñ"


def test_a_directory_is_listed_with_what_is_in_it(sandbox):
    sandbox.commands.run("mkdir -p l/sub/deep; echo 12345 > l/file; chmod 750 l/file; ln -s file l/link; touch l/sub/deep/x")
    entries = {entry.name: entry for entry in sandbox.files.list("l")}
    assert set(entries) == {"file", "link", "sub"}
    assert (entries["file"].size, entries["file"].permissions) == (6, "-rwxr-x---")
    assert entries["sub"].type == FileType.DIR and entries["file"].type == FileType.FILE
    assert entries["link"].symlink_target.endswith("/l/file")
    deep = {entry.path for entry in sandbox.files.list("l", depth=3)}
    assert "/home/user/l/sub/deep/x" in deep


def test_names_are_made_moved_and_removed(sandbox):
    assert sandbox.files.make_dir("one/two/three")
    assert not sandbox.files.make_dir("one/two/three"), "it is there"
    sandbox.files.write("one/two/three/f", "x")
    moved = sandbox.files.rename("one/two", "other/place")
    assert moved.path == "/home/user/other/place"
    assert sandbox.files.exists("other/place/three/f") and not sandbox.files.exists("one/two")
    sandbox.files.remove("other")
    assert not sandbox.files.exists("other")


def test_a_file_moves_between_file_systems_of_the_sandbox(sandbox):
    sandbox.commands.run("mkdir /tmp/d; echo x > /tmp/d/tool; chmod 755 /tmp/d/tool; echo y > own")
    moved = sandbox.files.rename("/tmp/d", "here/d")
    assert moved.path == "/home/user/here/d"
    assert sandbox.commands.run("ls -l here/d/tool").stdout.startswith("-rwxr-xr-x")
    sandbox.files.rename("own", "/tmp/own")
    assert sandbox.files.read("/tmp/own") == "y\n" and not sandbox.files.exists("/tmp/d")
    with pytest.raises(SandboxException, match="/usr/x"):
        sandbox.files.rename("/tmp/own", "/usr/x")


def test_what_is_missing_is_named(sandbox):
    with pytest.raises(FileNotFoundException, match="nothing-here"):
        sandbox.files.read("nothing-here")
    with pytest.raises((FileNotFoundException, e2b.NotFoundException)):
        sandbox.files.list("nothing-here")
    with pytest.raises((FileNotFoundException, e2b.NotFoundException)):
        sandbox.files.rename("nothing-here", "x")


def test_what_may_not_be_written_is_refused_with_the_path(sandbox):
    for path in ("/usr/bin/x", "/etc/hosts", "/proc/x"):
        with pytest.raises(SandboxException, match=path):
            sandbox.files.write(path, "x")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("/home/user")


def test_no_path_leads_out_of_the_sandbox(sandbox, server):
    outside = server.place / "outside"
    outside.write_text("secret")
    sandbox.commands.run(f"ln -s {outside} link; ln -s {server.state} state; ln -s / root")
    for path in (str(outside), "link", f"../../../../{outside}", f"root/{outside}", "state/seed", str(server.state / "seed")):
        with pytest.raises(FileNotFoundException):
            sandbox.files.read(path)
    for path in ("link", str(outside)):
        try:
            sandbox.files.write(path, "x")
        except SandboxException:
            pass
        assert outside.read_text() == "secret"


def test_one_sandbox_does_not_see_the_files_of_another(server):
    with Sandbox.create() as one, Sandbox.create() as other:
        one.files.write("mine", "x")
        assert not other.files.exists("mine")
        place = server.state / "sandboxes" / one.sandbox_id / "home" / "mine"
        assert place.exists() and not other.files.exists(str(place))


def test_another_user_is_refused(sandbox):
    with pytest.raises(InvalidArgumentException, match="one user"):
        sandbox.files.read("x", user="nobody-else")
