"""Policies as dataclasses, with the same keys as policy files. `docs/policy.md` of Kennel explains each key.

`None` and empty lists are left out, so that Kennel's own defaults hold. Kennel itself checks every value when a session
starts; here only names of keys are checked.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from kennel._launch import error_of, executable
from kennel.errors import PolicyError

Path = str | os.PathLike[str]
Size = int | str
"""Bytes, or a text such as `"2G"`."""
Time = float | str
"""Seconds, or a text such as `"10m"`."""

_T = TypeVar("_T", bound="_Keys")


class _Keys:
    """A table of a policy."""

    def to_dict(self) -> dict[str, Any]:
        """The keys that are set, as a policy file has them."""
        found = {}
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if value is None or (isinstance(value, (list, tuple, dict)) and not value):
                continue
            found[each.name.rstrip("_")] = _plain(value)
        return found

    @classmethod
    def from_dict(cls: type[_T], values: Mapping[str, Any]) -> _T:
        """A table of these keys. An unknown one is an error."""
        known = {each.name.rstrip("_"): each.name for each in fields(cls)}  # type: ignore[arg-type]
        for key in values:
            if key not in known and key not in known.values():
                near = difflib.get_close_matches(str(key), known, 1)
                meant = f"; did you mean {near[0]!r}?" if near else ""
                names = ", ".join(sorted(known))
                raise PolicyError(f"{cls.__name__}: unknown key {key!r}{meant}", hint=f"the keys are {names}")
        made = cls(**{known.get(key, key): value for key, value in values.items()})
        for each in fields(made):  # type: ignore[arg-type]
            setattr(made, each.name, _read(_TABLES.get((cls.__name__, each.name)), getattr(made, each.name)))
        return made


def _plain(value: Any) -> Any:
    if isinstance(value, _Keys):
        return value.to_dict()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return value
    return [_plain(each) for each in value]


def _read(table: type[_Keys] | None, value: Any) -> Any:
    """A value as its dataclass, if it is a table."""
    if table is None or value is None or is_dataclass(value):
        return value
    if isinstance(value, Mapping):
        return table.from_dict(value)
    if isinstance(value, (list, tuple)):
        return [_read(table, each) for each in value]
    if table is Audit and isinstance(value, (str, os.PathLike)):
        return Audit(path=value)
    return value


@dataclass
class Mount(_Keys):
    """What else is visible, or hidden.

    >>> Mount.ro("/srv/models").to_dict()
    {'type': 'ro', 'source': '/srv/models'}
    """

    type: str
    source: Path | None = None
    target: Path | None = None
    path: Path | None = None
    size: Size | None = None
    contents: str | None = None
    executable: bool | None = None
    points_to: Path | None = None

    @classmethod
    def ro(cls, source: Path, target: Path | None = None) -> Mount:
        """A file or directory of the host, read-only."""
        return cls("ro", source, target)

    @classmethod
    def rw(cls, source: Path, target: Path | None = None) -> Mount:
        """A file or directory of the host, writable."""
        return cls("rw", source, target)

    @classmethod
    def tmpfs(cls, target: Path, size: Size | None = None) -> Mount:
        """An empty writable directory in memory."""
        return cls("tmpfs", target=target, size=size)

    @classmethod
    def mask(cls, path: Path) -> Mount:
        """Nothing: a directory becomes empty, a file unreadable."""
        return cls("mask", path=path)

    @classmethod
    def file(cls, target: Path, contents: str, executable: bool = False) -> Mount:
        """A read-only file with these contents."""
        return cls("file", target=target, contents=contents, executable=executable)

    @classmethod
    def symlink(cls, target: Path, points_to: Path) -> Mount:
        """A symbolic link."""
        return cls("symlink", target=target, points_to=points_to)

    @classmethod
    def device(cls, path: Path) -> Mount:
        """A device node of the host."""
        return cls("device", path=path)

    @classmethod
    def proc(cls, target: Path) -> Mount:
        """One more `/proc` of the sandbox."""
        return cls("proc", target=target)


@dataclass
class NetworkLimits(_Keys):
    """Limits of the network, for all commands together."""

    connections: int | None = None
    header_size: Size | None = None
    header_time: Time | None = None
    idle_time: Time | None = None
    bytes: Size | None = None
    rate: Size | None = None


@dataclass
class Proxy(_Keys):
    """Your own proxy, on a Unix socket."""

    unix: Path | None = None


@dataclass
class Network(_Keys):
    """What may be reached."""

    mode: str | None = None
    allow: list[str] = field(default_factory=list)
    deny: list[str] = field(default_factory=list)
    allow_addresses: list[str] = field(default_factory=list)
    name_servers: list[str] = field(default_factory=list)
    upstream: str | None = None
    proxy: Proxy | None = None
    transparent: bool | None = None
    publish: list[str] = field(default_factory=list)
    limits: NetworkLimits = field(default_factory=NetworkLimits)


@dataclass
class Env(_Keys):
    """The variables of commands. The key `pass` is the attribute `pass_`."""

    base: str | None = None
    pass_: list[str] = field(default_factory=list)
    set: dict[str, str] = field(default_factory=dict)


@dataclass
class Io(_Keys):
    """Speed of the disk below the workspace, each second."""

    read: Size | None = None
    write: Size | None = None
    read_ops: int | None = None
    write_ops: int | None = None


@dataclass
class Limits(_Keys):
    """What commands may use."""

    memory: Size | None = None
    swap: Size | None = None
    pids: int | None = None
    cpus: float | None = None
    cpuset: str | None = None
    io: Io | None = None
    cgroup: str | None = None
    cpu_time: Time | None = None
    timeout: Time | None = None
    output: Size | None = None
    output_ends: bool | None = None
    tmp_size: Size | None = None
    tmp_inodes: int | None = None
    open_files: int | None = None
    file_size: Size | None = None


@dataclass
class Overlay(_Keys):
    """Changes are kept apart from the workspace. `Overlay()` is enough."""

    upper: Path | None = None
    size: Size | None = None


@dataclass
class Audit(_Keys):
    """The log of what happened."""

    path: Path | None = None
    chain: bool | None = None
    fail_closed: bool | None = None
    arguments: bool | None = None


@dataclass
class Policy(_Keys):
    """What commands may see, use and reach.

    >>> Policy(profile="read-only", limits=Limits(memory="2G", timeout=60)).to_dict()
    {'profile': 'read-only', 'limits': {'memory': '2G', 'timeout': 60}}
    """

    profile: str | None = None
    workspace: Path | None = None
    mounts: list[Mount] = field(default_factory=list)
    protect: list[Path] = field(default_factory=list)
    git: str | None = None
    cwd: Path | None = None
    image: str | None = None
    root: Path | None = None
    user: str | None = None
    image_upper: Path | None = None
    hostname: str | None = None
    tmp: str | None = None
    isolation: str | None = None
    warm: dict[str, list[str]] = field(default_factory=dict)
    toolchains: str | None = None
    caches: str | None = None
    explain: bool | None = None
    on_unavailable: str | None = None
    network: Network = field(default_factory=Network)
    env: Env = field(default_factory=Env)
    limits: Limits = field(default_factory=Limits)
    overlay: Overlay | None = None
    audit: Audit | None = None
    require: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The keys that are set, as a policy file has them."""
        found = super().to_dict()
        for table in ("network", "env", "limits"):
            if table in found and not found[table]:
                del found[table]
        if "network" in found and not found["network"].get("limits", True):
            del found["network"]["limits"]
            if not found["network"]:
                del found["network"]
        return found

    def to_json(self) -> str:
        """The text of a policy file.

        >>> Policy(overlay=Overlay()).to_json()
        '{"overlay": {}}'
        """
        try:
            text = json.dumps(self.to_dict(), ensure_ascii=False)
            text.encode()
        except (TypeError, ValueError) as error:
            raise PolicyError(f"policy: {error}", hint="values are texts, numbers, booleans, lists and tables") from error
        return text

    @classmethod
    def from_file(cls, path: Path) -> Policy:
        """The policy of a file, TOML or JSON, as `kennel` reads it: with full paths.

        The file stays read-only for commands.
        """
        policy = cls._load(path)
        policy._keep(path)
        return policy

    @classmethod
    def _load(cls, path: Path) -> Policy:
        words = [executable(), "policy", "show", "--as-file", "--no-config", "--policy", os.fspath(path)]
        shown = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)  # noqa: S603
        if shown.returncode:
            error = error_of(shown.stderr.decode("utf-8", "replace"), f"{path}: cannot be read")
            raise PolicyError(error.message, hint=error.hint)
        return cls.from_dict(json.loads(shown.stdout))

    def _keep(self, path: Path) -> None:
        """Keeps commands from changing the policy of the next session."""
        file = os.path.realpath(path)
        workspace = os.path.realpath(os.fspath(self.workspace or "."))
        # With another root there may be no workspace.
        if self.workspace != "" and file.startswith(workspace.rstrip("/") + "/"):
            self.protect = [*self.protect, os.path.relpath(file, workspace)]
        elif any(each.type == "rw" and _is_below(file, each.source) for each in self.mounts):
            self.mounts = [*self.mounts, Mount.ro(file)]

    @classmethod
    def of(
        cls,
        policy: Policy | Mapping[str, Any] | Path | None = None,
        *,
        workspace: Path | None = None,
        allow: Iterable[str] = (),
        profile: str | None = None,
        **keys: Any,
    ) -> Policy:
        """A policy from what `kennel.Session` takes. Keys come over those of `policy`; `allow` adds to them.

        >>> Policy.of({"limits": {"pids": 9}}, allow=["a:1"], limits={"memory": "1G"}).to_dict()
        {'network': {'allow': ['a:1']}, 'limits': {'memory': '1G', 'pids': 9}}
        """
        file = policy if isinstance(policy, (str, os.PathLike)) else None
        if isinstance(policy, (str, os.PathLike)):
            policy = cls._load(policy)
        values: dict[str, Any] = {}
        if policy is not None:
            values = policy.to_dict() if isinstance(policy, Policy) else dict(policy)
        given = {"workspace": workspace, "profile": profile, **keys}
        for key, value in given.items():
            if value is None:
                continue
            plain = _plain(value)
            if isinstance(plain, dict) and isinstance(values.get(key), Mapping):
                plain = {**values[key], **plain}
            values[key] = plain
        if isinstance(allow, str):
            raise TypeError("allow must be a list of rules")
        merged = cls.from_dict(values)
        merged.network = replace(merged.network, allow=[*merged.network.allow, *allow])
        if file is not None:
            merged._keep(file)
        return merged


def _is_below(file: str, directory: Path | None) -> bool:
    above = os.path.realpath(os.fspath(directory or ""))
    return file == above or file.startswith(above.rstrip("/") + "/")


_TABLES: dict[tuple[str, str], type[_Keys]] = {
    ("Policy", "mounts"): Mount,
    ("Policy", "network"): Network,
    ("Policy", "env"): Env,
    ("Policy", "limits"): Limits,
    ("Policy", "overlay"): Overlay,
    ("Policy", "audit"): Audit,
    ("Network", "limits"): NetworkLimits,
    ("Network", "proxy"): Proxy,
    ("Limits", "io"): Io,
}
