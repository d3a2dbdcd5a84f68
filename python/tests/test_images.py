"""The store of images, and sessions that show one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import kennel
from kennel import images


def test_images_are_added_listed_and_removed(store: Path, root: Path, tmp_path: Path) -> None:
    assert images.list() == []
    [made] = images.import_(root, name="mine:1")
    assert made.digest.startswith("sha256:")
    assert (made.names, made.layers, made.left_out) == (["mine:1"], 1, [])
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(root, ".")
    images.import_(tmp_path / "root.tar", name="mine:2")
    listed = images.list()
    assert sorted(name for image in listed for name in image.names) == ["mine:1", "mine:2"]
    assert all(image.os == "linux" and image.size > 0 for image in listed)
    assert images.remove() == images.Removed([], [], 0, 0)
    removed = images.remove("mine:1", "mine:2")
    assert (removed.names, len(removed.images)) == (["mine:1", "mine:2"], len(listed))
    assert images.prune().images == images.prune(unused_for="10m").images == []
    with pytest.raises(kennel.ImageError, match="invalid value 'soon'"):
        images.prune(unused_for="soon")
    assert images.list() == []


def test_what_is_wrong_is_said(store: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no image")
    for wrong in [tmp_path / "text", tmp_path / "none", "-"]:
        with pytest.raises(kennel.ImageError) as raised:
            images.import_(wrong)
        assert str(wrong) in raised.value.message, raised.value.message
    with pytest.raises(kennel.ImageError, match="--nothing"):
        images.remove("--nothing:1")
    with pytest.raises(kennel.ImageError, match="name"):
        images.import_(tmp_path, name="No Name")
    assert images.list() == []


def test_a_session_shows_an_image(store: Path, root: Path) -> None:
    images.import_(root, name="mine:1")
    script = "echo $HOME; read line < /etc/passwd; echo $line; echo x > /made"
    with kennel.Session(image="mine:1", user="guest") as session:
        said = session.run(["sh", "-c", script], text=True, check=True).stdout
        assert said.splitlines() == ["/home/guest", "root:x:0:0:root:/root:/bin/sh"]
        assert session.read("/made") == b"x\n"
        with pytest.raises(kennel.ImageError, match="use"):
            images.remove("mine:1")
    images.remove("mine:1")
    with pytest.raises(kennel.Error, match="mine:1"):
        kennel.Session(image="mine:1")
