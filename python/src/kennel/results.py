"""What a session answers, as plain data. `docs/cli.md` and `docs/sessions.md` of Kennel explain the fields."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from kennel import _remedy, _wire
from kennel.errors import CalledProcessError

_T = TypeVar("_T")


def _of(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """The fields of a dataclass from an object that may have more of them."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{name: value for name, value in values.items() if name in names})
    except (TypeError, AttributeError):
        raise _wire.malformed() from None


@dataclass(frozen=True)
class Denial:
    """Something that the sandbox refused. `remedy` says which keyword of `kennel.Session` would allow it, if one would.

    >>> print(Denial("proxy", "a.example:443", "not on the list", "observed", 'allow=["a.example:443"] would allow it'))
    denied: a.example:443: not on the list; allow=["a.example:443"] would allow it
    """

    protection: str
    subject: str
    reason: str
    basis: str = "observed"
    remedy: str | None = None
    preset: str | None = None
    """The preset that has the host, such as `@cargo`: `allow=["@cargo"]` would allow its other hosts, too."""

    def __str__(self) -> str:
        verb = {"possible": "possibly denied", "kept": "note"}.get(self.basis, "denied")
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{verb}: {self.subject}: {self.reason}{remedy}"


@dataclass(frozen=True)
class NetworkFailure:
    """A connection that the policy allows and that could not be made.

    >>> print(NetworkFailure("localhost:9", "refused", "it cannot be reached: Connection refused"))
    localhost:9: it cannot be reached: Connection refused
    """

    destination: str
    cause: str
    """`name`, `refused`, `timeout`, `unreachable`, `upstream` or `broken`."""
    reason: str
    has_unused_upstream: bool = False
    """Your own `https_proxy` names a proxy for it that the policy does not use: `upstream="environment"` does."""

    def __str__(self) -> str:
        return f"{self.destination}: {self.reason}"


@dataclass(frozen=True)
class Weaker:
    """A protection or limit that the policy asks for and this machine does not enforce in full.

    >>> print(Weaker("cpus", "off", "needs a delegated cgroup v2"))
    cpus off: needs a delegated cgroup v2
    """

    name: str
    state: str
    """`degraded` or `off`."""
    detail: str
    cause: str | None = None
    """Of a limit: why no cgroup enforces it."""
    remedy: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.state}: {self.detail}"


@dataclass(frozen=True)
class Usage:
    """What a command used. Only a cgroup counts the fields that may be `None`."""

    user_us: int = 0
    system_us: int = 0
    max_rss_bytes: int = 0
    killed: int = 0
    peak_memory_bytes: int | None = None
    peak_pids: int | None = None
    io_read_bytes: int | None = None
    io_write_bytes: int | None = None
    throttled_us: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a command ended: the report of `kennel exec --json`."""

    ended: str
    """`exited`, `signaled`, `timed_out`, `killed`, or `failed` if nothing ran."""
    exit_code: int
    signal: int | None = None
    limit: str | None = None
    """The limit that ended it, such as `wall_time`."""
    duration_ms: int = 0
    usage: Usage | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    truncated: bool = False
    """Output beyond the policy's cap was discarded."""
    weaker: list[Weaker] = field(default_factory=list)
    """What the policy asks for and this machine does not enforce in full."""
    denials: list[Denial] = field(default_factory=list)
    network_failures: list[NetworkFailure] = field(default_factory=list)
    failure: dict[str, Any] | None = None
    shell: dict[str, Any] | None = None
    started: str | None = None
    """`exec`, or `warm` if an interpreter that waited became the command. `None`: nothing ran, or the session is of an older
    version."""
    executed_because: str | None = None
    """Why the program was executed although the policy has its interpreter in `warm`."""
    message: str = ""
    """Lines for people, as `kennel exec` prints them: denials, limits and hints."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    """The whole report."""

    @property
    def hints(self) -> list[str]:
        """The hints of `message`.

        >>> Outcome("exited", 1, message="kennel: note: a\\nkennel: hint: b").hints
        ['b']
        """
        start = "kennel: hint: "
        return [line[len(start) :] for line in self.message.splitlines() if line.startswith(start)]

    @classmethod
    def parse(cls, report: bytes, message: str = "") -> Outcome:
        """The outcome of a report, which is JSON."""
        raw = _remedy.within(_wire.parsed(report))
        if not isinstance(raw, dict):
            raise _wire.malformed()
        values = dict(raw)
        try:
            values["denials"] = [_of(Denial, denial) for denial in raw.get("denials") or ()]
            enforcement = raw.get("enforcement") or {}
            entries = [_of(Weaker, entry) for entry in enforcement.get("protections") or ()]
            values["weaker"] = [entry for entry in entries if entry.state != "enforced"]
            failures = raw.get("network_failures") or ()
            values["network_failures"] = [_of(NetworkFailure, failure) for failure in failures]
            values["usage"] = _of(Usage, raw["usage"]) if raw.get("usage") else None
        except (TypeError, AttributeError):
            raise _wire.malformed() from None
        return _of(cls, {**values, "message": message, "raw": raw})


class Completed(subprocess.CompletedProcess[_T]):
    """A command that has ended: `subprocess.CompletedProcess` with the outcome.

    `returncode` is negative if a signal ended the command, as with `subprocess`.
    """

    files: Mapping[str, bytes] = MappingProxyType({})
    """Of `remote_run`: the files of `outputs` that are there."""

    def __init__(
        self,
        args: Any,
        returncode: int,
        stdout: _T | None = None,
        stderr: _T | None = None,
        *,
        report: bytes = b"",
        message: bytes = b"",
    ) -> None:
        super().__init__(args, returncode, stdout, stderr)
        self._report = report
        self._message = message

    @cached_property
    def outcome(self) -> Outcome:
        """How the command ended. The report is parsed when you ask for it first."""
        if not self._report:
            code, signal = (self.returncode, None) if self.returncode >= 0 else (128 - self.returncode, -self.returncode)
            return Outcome("exited" if signal is None else "signaled", code, signal, message=self.message)
        return Outcome.parse(self._report, self.message)

    @property
    def message(self) -> str:
        """Lines for people: denials, limits and hints."""
        return self._message.decode("utf-8", "replace").strip()

    @property
    def denials(self) -> list[Denial]:
        """What was refused, as far as Kennel knows. A session with `explain=True` knows more."""
        return self.outcome.denials

    @property
    def directory(self) -> str | None:
        """Of a snippet: the directory of the shell afterwards."""
        shell = self.outcome.shell
        found = None if shell is None else shell.get("directory")
        return found if isinstance(found, str) else None

    @property
    def truncated(self) -> bool:
        """Whether output beyond the cap was discarded: `limits.output` of the policy, or 64 MiB of each stream.

        A call without `truncate=True` raises `kennel.OutputLimitExceeded` instead.
        """
        # The key of the report; inside of a string its quotes would be escaped.
        return b'"truncated":true' in self._report

    def check_returncode(self) -> None:
        """Raises `kennel.CalledProcessError` if the command failed."""
        if self.returncode:
            raise CalledProcessError(self.returncode, self.args, self.stdout, self.stderr, self.outcome)


@dataclass(frozen=True)
class Stat:
    """A file of a session."""

    kind: str
    """`file`, `directory`, `link` or `other`."""
    size: int
    mode: int
    modified_ns: int

    @property
    def modified(self) -> datetime:
        """When it was modified last, in UTC."""
        return datetime.fromtimestamp(self.modified_ns / 1e9, timezone.utc)

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"

    @property
    def is_file(self) -> bool:
        """Whether it is a file."""
        return self.kind == "file"


@dataclass(frozen=True)
class Entry:
    """An entry of a directory. Its name is as `os.fsdecode` gives it."""

    name: str
    kind: str
    size: int

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"


@dataclass(frozen=True)
class Change:
    """A path that commands changed in the overlay. `reason` says why it was not committed."""

    path: str
    """Relative to the workspace."""
    kind: str
    """`added`, `modified` or `deleted`."""
    file: str
    """`file`, `directory`, `link` or `other`."""
    reason: str | None = None


@dataclass(frozen=True)
class Committed:
    """The result of a commit."""

    applied: list[Change]
    refused: list[Change]
    """Changes that the workspace does not have, each with its `reason`."""
    left: list[Change]
    """Changes that were not asked for."""
    denials: list[Denial]
    """Applied files that programs outside obey. Look at them before you trust them."""


@dataclass(frozen=True)
class Stats:
    """Numbers of a session."""

    ready: int
    running: int
    background: int
    served: int
    refill_us: int
    idle_ms: int | None = None
    """How long nobody has used it; `None` while somebody does."""


@dataclass(frozen=True)
class Process:
    """A process of a session's commands."""

    pid: int
    """Its number inside."""
    host_pid: int
    command: int | None
    """The number of the command that stays, if one of them started it."""
    state: str
    age_ms: int
    cpu_ms: int
    memory: int
    """Bytes in RAM."""
    name: str
    arguments: list[str]
    is_cut: bool = False
    """Arguments are missing or cut."""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that the session starts before its command is known: one of `warm`."""

    program: str
    modules: list[str]
    """What it imports ahead."""
    state: str
    """`absent`, `starting`, `waiting`, or `failed`."""
    reason: str | None = None
    """Why it failed."""
    memory: int | None = None
    """Bytes in RAM, if it waits."""


@dataclass(frozen=True)
class DetachedInfo:
    """A command that stays, or stayed."""

    id: int
    program: str
    started_ms: int
    state: str
    """`running`, `ended` or `lost`."""
    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class Published:
    """A port of the session that programs outside can connect to."""

    address: str
    """Where they connect to: `127.0.0.1:40001`."""
    inside: int
    chosen: bool = False
    """Whether the kernel chose the port."""

    @property
    def port(self) -> int:
        """The port outside.

        >>> Published("[::1]:80", 8000).port
        80
        """
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True)
class Description:
    """What a session was prepared with."""

    profile: str
    workspace: str
    directory: str
    """Where commands start."""
    isolation: str
    version: str
    enforcement: dict[str, Any] = field(default_factory=dict)


def change_of(values: Mapping[str, Any]) -> Change:
    """A change as the session sends it."""
    return _of(Change, {**values, "path": _wire.path_of_text(values["path"])})
