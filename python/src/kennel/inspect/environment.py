"""The provider: a session for each sample, and Inspect's contract on top of it.

The contract is the text of `inspect_ai.util.SandboxEnvironment`. Errors that a model may see are of the classes that it
names: Inspect ends the sample for any other.
"""

# The signatures are those of the contract.
# ruff: noqa: A002, ASYNC109, PLR0917

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import pwd
import shlex
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Literal, overload

import anyio
import anyio.to_thread
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util import (
    ComposeConfig,
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    is_compose_yaml,
    is_dockerfile,
    sandboxenv,
)
from inspect_ai.util import (
    concurrency as throttle,
)

import kennel
from kennel import images

from .compose import ComposeError, Service, service_of, variables_in, variables_of
from .workspace import Workspace, remove_stray

_max_subprocesses: ContextVar[int] | None
try:
    from inspect_ai.util._subprocess import max_subprocesses_context_var as _max_subprocesses
except ImportError:  # Inspect may move it: then nothing is throttled.
    _max_subprocesses = None

_LONGEST_REASON = 2000


@sandboxenv(name="kennel")
class KennelSandboxEnvironment(SandboxEnvironment):
    """A session of Kennel on a workspace of its own."""

    def __init__(
        self,
        session: kennel.AsyncSession,
        workspace: Workspace,
        directory: str | None = None,
        users: frozenset[str] | None = None,
    ) -> None:
        super().__init__()
        self.session = session
        self.workspace = workspace
        self.directory = directory or str(workspace.path)
        """Where commands start and relative paths begin."""
        self.users = users
        """The names of the user that commands are in an image; `None`: they are the user of the eval."""

    @classmethod
    def default_concurrency(cls) -> int | None:
        """No limit: a sandbox in which nothing runs takes no time, and little memory."""
        return None

    @classmethod
    def is_docker_compatible(cls) -> bool:
        """`--sandbox kennel` takes the compose file of a task that was written for docker."""
        return True

    @classmethod
    async def task_init_environment(
        cls, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, str]:
        """The metadata of a sample that its compose file uses: then the sample has an image of its own."""
        return variables_in(config, metadata) if is_compose_yaml(config) else {}

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Starts a session once, so that a policy or a host that cannot work is told before the first sample."""
        try:
            environment = await cls._start(config)
        except (kennel.Error, ComposeError) as error:
            raise PrerequisiteError(str(error)) from error
        await environment._end()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """One environment, `default`, in a fresh workspace."""
        return {"default": await cls._start(config, metadata)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Ends the session with all that runs in it, and removes the workspace."""
        for environment in environments.values():
            await environment.as_type(KennelSandboxEnvironment)._end()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Removes workspaces that dead evals left. Their sessions ended with them."""
        for removed in remove_stray(id):
            print(f"removed {removed}")  # noqa: T201

    @classmethod
    async def _start(
        cls, config: SandboxEnvironmentConfigType | None, metadata: Mapping[str, str] | None = None
    ) -> KennelSandboxEnvironment:
        if is_dockerfile(config):
            raise PrerequisiteError(f"{config}: no image is built here: build it before, and name it in a compose file")
        service, policy = None, None
        if isinstance(config, ComposeConfig) or is_compose_yaml(config):
            service = await anyio.to_thread.run_sync(service_of, config, variables_of(metadata or {}))
        elif config is None or isinstance(config, str):
            policy = config
        else:
            raise PrerequisiteError("a policy file or a compose file configures the sandbox kennel")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise PrerequisiteError("the sandbox kennel needs asyncio: unset INSPECT_ASYNC_BACKEND") from None
        workspace = Workspace()
        try:
            if service is not None:
                return await cls._of_service(service, workspace)
            session = kennel.AsyncSession(workspace.path, policy=policy, name=workspace.name, isolation="session")
            return cls(await session.start(), workspace)
        except BaseException:
            workspace.remove()
            raise

    @classmethod
    async def _of_service(cls, service: Service, workspace: Workspace) -> KennelSandboxEnvironment:
        """A session in an image, with the command of the service in the background."""
        image = await anyio.to_thread.run_sync(_image, service.image)
        config = image["config"].get("config") or {}
        directory = posixpath.join("/", service.directory or config.get("WorkingDir") or "")
        user = (service.user or config.get("User") or "root").partition(":")[0] or "root"
        session = kennel.AsyncSession(policy=service.policy, name=workspace.name, isolation="session")
        await session.start()
        try:
            await session.mkdir(directory, parents=True, exist_ok=True)
            argv = service.argv(config)
            if argv:
                await session.detach(argv, cwd=directory)
        except BaseException:
            await session.close()
            raise
        # Root is known by both.
        names = {"root", "0"} if user in ("root", "0") else {user}
        return cls(session, workspace, directory, frozenset(names))

    async def _end(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self.session.close()
            finally:
                await anyio.to_thread.run_sync(self.workspace.remove)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command. A timeout is the command's own here, so `timeout_retry` changes nothing."""
        self._only_its_user(user)
        slot = (
            throttle("subprocesses", _max_subprocesses.get(), resizable=True)
            if concurrency and _max_subprocesses is not None
            else contextlib.nullcontext()
        )
        async with slot:
            try:
                done = await self.session.run(
                    cmd,
                    input=input.encode() if isinstance(input, str) else input,
                    cwd=self.directory if cwd is None else self._path(cwd),
                    env=env,
                    timeout=timeout,
                    truncate=True,
                )
            except kennel.TimeoutExpired as expired:
                raise _timed_out(expired, timeout) from expired
            except kennel.DirectoryError:
                raise
            except kennel.StartError as failed:
                if isinstance(failed, PermissionError) and failed.message.endswith(os.strerror(errno.EACCES)):
                    raise
                code = 127 if isinstance(failed, kennel.ProgramNotFoundError) else 126
                # It may repeat a name of any length.
                return ExecResult(False, code, "", f"{str(failed)[-_LONGEST_REASON:]}\n")
            except kennel.SessionError as gone:
                raise SandboxUnavailableError(str(gone)) from gone
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return ExecResult(code == 0, code, *self._within_limit(done))

    def _within_limit(self, done: kennel.Completed[bytes]) -> tuple[str, str]:
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        is_beyond = max(len(done.stdout), len(done.stderr)) > limit
        if is_beyond or done.outcome.truncated:
            raise OutputLimitExceededError(
                limit_str=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR if is_beyond else "its session",
                truncated_output=_text(done.stdout[:limit]) + _text(done.stderr[:limit]),
            )
        return _text(done.stdout), _text(done.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file as a whole: whoever reads it meanwhile sees the old one or the new one."""
        path = self._path(file)
        data = contents.encode() if isinstance(contents, str) else contents
        with _errors_of(file):
            try:
                found = await self.session.stat(path)
            except FileNotFoundError:
                await self.session.mkdir(posixpath.dirname(path), parents=True, exist_ok=True)
            else:
                # The session replaces a file, for which a right to its directory is enough.
                if found.is_file and not found.mode & 0o222:
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
            await self.session.write(path, data)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file as a whole."""
        path = self._path(file)
        with _errors_of(file):
            if (await self.session.stat(path)).size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
            data: bytes = await self.session.read(path)
            if len(data) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:  # it has grown
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """The command that opens a shell in the sandbox, for a person."""
        self._only_its_user(user)
        try:
            await self.session.stats()
        except kennel.SessionError as gone:
            raise ConnectionError(str(gone)) from gone
        return SandboxConnection(
            type="kennel", command=shlex.join(["kennel", "exec", "-t", self.session.name, "--", "bash"])
        )

    def default_polling_interval(self) -> float:
        """As for the local provider: a look costs little."""
        return 0.2

    def _path(self, path: str) -> str:
        if "\0" in path:
            raise ValueError("embedded null byte")  # as of Python's own calls: Inspect tells the model
        return posixpath.join(self.directory, path)

    def _only_its_user(self, user: str | None) -> None:
        if self.users is None:
            _only_the_caller(user)
        elif user is not None and user not in self.users:
            names = " or ".join(sorted(self.users))
            raise SandboxUserUnsupportedError(f"cannot run as {user!r}: commands of this sandbox run as {names}")


def _image(name: str) -> dict[str, Any]:
    """What is known of an image, which is pulled if the store does not have it."""
    try:
        return images.inspect(name)
    except kennel.ImageError:
        images.pull(name)
        return images.inspect(name)


def _only_the_caller(user: str | None) -> None:
    if user is None or user == str(os.geteuid()):
        return
    try:
        if pwd.getpwnam(user).pw_uid == os.geteuid():
            return
    except KeyError:
        pass
    raise SandboxUserUnsupportedError(
        f"cannot run as {user!r}: commands of a kennel sandbox run as the user of the eval, uid {os.geteuid()}"
    )


def _timed_out(expired: kennel.TimeoutExpired, timeout: int | None) -> TimeoutError:
    error = TimeoutError(f"Command timed out after {expired.timeout if timeout is None else timeout} seconds")
    partial = _text(expired.stdout or b"") + _text(expired.stderr or b"")
    if partial:
        error.truncated_output = partial  # type: ignore[attr-defined]  # Inspect's name: it shows this to the model
    return error


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# Which of the contract's errors stands for an errno that it does not name.
_KINDS: dict[int, type[OSError]] = {
    errno.ENOENT: FileNotFoundError,
    errno.ENOTDIR: FileNotFoundError,
    errno.ELOOP: FileNotFoundError,
    errno.ENAMETOOLONG: FileNotFoundError,
    errno.EISDIR: IsADirectoryError,
    errno.EACCES: PermissionError,
    errno.EPERM: PermissionError,
    errno.EROFS: PermissionError,
    errno.EOPNOTSUPP: PermissionError,
}


@contextlib.contextmanager
def _errors_of(file: str) -> Iterator[None]:
    """Gives an error of a file the class of the contract, and the path as the eval wrote it."""
    try:
        yield
    except kennel.SessionError as gone:
        raise SandboxUnavailableError(str(gone)) from gone
    except OSError as error:
        kind = _KINDS.get(error.errno or 0)
        if kind is None:
            raise
        raise kind(error.errno, os.strerror(error.errno or 0), file) from error
