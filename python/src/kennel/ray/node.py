"""The actor of a node: it runs commands in sessions of its node. It chooses no node, and runs no command twice."""

from __future__ import annotations

import asyncio
import builtins
import fcntl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from kennel._launch import check_directory, runtime_directory
from kennel.aio import AsyncSession
from kennel.errors import SessionClosed
from kennel.policy import Mount, Overlay, Policy
from kennel.pool import AsyncPool
from kennel.results import Completed

DIRECTORY = "/work"
"""Where commands start if the policy names no workspace: an empty directory in memory."""


class Node:
    """Runs at most `per_node` commands at once. What a call raises is its answer: Ray would wrap it."""

    def __init__(self, policy: Policy, per_node: int, fresh: bool) -> None:
        self._policy = with_directory(policy)
        self._slots = asyncio.Semaphore(per_node)
        self._commands: AsyncPool | Kept = AsyncPool(per_node, policy=self._policy) if fresh else Kept(self._policy)
        self._sessions: dict[str, AsyncSession] = {}

    async def start(self) -> None:
        """Prepares sessions. The node takes commands afterwards."""
        remove_stray(runtime_directory())
        await self._commands.__aenter__()

    async def run(self, keywords: dict[str, Any]) -> Completed[Any] | Exception:
        """Runs one command. If the call is cancelled, the command is killed."""
        try:
            async with self._slots, self._commands.checkout() as session:
                return await session.run(**keywords)
        except Exception as error:
            return error

    async def open(self, idle: float | None) -> str | Exception:
        """Starts a session for one client: its name."""
        try:
            session = await AsyncSession(policy=self._policy, idle=idle).start()
        except Exception as error:
            return error
        self._sessions[session.name] = session
        return session.name

    async def call(self, name: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Calls a method of a client's session. Commands share the node with those of `run`."""
        try:
            session = self._sessions.get(name)
            if session is None:
                raise SessionClosed(f"session {name} is closed")
            if method != "run":
                return await getattr(session, method)(*arguments, **keywords)
            async with self._slots:
                return await session.run(*arguments, **keywords)
        except Exception as error:
            return error

    async def end(self, name: str) -> None:
        """Ends a client's session. To end it again has no effect."""
        session = self._sessions.pop(name, None)
        if session is not None:
            await session.close()

    async def close(self) -> None:
        """Ends all sessions of the node."""
        await asyncio.gather(self._commands.close(), *map(self.end, builtins.list(self._sessions)))


class Kept:
    """One session for all commands, with the calls of a pool. If it ends, the next command gets another one."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._starting = asyncio.Lock()
        self._session: AsyncSession | None = None

    async def __aenter__(self) -> Kept:
        return self

    def checkout(self) -> AbstractAsyncContextManager[AsyncSession]:
        """The session, which stays."""
        return self._checkout()

    @asynccontextmanager
    async def _checkout(self) -> AsyncIterator[AsyncSession]:
        async with self._starting:
            if self._session is None:
                self._session = await AsyncSession(policy=self._policy).start()
            session = self._session
        try:
            yield session
        except SessionClosed:
            if self._session is session:
                self._session = None
                await session.close()
            raise

    async def close(self) -> None:
        """Ends the session."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def with_directory(policy: Policy) -> Policy:
    """The policy with an empty directory in memory, unless it names what commands work on.

    Otherwise that would be the directory of Ray's own worker.

    >>> with_directory(Policy(workspace="/srv")).to_dict()
    {'workspace': '/srv'}
    """
    if policy.workspace is not None or policy.image is not None or policy.root is not None:
        return policy
    keys = policy.to_dict()
    above = runtime_directory()
    above.mkdir(mode=0o700, exist_ok=True)
    check_directory(above)
    empty = above / "empty"
    empty.mkdir(mode=0o700, exist_ok=True)
    mounts = [*policy.mounts, Mount.tmpfs(DIRECTORY)]
    # The empty directory is one for all sessions: what a command writes there stays in its session's memory.
    overlay = policy.overlay or (None if policy.profile == "read-only" else Overlay())
    return Policy.of(keys, workspace=empty, mounts=mounts, cwd=policy.cwd or DIRECTORY, overlay=overlay)


def remove_stray(directory: Path) -> None:
    """Removes the sockets of sessions that were killed: when a worker of Ray dies, Ray kills what the worker has started.

    Nobody holds the lock of such a session, and the process that its name has is gone.
    """
    for lock in directory.glob("py-*-*.lock"):
        if Path("/proc", lock.name.split("-")[1]).exists():
            continue
        with suppress(OSError), open(lock, "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.with_suffix(".sock").unlink(missing_ok=True)
            lock.unlink()
