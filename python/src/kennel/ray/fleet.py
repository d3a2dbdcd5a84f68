"""The nodes of a cluster that run commands, and what is sent to them. Ray places the actors and says when one is gone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kennel._session import PolicyLike
from kennel.errors import SessionClosed, SessionError
from kennel.policy import Policy
from kennel.ray.jobs import Command, Job, Jobs, Result, is_loss
from kennel.ray.node import Node
from kennel.ray.session import Session, answer_of

T = TypeVar("T")

_ASK_SECONDS = 1.0
"""How often the cluster is asked for its nodes."""
_AGAIN_SECONDS = 10.0
"""After how long a node is tried again whose actor could not start."""
_CLOSE_SECONDS = 10.0
"""How long the nodes may take to end their sessions. Whatever is left then ends with their actors."""
_CALLS = 1 << 14
"""Calls that an actor answers side by side. `per_node` bounds the commands among them."""


@dataclass(eq=False)
class Member:
    """A node with its actor. It takes commands once `ready` has a result."""

    node: str
    actor: Any
    ready: Future[None]
    most: int
    """How many commands it may have: as many wait there as run, so that none of these waits for the network."""
    commands: int = 0
    sessions: int = 0
    is_lost: bool = False

    def takes(self) -> bool:
        """Whether it takes commands and sessions."""
        return not self.is_lost and self.ready.done() and self.ready.exception() is None

    def has_failed(self) -> bool:
        """Whether its actor could not start, or is gone."""
        return self.is_lost or (self.ready.done() and self.ready.exception() is not None)


class Fleet:
    """The nodes of a Ray cluster, to run commands on. Every method may be called from any thread.

    Each node has one actor, which runs commands in sessions of its node. A node that joins the cluster gets one within two
    seconds. The fleet ends with `close`, with the `with` block, and with this program.
    """

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        per_node: int | None = None,
        fresh: bool = True,
        num_cpus: float | None = None,
        labels: Mapping[str, str] | None = None,
        start_timeout: float = 60.0,
        **keywords: Any,
    ) -> None:
        """`policy` and `keywords` are those of `kennel.Session`; their paths are paths of the nodes.

        A node runs `per_node` commands at once, by default one for each of its processors. With `fresh` each command of
        `map` has a session of its own, which the node has prepared; otherwise those of a node share one. `num_cpus` is
        what the actor reserves of its node; by default nothing, on nodes with at least one processor. `labels` are labels
        of Ray that a node must have. Calls fail if no node takes commands for `start_timeout` seconds.

        If the program has not called `ray.init`, this does.
        """
        if per_node is not None and per_node < 1:
            raise ValueError("per_node must be at least 1")
        self._policy = Policy.of(policy, **keywords)
        self._per_node = per_node
        self._fresh = fresh
        self._num_cpus = num_cpus
        self._labels = dict(labels or {})
        self._start_timeout = start_timeout
        self._members: dict[str, Member] = {}
        self._failures: dict[str, tuple[float, BaseException]] = {}
        # Guards what is above, and wakes those who wait for a node or a result. Ray's callbacks take it, so whoever has it
        # calls nothing of Ray: Ray would wait for its callbacks.
        self._changed = threading.Condition()
        self._following = threading.Lock()
        self._asked = 0.0
        self._is_closed = False
        if not ray.is_initialized():
            ray.init()
        self._follow()

    def map(self, commands: Iterable[Command], *, retries: int = 0, **keywords: Any) -> Generator[Result, None, None]:
        """Runs commands on the nodes, and yields their results as they come, each with the number of its command.

        A command is an argv, or a mapping with `args` and other keywords of `kennel.Session.run`. `keywords` are for those
        commands which do not have them: `timeout=60`, `text=True`. `commands` is read only as far as there is room: a node
        has at most twice `per_node` of them, and results that nobody has taken count, too.

        What goes wrong with one command is the `error` of its result. If its node is lost, that is `kennel.SessionLost`,
        and the command may have run. With `retries` it is run again, on another node if there is one, at most so many
        times. Only the caller knows whether it may run twice.

        If the generator is closed, the commands that run are killed.
        """
        return self._map(Jobs(commands, retries, keywords))

    def session(self, *, idle: float | None = None) -> Session:
        """Starts a session on the node that has the fewest. It ends when nobody has used it for `idle` seconds."""
        member = self._wait(self._for_session)
        self._count_session(member, 1)
        try:
            name = answer_of(member.actor.open.remote(idle), "a session that starts", member.node)
        except BaseException:
            self._count_session(member, -1)
            raise
        session = Session(member.actor, member.node, name)
        session.ends_with_object(lambda: self._count_session(member, -1))
        return session

    @property
    def nodes(self) -> list[str]:
        """The ids that Ray has given to the nodes which take commands now."""
        self._follow()
        with self._changed:
            return [member.node for member in self._members.values() if member.takes()]

    def close(self) -> None:
        """Kills what runs, and ends all sessions on all nodes. To close it again has no effect."""
        with self._changed:
            members, self._members = list(self._members.values()), {}
            self._is_closed = True
            self._changed.notify_all()
        ends = [member.actor.close.remote() for member in members if member.takes()]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=_CLOSE_SECONDS)
        for member in members:
            ray.kill(member.actor)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Nodes.

    def _follow(self) -> None:
        """Gives new nodes of the cluster their actors, and forgets those that are gone: once a second."""
        if self._is_closed:
            raise SessionClosed("the fleet is closed")
        if time.monotonic() < self._asked + _ASK_SECONDS or not self._following.acquire(blocking=False):
            return
        try:
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
            found = {node["NodeID"]: node for node in nodes if node["Alive"] and self._is_chosen(node)}
            with self._changed:
                members = dict(self._members)
                failed = {name for name, (until, _) in self._failures.items() if time.monotonic() < until}
            for name, member in members.items():
                if member.has_failed() or name not in found:
                    self._drop(member)
            for name in found.keys() - members.keys() - failed:
                self._join(name, found[name])
            self._asked = time.monotonic()
        finally:
            self._following.release()

    def _is_chosen(self, node: Mapping[str, Any]) -> bool:
        needs = 1 if self._num_cpus is None else self._num_cpus
        has_labels = self._labels.items() <= node.get("Labels", {}).items()
        return bool(has_labels and node["Resources"].get("CPU", 0) >= needs)

    def _join(self, name: str, node: Mapping[str, Any]) -> None:
        """Starts an actor on a node."""
        per_node = self._per_node or max(1, int(node["Resources"].get("CPU", 0)))
        options = {} if self._num_cpus is None else {"num_cpus": self._num_cpus}
        # If the node is gone meanwhile, the actor fails and does not wait.
        here = NodeAffinitySchedulingStrategy(name, soft=False)
        kind: Any = ray.remote(Node)
        kind = kind.options(scheduling_strategy=here, max_concurrency=_CALLS, **options)
        actor = kind.remote(self._policy, per_node, self._fresh)
        member = Member(name, actor, actor.start.remote().future(), most=2 * per_node)
        with self._changed:
            is_late = self._is_closed
            if not is_late:
                self._members[name] = member
        if is_late:
            ray.kill(actor)
        else:
            member.ready.add_done_callback(lambda _: self._notify())

    def _drop(self, member: Member) -> None:
        """Sends nothing more to an actor. Its node gets another one if it is there."""
        with self._changed:
            if self._members.get(member.node) is not member:
                return
            del self._members[member.node]
            member.is_lost = True
            if member.ready.done() and (error := member.ready.exception()):
                self._failures[member.node] = time.monotonic() + _AGAIN_SECONDS, error
        # If it is only cut off, its commands end before they run again elsewhere.
        ray.kill(member.actor)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, wanted: Callable[[], T | None]) -> T:
        """Waits until there is what is wanted. Fails if no node takes commands for too long."""
        until = time.monotonic() + self._start_timeout
        while True:
            self._follow()
            with self._changed:
                found = wanted() or (self._changed.wait(_ASK_SECONDS) and wanted()) or None
                if found is not None:
                    return found
                if any(member.takes() for member in self._members.values()):
                    until = time.monotonic() + self._start_timeout
            if time.monotonic() > until:
                raise self._nobody()

    def _nobody(self) -> SessionError:
        reasons = [f"node {name}: {error}" for name, (_, error) in self._failures.items()]
        message = "; ".join([f"no node of the cluster takes commands for {self._start_timeout:g} s", *reasons])
        return SessionError(message, hint="a node needs this package, a free processor, and the labels that were asked for")

    def _for_session(self) -> Member | None:
        found = [member for member in self._members.values() if member.takes()]
        return min(found, key=lambda member: (member.sessions, member.commands), default=None)

    def _count_session(self, member: Member, more: int) -> None:
        with self._changed:
            member.sessions += more

    # Commands.

    def _map(self, jobs: Jobs) -> Generator[Result, None, None]:
        owner = os.getpid()
        try:
            while True:
                while jobs.may_have_next and (member := self._free(jobs)) is not None:
                    job = jobs.next()
                    if job is not None:
                        self._send(job, member, jobs)
                if jobs.are_over:
                    break
                self._wait(lambda: bool(jobs.done) or (jobs.may_have_next and self._free(jobs) is not None) or None)
                if jobs.done:
                    job = jobs.done.popleft()
                    if is_loss(job.answer):
                        self._drop(job.member)
                    result = jobs.result(job)
                    if result is not None:
                        yield result
            jobs.raise_unread()
        finally:
            if owner == os.getpid():
                for job in list(jobs.running):
                    ray.cancel(job.call)

    def _free(self, jobs: Jobs) -> Member | None:
        """The node with the most room, if these jobs may have one more on its way."""
        with self._changed:
            found = [member for member in self._members.values() if member.takes()]
            if jobs.on_their_way >= sum(member.most for member in found):
                return None
            best = min(found, key=lambda member: member.commands - member.most, default=None)
            return best if best is not None and best.commands < best.most else None

    def _send(self, job: Job, member: Member, jobs: Jobs) -> None:
        try:
            job.call = member.actor.run.remote(job.keywords)
        except (TypeError, ValueError) as error:
            # It has what cannot be sent, such as a lock.
            job.answer = error
            jobs.done.append(job)
            return
        with self._changed:
            job.member, job.starts = member, job.starts + 1
            member.commands += 1
            jobs.running.add(job)
        job.call.future().add_done_callback(lambda future: self._ended(job, member, jobs, future))

    def _ended(self, job: Job, member: Member, jobs: Jobs, future: Future[Any]) -> None:
        error = future.exception()
        with self._changed:
            job.answer = future.result() if error is None else error
            member.commands -= 1
            member.is_lost = member.is_lost or is_loss(job.answer)
            jobs.running.discard(job)
            jobs.done.append(job)
            self._changed.notify_all()
