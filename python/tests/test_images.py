"""The store of images, and sessions that show one."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
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


def test_a_snapshot_is_an_image_of_what_commands_changed(store: Path, root: Path) -> None:
    base = images.import_(root, name="mine:1")[0]
    with kennel.Session(image="mine:1", user="0") as session:
        session.run(["sh", "-c", "echo x > /made"], check=True)
        stored = session.snapshot("mine:2")
        assert (stored.names, stored.layers) == (["mine:2"], base.layers + 1)
        with pytest.raises(kennel.ImageError, match="No Name"):
            session.snapshot("No Name")
        running = session.popen(["sh", "-c", "read line"], stdin=subprocess.PIPE)
        with pytest.raises(kennel.ImageError, match="while a command of the session runs"):
            session.snapshot("mine:3")
        running.communicate(b"")
    with kennel.Session(image="mine:2") as session:
        assert session.run(["sh", "-c", "read line < /made; echo $line"], text=True).stdout == "x\n"
    with kennel.Session() as session, pytest.raises(kennel.ImageError, match="no image"):
        session.snapshot("mine:3")
    assert {image.digest for image in images.list()} == {base.digest, stored.digest}


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def registry(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A registry on loopback that has `app:1`, and speaks plain HTTP."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.add(root, ".")
    parts = {"layer": layer.getvalue()}
    platform = {"architecture": "amd64", "os": "linux"}
    config = {**platform, "config": {}, "rootfs": {"type": "layers", "diff_ids": [digest(parts["layer"])]}}
    parts["config"] = json.dumps(config).encode()

    def part(kind: str, name: str) -> dict[str, object]:
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": digest(parts[name]), "size": len(parts[name])}

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": part("config.v1+json", "config"),
        "layers": [part("layer.v1.tar", "layer")],
    }
    served = {f"/v2/app/blobs/{digest(data)}": data for data in parts.values()}
    served["/v2/app/manifests/1"] = json.dumps(manifest).encode()
    served[f"/v2/app/manifests/{digest(served['/v2/app/manifests/1'])}"] = served["/v2/app/manifests/1"]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            found = served.get(self.path)
            self.send_response(404 if found is None else 200)
            if found is not None and "/manifests/" in self.path:
                self.send_header("Content-Type", str(manifest["mediaType"]))
                self.send_header("Docker-Content-Digest", digest(found))
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(served.get(self.path, b""))

        def log_message(self, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    host = f"127.0.0.1:{server.server_port}"
    (tmp_path / "config/kennel").mkdir(parents=True)
    (tmp_path / "config/kennel/config.toml").write_text(f'[images]\ninsecure_registries = ["{host}"]\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield host
    server.shutdown()
    thread.join()


def test_an_image_is_pulled(store: Path, registry: str) -> None:
    name = f"{registry}/app:1"
    # A session takes what the store has.
    with pytest.raises(kennel.Error, match="not in the store"):
        kennel.Session(image=name)
    pulled = images.pull(name)
    assert (pulled.names, pulled.layers) == ([name], 1)
    assert images.pull(name).digest == pulled.digest == images.inspect(name)["digest"]
    with kennel.Session(image=name) as session:
        assert session.run(["sh", "-c", "echo $HOME"], text=True).stdout == "/root\n"
    with pytest.raises(kennel.ImageError, match=f"{registry}/none:1"):
        images.pull(f"{registry}/none:1")
