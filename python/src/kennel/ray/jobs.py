"""The commands of one `Fleet.map`: which are read, on their way, and ended. It sends nothing."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from kennel.errors import SessionError
from kennel.ray.session import lost
from kennel.results import Completed

Command = Any
"""An argv as `kennel.Session.run` takes it, or a mapping with `args` and other keywords of `run`."""

KEYWORDS = frozenset(["input", "text", "encoding", "errors", "timeout", "check", "truncate", "env", "cwd", "shell", "cold"])
"""Keywords of `run` that mean the same on another machine."""


@dataclass(frozen=True)
class Result:
    """What became of one command of `Fleet.map`: `completed` or `error`."""

    index: int
    """The place of the command among all of them, from 0."""
    command: Command
    """The command as it was given."""
    completed: Completed[Any] | None = None
    """What `kennel.Session.run` returned."""
    error: Exception | None = None
    """What it raised, or `kennel.SessionLost` if the node was lost: the command may have run then."""
    node: str | None = None
    """The id that Ray has given to the node that had the command last."""
    starts: int = 0
    """To how many nodes it was sent. If that is more than 1 it may have run more than once."""

    def get(self) -> Completed[Any]:
        """The command that has ended. Raises the error if there is one."""
        if self.completed is None:
            raise self.error or SessionError(f"command {self.index} has no result")
        return self.completed


@dataclass(eq=False)
class Job:
    """A command on its way. `keywords` are those of `run`."""

    index: int
    command: Command
    keywords: dict[str, Any] = field(default_factory=dict)
    starts: int = 0
    member: Any = None
    call: Any = None
    answer: Any = None


class Jobs:
    """What is on its way for one caller."""

    def __init__(self, commands: Iterable[Command], retries: int, keywords: Mapping[str, Any]) -> None:
        for name in keywords.keys() - KEYWORDS:
            raise TypeError(f"map got an unexpected keyword argument {name!r}")
        self._commands = enumerate(commands)
        self._retries = retries
        self._keywords = dict(keywords)
        self._is_read = False
        self._unread: Exception | None = None
        self._again: deque[Job] = deque()
        self.running: set[Job] = set()
        self.done: deque[Job] = deque()

    @property
    def may_have_next(self) -> bool:
        """Whether `next` may return a job."""
        return bool(self._again) or not self._is_read

    @property
    def on_their_way(self) -> int:
        """How many commands have no result that the caller has taken."""
        return len(self.running) + len(self.done)

    @property
    def are_over(self) -> bool:
        """Whether the caller has all results."""
        return not (self.may_have_next or self.on_their_way)

    def next(self) -> Job | None:
        """The next command to run. One that is no command is done at once."""
        if self._again:
            return self._again.popleft()
        try:
            index, command = next(self._commands)
        except StopIteration:
            self._is_read = True
            return None
        except Exception as error:
            # What was read before comes first: see `raise_unread`.
            self._is_read, self._unread = True, error
            return None
        job = Job(index, command)
        try:
            job.keywords = {**self._keywords, **keywords_of(command)}
        except (TypeError, ValueError) as error:
            job.answer = error
            self.done.append(job)
            return None
        return job

    def result(self, job: Job) -> Result | None:
        """The result of a job that is done, or `None` if it is run again."""
        answer, node = job.answer, job.member.node if job.member else None
        if is_loss(answer):
            if job.starts <= self._retries:
                self._again.append(job)
                return None
            hint = "it may have run: with retries=1 it is run again on another node"
            answer = lost(f"command {job.index}", str(node), hint)
        if isinstance(answer, Exception):
            return Result(job.index, job.command, error=answer, node=node, starts=job.starts)
        return Result(job.index, job.command, answer, node=node, starts=job.starts)

    def raise_unread(self) -> None:
        """Raises what the iterator of commands raised."""
        if self._unread is not None:
            raise self._unread


def keywords_of(command: Command) -> dict[str, Any]:
    """A command as keywords of `run`.

    >>> keywords_of(["true"]), keywords_of({"args": "exit 3", "shell": True})
    ({'args': ['true']}, {'args': 'exit 3', 'shell': True})
    >>> keywords_of({"argv": ["true"]})
    Traceback (most recent call last):
    TypeError: a command has no 'argv'
    """
    if isinstance(command, (str, bytes, os.PathLike)):
        return {"args": command}
    if not isinstance(command, Mapping):
        return {"args": list(command)}
    for name in command.keys() - KEYWORDS - {"args"}:
        raise TypeError(f"a command has no {name!r}")
    if "args" not in command:
        raise TypeError("a command needs 'args'")
    return dict(command)


def is_loss(answer: Any) -> bool:
    """Whether an answer says that the actor is gone, or out of reach."""
    return isinstance(answer, RayError) and not isinstance(answer, (RayTaskError, TaskCancelledError))
