"""Kennel for Python: confined commands, with calls in the shape of `subprocess`.

>>> import kennel
>>> with kennel.Session() as s:
...     r = s.run(["sh", "-c", "echo hello; exit 3"], text=True)
...     r.stdout, r.returncode, r.outcome.ended
('hello\\n', 3, 'exited')
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kennel import images
from kennel.aio import AsyncSession
from kennel.aio_detached import AsyncDetached, AsyncLogs, AsyncShell
from kennel.aio_process import AsyncPopen
from kennel.detached import Detached, Logs, Shell
from kennel.errors import (
    AccessError,
    CalledProcessError,
    DirectoryError,
    Error,
    ExistsError,
    FileError,
    ImageError,
    IsDirectoryError,
    JobCancelled,
    JobDead,
    JobError,
    JobTimeout,
    NotDirectoryError,
    NotFoundError,
    OutputLimitExceeded,
    PolicyError,
    ProgramError,
    ProgramNotFoundError,
    ProgramPermissionError,
    ProtocolError,
    SessionClosed,
    SessionError,
    SessionLost,
    StartError,
    TimeoutExpired,
    Unsupported,
    WorkspaceNotFoundError,
)
from kennel.oneshot import arun, remote_run, run
from kennel.policy import (
    Audit,
    Env,
    Io,
    Limits,
    Mount,
    Network,
    NetworkLimits,
    Overlay,
    Policy,
    Proxy,
)
from kennel.pool import AsyncPool, Pool
from kennel.probe import Finding, Probe, probe
from kennel.process import Popen, Terminal
from kennel.results import (
    Change,
    Committed,
    Completed,
    Denial,
    Description,
    DetachedInfo,
    Entry,
    Interpreter,
    NetworkFailure,
    Outcome,
    Process,
    Published,
    Stat,
    Stats,
    Usage,
    Weaker,
)
from kennel.session import Session

if TYPE_CHECKING:
    from kennel.fleet import Fleet, JobResult
    from kennel.remote import Remote

attach = Session.attach


def __getattr__(name: str) -> Any:
    """What needs HTTP is imported when it is used first: that takes longer than a command."""
    if name == "Remote":
        from kennel.remote import Remote

        return Remote
    if name in ("Fleet", "JobResult"):
        from kennel import fleet

        return getattr(fleet, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AccessError",
    "AsyncDetached",
    "AsyncLogs",
    "AsyncPool",
    "AsyncPopen",
    "AsyncSession",
    "AsyncShell",
    "Audit",
    "CalledProcessError",
    "Change",
    "Committed",
    "Completed",
    "Denial",
    "Description",
    "Detached",
    "DetachedInfo",
    "DirectoryError",
    "Entry",
    "Env",
    "Error",
    "ExistsError",
    "FileError",
    "Finding",
    "Fleet",
    "ImageError",
    "Interpreter",
    "Io",
    "IsDirectoryError",
    "JobCancelled",
    "JobDead",
    "JobError",
    "JobResult",
    "JobTimeout",
    "Limits",
    "Logs",
    "Mount",
    "Network",
    "NetworkFailure",
    "NetworkLimits",
    "NotDirectoryError",
    "NotFoundError",
    "Outcome",
    "OutputLimitExceeded",
    "Overlay",
    "Policy",
    "PolicyError",
    "Pool",
    "Popen",
    "Probe",
    "Process",
    "ProgramError",
    "ProgramNotFoundError",
    "ProgramPermissionError",
    "ProtocolError",
    "Proxy",
    "Published",
    "Remote",
    "Session",
    "SessionClosed",
    "SessionError",
    "SessionLost",
    "Shell",
    "StartError",
    "Stat",
    "Stats",
    "Terminal",
    "TimeoutExpired",
    "Unsupported",
    "Usage",
    "Weaker",
    "WorkspaceNotFoundError",
    "arun",
    "attach",
    "images",
    "probe",
    "remote_run",
    "run",
]
