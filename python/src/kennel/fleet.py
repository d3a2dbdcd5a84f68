"""Jobs for a fleet of workers, through NATS JetStream: `kennel.Fleet`. It needs the extra `nats`."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from kennel import _calls, _connect, _remote, _remote_command
from kennel._queue import Found, Job, Jobs, is_id, new_id
from kennel._wire import Argument
from kennel.errors import Error, JobCancelled, JobDead, JobTimeout, SessionClosed
from kennel.results import Completed

JobLike = Sequence[Argument] | Mapping[str, Any]
"""A job: the words of a command, or a body of `/v1/run`, perhaps with an `id`."""


@dataclass(frozen=True)
class JobResult:
    """What became of a job of `Fleet.map`."""

    index: int
    """Its place among the jobs of the call."""
    id: str
    deliveries: int
    """How often it was given to a worker. From 2 on, its command may have run more than once; this is its one result."""
    worker: str | None
    """The name of the worker that has told the result."""
    error: Error | None
    """`JobDead`, `JobCancelled`, `JobTimeout`, the error of a program that could not start, or of a result that nobody can
    read."""
    _completed: Completed[Any] | None = None

    @property
    def completed(self) -> Completed[Any]:
        """What `Session.run` would have returned. Raises `error`, if there is one."""
        if self.error is not None:
            raise self.error
        assert self._completed is not None
        return self._completed


class Fleet:
    """Workers that take jobs from a queue of NATS: `kennel serve --nats`.

    A job is a command in a sandbox of its own. Whatever dies meanwhile, it has one result. Every method may be called from
    any thread.

    >>> with Fleet("nats://127.0.0.1:4222") as fleet:  # doctest: +SKIP
    ...     for result in fleet.map([["echo", "a"], ["echo", "b"]], text=True):
    ...         print(result.index, result.completed.stdout)
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "kennel",
        credentials: str | os.PathLike[str] | None = None,
        token: str | None = None,
        connect_timeout: float = 10.0,
        **options: Any,
    ) -> None:
        """Connects to NATS.

        `url` may have several servers, with commas between them. `prefix` is that of the workers. `credentials` names a file
        of NATS, `token` is one of the NATS server, and `options` are those of `nats.connect`, such as `tls`.

        Raises `kennel.SessionError` if NATS cannot be reached, or no worker has ever used it.
        """
        keys: dict[str, Any] = {"servers": [server.strip() for server in url.split(",")], **options}
        if credentials is not None:
            keys["user_credentials"] = os.fspath(credentials)
        if token is not None:
            keys["token"] = token
        self._jobs = Jobs(prefix, keys, connect_timeout)

    def map(
        self,
        jobs: Iterable[JobLike],
        *,
        timeout: float | None = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        truncate: bool = False,
    ) -> Iterator[JobResult]:
        """Runs jobs, and returns what became of each as soon as it is known, in the order of their ends.

        `timeout` bounds the whole: what has no result then is cancelled, and its error is `JobTimeout`. A job that does not
        say otherwise has 60 seconds once it runs. If the loop is left before its end, all jobs that are left are cancelled:
        those that wait are not run, and those that run are killed. The others are those of `Session.run`.

        Jobs are sent before this returns. A job with an `id` that has a result already is not run again.
        """
        decode = _calls.encoding_of(text, encoding, errors)
        until = None if timeout is None else time.monotonic() + timeout
        made = [_job(index, job) for index, job in enumerate(jobs)]
        if len({job.id for job in made}) < len(made):
            raise ValueError("two jobs have the same id")
        arrived: queue.SimpleQueue[Found] = queue.SimpleQueue()
        self._jobs.send(made, arrived)
        return self._results(made, arrived, until, decode, truncate)

    def _results(
        self,
        jobs: list[Job],
        arrived: queue.SimpleQueue[Found],
        until: float | None,
        decode: tuple[str, str] | None,
        truncate: bool,
    ) -> Iterator[JobResult]:
        left = {job.id: job for job in jobs}
        try:
            while left:
                try:
                    found = arrived.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
                except queue.Empty:
                    break
                if isinstance(found.error, SessionClosed):
                    raise found.error
                if (job := left.pop(found.id, None)) is not None:
                    yield _result(job, found, decode, truncate)
            late, left = left, {}
            self._jobs.cancel(late)
            for job in late.values():
                yield JobResult(job.index, job.id, 0, None, JobTimeout(f"job {job.id}: no result in time; it is cancelled"))
        finally:
            self._jobs.forget(jobs)
            self._jobs.cancel(left)

    def cancel(self, *ids: str) -> None:
        """Cancels jobs by their ids, also those of another program: who waits for them gets `JobCancelled`."""
        self._jobs.cancel(ids)

    def close(self) -> None:
        """Ends the connection. Jobs go on."""
        self._jobs.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _job(index: int, job: JobLike) -> Job:
    """A job as it is sent."""
    if isinstance(job, str | bytes):
        raise TypeError(f"jobs[{index}]: a list of words, or a dictionary, is expected")
    body: dict[str, Any] = dict(job) if isinstance(job, Mapping) else {"argv": list(job)}
    name: Any = body.pop("id", None)
    if name is not None and not is_id(name):
        raise ValueError(f"jobs[{index}]: id: 1 to 128 letters, digits, - and _ are possible")
    if "argv" not in body:
        raise ValueError(f"jobs[{index}]: argv is missing")
    body["argv"] = [_remote.text(word) for word in body["argv"]]
    return Job(index, new_id() if name is None else name, body)


def _result(job: Job, found: Found, decode: tuple[str, str] | None, truncate: bool) -> JobResult:
    line = found.line
    try:
        if found.error is not None:
            raise found.error
        deliveries, worker = _connect.number_of(line, "deliveries"), _connect.text_of(line, "worker")
        outcome = _connect.text_of(line, "outcome")
    except Error as error:
        return JobResult(job.index, job.id, 0, None, error)

    def failed(error: Error) -> JobResult:
        return JobResult(job.index, job.id, deliveries, worker, error)

    if outcome == "cancelled":
        return failed(JobCancelled(f"job {job.id} was cancelled"))
    if outcome != "done":
        why = line.get("error") or "no reason is known"
        return failed(JobDead(f"job {job.id}: {why}", history=line.get("history") or [], status=line.get("status")))
    try:
        # A command whose time was over has a status, and `outcome.ended`.
        done = _remote_command.ran(
            found.answer,
            job.body["argv"],
            encoding=decode,
            timeout=None,
            check=False,
            truncate=truncate,
            cwd=job.body.get("cwd"),
        )
    except Error as error:
        return failed(error)
    return JobResult(job.index, job.id, deliveries, worker, None, done)
