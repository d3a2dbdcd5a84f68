"""What this machine can enforce."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from kennel._launch import error_of, executable
from kennel.errors import SessionError
from kennel.results import _of


@dataclass(frozen=True)
class Finding:
    """What was found about one protection, or one property of the host."""

    area: str
    name: str
    state: str
    """`works`, `limited`, `missing` and such."""
    needed: bool
    """Whether a sandbox needs it."""
    detail: str
    remedy: str | None = None


@dataclass(frozen=True)
class Probe:
    """What `kennel probe --json` says."""

    verdict: str
    host: dict[str, Any]
    findings: list[Finding]

    @property
    def is_full(self) -> bool:
        """Whether every protection can be enforced here."""
        return self.verdict == "fully_enforced"


def probe() -> Probe:
    """Tries what this machine can enforce. It starts sandboxes, and changes nothing.

    >>> import kennel
    >>> any(finding.name == "landlock" for finding in kennel.probe().findings)
    True
    """
    words = [executable(), "probe", "--json"]
    ran = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)  # noqa: S603
    try:
        found = json.loads(ran.stdout)
        return Probe(found["verdict"], found["host"], [_of(Finding, each) for each in found["findings"]])
    except (ValueError, KeyError, TypeError):
        error = error_of(ran.stderr.decode("utf-8", "replace"), f"kennel probe failed: status {ran.returncode}")
        raise SessionError(error.message, hint=error.hint) from None
