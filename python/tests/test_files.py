"""Files of a session: each method, and its error."""

from __future__ import annotations

import errno
import gc
import os

import pytest
from support import descriptors

import kennel


def test_what_is_written_is_read(session, workspace):
    data = os.urandom(3_000_000)
    session.write("data", data)
    assert session.read("data") == data
    assert (workspace / "data").read_bytes() == data
    assert session.run(["wc", "-c", "data"], text=True).stdout == "3000000 data\n"
    session.write_text("text", "ä\n", encoding="latin-1")
    assert session.read("text") == b"\xe4\n"
    assert session.read_text("text", encoding="latin-1") == "ä\n"
    session.write(workspace / "data", bytearray(b"shorter"))
    assert session.read(str(workspace / "data").encode()) == b"shorter"
    session.write("empty", b"")
    assert session.read("empty") == b""


def test_modes(session):
    session.write("program", b"#!/bin/sh\necho ran\n", mode=0o700)
    assert session.stat("program").mode & 0o777 == 0o700
    assert session.run(["./program"], text=True).stdout == "ran\n"


@pytest.mark.parametrize(
    ("do", "kind", "number"),
    [
        (lambda s: s.read("missing"), FileNotFoundError, errno.ENOENT),
        (lambda s: s.stat("missing"), FileNotFoundError, errno.ENOENT),
        (lambda s: s.list("missing"), FileNotFoundError, errno.ENOENT),
        (lambda s: s.remove("missing"), FileNotFoundError, errno.ENOENT),
        (lambda s: s.mkdir("missing/below"), FileNotFoundError, errno.ENOENT),
        (lambda s: s.write("missing/below", b""), FileNotFoundError, errno.ENOENT),
        (lambda s: s.read("/usr"), IsADirectoryError, errno.EISDIR),
        (lambda s: s.write("/usr", b""), OSError, None),
        (lambda s: s.list("/etc/passwd"), NotADirectoryError, errno.ENOTDIR),
        (lambda s: s.mkdir("/usr"), OSError, None),
        (lambda s: s.write("/usr/x", b""), OSError, None),
        (lambda s: s.remove("/usr/bin/env"), OSError, None),
        (lambda s: s.read("/proc/self/status"), OSError, None),
    ],
)
def test_an_error_is_the_builtin_one_of_its_errno(session, do, kind, number):
    with pytest.raises(kind) as failed:
        do(session)
    assert isinstance(failed.value, kennel.FileError)
    assert isinstance(failed.value, kennel.Error)
    assert number in (None, failed.value.errno)
    assert failed.value.errno
    assert failed.value.filename


def test_directories(session):
    session.mkdir("d")
    with pytest.raises(FileExistsError):
        session.mkdir("d")
    session.mkdir("d", exist_ok=True)
    session.mkdir("d/e/f", parents=True)
    session.mkdir(b"d/e/f", parents=True, exist_ok=True)
    session.write("d/file", b"12345")
    with pytest.raises(FileExistsError):
        session.mkdir("d/file", exist_ok=True)
    session.run(["ln", "-s", "file", "d/link"], check=True)
    assert session.list("d") == [
        kennel.Entry("e", "directory", session.list("d")[0].size),
        kennel.Entry("file", "file", 5),
        kennel.Entry("link", "link", session.list("d")[2].size),
    ]
    assert session.list("d")[0].is_dir
    with pytest.raises(OSError, match="not empty") as full:
        session.remove("d")
    assert full.value.errno == errno.ENOTEMPTY
    for path in ("d/e/f", "d/e", "d/file", "d/link", "d"):
        session.remove(path)
    assert not session.exists("d")
    assert session.exists("/usr")
    assert not session.exists("/etc/passwd/below")


def test_a_stat_says_what_it_is(session, workspace):
    session.write("s", b"123")
    found = session.stat("s")
    assert (found.kind, found.size, found.is_file, found.is_dir) == ("file", 3, True, False)
    assert found.modified_ns == (workspace / "s").stat().st_mtime_ns
    assert found.modified.year > 2000
    assert session.stat("/usr").is_dir


def test_names_may_be_any_bytes(session):
    for name in (b"100%", b"a\xff%41", "ä\n".encode()):
        session.write(b"names-" + name, name)
        assert session.read(b"names-" + name) == name
        assert os.fsdecode(b"names-" + name) in [entry.name for entry in session.list()]
        session.remove(os.fsdecode(b"names-" + name))


def test_a_file_is_read_and_written_piece_by_piece(blocking):
    with blocking.open("pieces", "wb") as file:
        for _ in range(100):
            file.write(b"0123456789" * 1000)
        file.flush()
        assert not blocking.exists("pieces")
    with blocking.open("pieces") as file:
        file.seek(5)
        assert file.read(3) == b"567"
    assert blocking.stat("pieces").size == 1_000_000
    with pytest.raises(ValueError, match="mode"):
        blocking.open("pieces", "ab")
    for mode in ("rb", "wb"):
        with pytest.raises(FileNotFoundError):
            blocking.open("missing/x", mode)


def test_a_file_that_is_not_complete_does_not_appear(blocking):
    with pytest.raises(ZeroDivisionError), blocking.open("half", "wb") as file:
        file.write(b"half")
        raise ZeroDivisionError
    forgotten = blocking.open("half", "wb")
    forgotten.write(b"half")
    del forgotten
    gc.collect()
    given_up = blocking.open("half", "wb")
    given_up.abandon()
    given_up.close()
    assert not blocking.exists("half")
    assert [entry.name for entry in blocking.list() if "half" in entry.name] == []


def test_files_of_the_host_are_copied(session, tmp_path):
    (tmp_path / "in").write_bytes(os.urandom(2_000_000))
    (tmp_path / "in").chmod(0o750)
    session.copy_in(tmp_path / "in", "copied")
    assert session.stat("copied").mode & 0o777 == 0o750
    session.copy_out("copied", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
    with pytest.raises(FileNotFoundError):
        session.copy_in(tmp_path / "missing", "x")
    with pytest.raises(FileNotFoundError):
        session.copy_out("missing", tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        session.copy_out("copied", tmp_path / "nowhere" / "x")
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_a_copy_does_not_follow_a_link_that_a_command_made(session, workspace, tmp_path):
    (tmp_path / "victim").write_bytes(b"kept")
    session.write("payload", b"evil")
    session.run(["ln", "-s", str(tmp_path / "victim"), "result"], check=True)
    session.copy_out("payload", workspace / "result")
    assert (tmp_path / "victim").read_bytes() == b"kept"
    assert (workspace / "result").read_bytes() == b"evil"


def test_no_descriptor_is_left(blocking):
    blocking.write("d", b"1")
    before = descriptors()
    for _ in range(5):
        blocking.write("d", b"2")
        blocking.read("d")
        blocking.list()
        with blocking.open("d", "wb"):
            pass
        with pytest.raises(FileNotFoundError):
            blocking.read("missing")
    assert descriptors() == before
