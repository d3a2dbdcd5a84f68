"""SWE-ReX: a deployment and its runtime on a session, for SWE-agent and what else speaks SWE-ReX.

A SWE-ReX *session* is a shell of the Kennel session (`session.shell`): its state lasts, and no prompt has to be found in its
output. Interactive programs are refused: these shells have no terminal.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    Action,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    Command,
    CommandResponse,
    CreateBashSessionResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    IsAliveResponse,
    Observation,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)

import kennel


class KennelRuntime(AbstractRuntime):
    """Commands, shells and files of one session."""

    def __init__(self, session: kennel.AsyncSession, logger: logging.Logger | None = None) -> None:
        self.logger = logger or logging.getLogger("kennel.swerex")
        self._session = session
        self._shells: set[str] = set()

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the session runs commands."""
        try:
            await self._session.run(["true"], timeout=timeout)
        except (kennel.Error, kennel.TimeoutExpired) as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=True)

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        """Starts a shell."""
        if request.session in self._shells:
            raise SessionExistsError(f"session {request.session!r} already exists")
        self._shells.add(request.session)
        output = ""
        for path in request.startup_source:
            sourced = await self._shell(request.session, f". {path}", request.startup_timeout)
            output += sourced.output
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: Action) -> Observation:
        """Runs a snippet in a shell, with stdout and then stderr as its output."""
        if action.session not in self._shells:
            raise SessionDoesNotExistError(f"session {action.session!r} does not exist")
        if isinstance(action, BashInterruptAction):
            raise NotImplementedError(
                "nothing to interrupt: a snippet that takes too long is interrupted by its own timeout"
            )
        if action.is_interactive_command or action.is_interactive_quit or action.expect:
            raise NotImplementedError(
                "interactive programs need a terminal, which the shells of a kennel session do not have"
            )
        done = await self._shell(action.session, action.command, action.timeout)
        if action.check == "raise" and done.exit_code:
            raise NonZeroExitCodeError(_failed(action.error_msg, action.command, done.exit_code, done.output))
        if action.check == "ignore":
            done.exit_code = None
        return done

    async def _shell(self, name: str, snippet: str, timeout: float | None) -> BashObservation:
        try:
            done = await self._session.shell(name).run(snippet, timeout=timeout, truncate=True)
        except kennel.TimeoutExpired as expired:
            raise CommandTimeoutError(f"timeout after {expired.timeout} seconds while running {snippet!r}") from expired
        return BashObservation(output=_text(done.stdout) + _text(done.stderr), exit_code=done.returncode)

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        """Ends a shell with its jobs."""
        if request.session not in self._shells:
            raise SessionDoesNotExistError(f"session {request.session!r} does not exist")
        self._shells.remove(request.session)
        await self._session.shell(request.session).close()
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        """Runs a command by itself. Without `shell`, a string is the name of a program, as for `subprocess.run`."""
        words = [command.command] if isinstance(command.command, str) else command.command
        words = ["/bin/sh", "-c", *words] if command.shell else words
        if command.merge_output_streams:
            words = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *words]
        try:
            done = await self._session.run(words, timeout=command.timeout, env=command.env, cwd=command.cwd, truncate=True)
        except kennel.TimeoutExpired as expired:
            raise CommandTimeoutError(
                f"timeout after {expired.timeout} seconds while running {command.command!r}"
            ) from expired
        stdout, stderr = _text(done.stdout), _text(done.stderr)
        if command.check and done.returncode:
            raise NonZeroExitCodeError(_failed(command.error_msg, command.command, done.returncode, stdout + stderr))
        return CommandResponse(stdout=stdout, stderr=stderr, exit_code=done.returncode)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """Reads a file of the sandbox."""
        data = await self._session.read(request.path)
        return ReadFileResponse(content=data.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Writes a file of the sandbox, and makes its directory."""
        await self._session.mkdir(Path(request.path).parent, parents=True, exist_ok=True)
        await self._session.write(request.path, request.content.encode())
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copies a file or a directory of the host into the sandbox, with permissions. Links in a directory are left out."""
        target = Path(request.target_path)
        for source, below in await asyncio.to_thread(_files, Path(request.source_path)):
            await self._session.mkdir((target / below).parent, parents=True, exist_ok=True)
            await self._session.copy_in(source, target / below)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """Ends the session."""
        await self._session.close()
        return CloseResponse()


class KennelDeployment(AbstractDeployment):
    """Starts a session for a runtime. It takes what `kennel.AsyncSession` takes.

    >>> deployment = KennelDeployment(workspace="/srv/repo", allow=["pypi.org:443"])
    """

    def __init__(self, *, logger: logging.Logger | None = None, **policy: Any) -> None:
        self.logger = logger or logging.getLogger("kennel.swerex")
        self._policy = policy
        self._runtime: KennelRuntime | None = None
        self._hooks = CombinedDeploymentHook()

    def add_hook(self, hook: DeploymentHook) -> None:
        """Tells `hook` about the steps of the start."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the runtime was started and runs commands."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="not started")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Starts the session."""
        self._hooks.on_custom_step("Starting the session")
        self._runtime = KennelRuntime(await kennel.AsyncSession(**self._policy).start(), self.logger)

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """Ends the session with all that runs in it."""
        if self._runtime is not None:
            await self._runtime.close()
            self._runtime = None

    @property
    def runtime(self) -> KennelRuntime:
        """The runtime, once it was started."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime


def _files(source: Path) -> list[tuple[Path, Path]]:
    """The files at and below a path of the host, each with its path from there."""
    found = sorted(source.rglob("*")) if source.is_dir() else [source]
    return [
        (each, each.relative_to(source)) for each in found if each.is_file() and not (each != source and each.is_symlink())
    ]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _failed(message: str, command: str | list[str], code: int, output: str) -> str:
    failed = f"command {command!r} failed with exit code {code}. Here is the output:\n{output!r}"
    return f"{message}: {failed}" if message else failed
