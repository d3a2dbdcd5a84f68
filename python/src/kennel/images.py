"""The store of images, which are root file systems for sandboxes.

A policy names one: `Session(image="debian:12", user="postgres")`. The functions start `kennel image`, so they wait; in an
event loop, call them by `asyncio.to_thread`.
"""

from __future__ import annotations

import builtins
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kennel._launch import error_of, executable
from kennel.errors import ImageError
from kennel.results import _of


@dataclass(frozen=True)
class LeftOut:
    """What of an image is not in the store."""

    dropped: str
    """`set_id_bits`, `file_capabilities`, `devices`, `overlay_attributes` or `attributes`."""
    count: int


@dataclass(frozen=True)
class Image:
    """An image of the store."""

    digest: str
    """The digest of its configuration, with `sha256:`. It names the image as a name does."""
    names: builtins.list[str]
    layers: int
    """How many it has."""
    size: int
    """Bytes of its layers, uncompressed."""
    os: str | None = None
    """What it was built for. An import does not tell this, nor what follows."""
    architecture: str | None = None
    created: str | None = None
    """When it was built, as RFC 3339 writes times."""
    used: int | None = None
    """When a sandbox used it last, in seconds since 1970."""
    left_out: builtins.list[LeftOut] = field(default_factory=builtins.list)


@dataclass(frozen=True)
class Removed:
    """What was removed from the store."""

    names: builtins.list[str]
    images: builtins.list[str]
    """Their digests."""
    layers: int
    """How many."""
    size: int
    """Bytes of these layers, uncompressed."""


def import_(source: str | os.PathLike[str], name: str | None = None) -> builtins.list[Image]:
    """Adds the images of an archive or a directory.

    `source` is what `docker save`, skopeo, podman and buildah write, a tar archive of a root file system, or a directory
    with one. `name` takes the place of the names that are in it. If anything is wrong with it, nothing is added.

    >>> try:
    ...     import_("/none/such.tar")
    ... except ImageError as error:
    ...     print(error)
    import: read /none/such.tar: No such file or directory
    """
    named = ["--name", name] if name is not None else []
    return [_image(each) for each in _said("import", *named, "--", os.path.abspath(source))]


def pull(reference: str) -> Image:
    """Gets an image from its registry, unless the store has what the registry has for that name.

    Names are those of docker: `python:3.12`. Credentials are those of `docker login`.
    """
    digest = _said("pull", "--", reference)["digest"]
    return next(image for image in list() if image.digest == digest)


def list() -> builtins.list[Image]:  # noqa: A001
    """All images, sorted by their digests."""
    return [_image(each) for each in _said("list")]


def inspect(image: str) -> dict[str, Any]:
    """What `kennel image inspect --json` prints of an image: `config` is its configuration, `layers` a list."""
    shown: dict[str, Any] = _said("inspect", "--", image)
    return shown


def remove(*images: str) -> Removed:
    """Removes names, and images without another name; by a digest, an image with all its names.

    The layers that another image or a running sandbox uses stay. If one of `images` cannot be removed, the others are, and
    the error is of that one.
    """
    return _of(Removed, _said("remove", "--", *images)) if images else Removed([], [], 0, 0)


def prune(unused_for: str | None = None) -> Removed:
    """Removes images without a name; with a time such as `30d`, also those that nothing has used for so long."""
    since = ["--unused-for", unused_for] if unused_for is not None else []
    return _of(Removed, _said("prune", *since))


def _image(told: dict[str, Any]) -> Image:
    left_out = [_of(LeftOut, each) for each in told.get("left_out", [])]
    return _of(Image, {**told, "left_out": left_out})


def _snapshot(socket: Path, name: str) -> Image:
    """Stores the image of a session with what its commands changed."""
    [stored] = _said("snapshot", "--", socket.stem, name, verb="session", runtime=socket.parent)
    return _image(stored)


def _said(action: str, *others: str, verb: str = "image", runtime: Path | None = None) -> Any:
    """The object that `kennel image` prints. `runtime` is the directory of the socket of a session."""
    command = [executable(), verb, action, "--json", *others]
    # The place that `kennel` itself looks at is this one.
    elsewhere = {"XDG_RUNTIME_DIR": str(runtime.parent)} if runtime is not None and runtime.name == "kennel" else {}
    environment = {**os.environ, **elsewhere}
    ran = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=environment, check=False)  # noqa: S603
    try:
        if ran.returncode == 0:
            return json.loads(ran.stdout)
    except ValueError:
        pass
    error = error_of(ran.stderr.decode("utf-8", "replace"), f"kennel {verb} {action}: status {ran.returncode}")
    # Of a mistake in the arguments the first line says what it is.
    message = error.message.partition("\n")[0].removeprefix("error: ")
    raise ImageError(message, hint=error.hint)
