"""Commands that stay, and shells that keep their state."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kennel import _calls, _wire
from kennel._blocking import now
from kennel._detached import DetachedBase, LogsBase, ShellBase, Stream
from kennel.results import Completed

if TYPE_CHECKING:
    from kennel.session import Session


class Logs(LogsBase, Iterator[tuple[Stream, bytes]]):
    """What a command that stays has written: pairs of the stream and the bytes, in the order in which they arrived."""

    def __init__(self, session: Session, number: int, lines: int | None, follow: bool) -> None:
        now(self._open(session, _wire.logs(number, follow, lines)))

    def __iter__(self) -> Logs:
        return self

    def __next__(self) -> tuple[Stream, bytes]:
        piece = now(self._next())
        if piece is None:
            raise StopIteration
        return piece


class Detached(DetachedBase["Session"]):
    """A command that stays: a server, or a long build. `Session.detach` starts it."""

    def logs(self, lines: int | None = None, follow: bool = False) -> Logs:
        """What it wrote: the last MiB that is kept, or the last `lines` lines. With `follow`, also what it will write.

        >>> import kennel
        >>> with kennel.Session() as s:
        ...     c = s.detach(["seq", "3"])
        ...     b"".join(data for _, data in c.logs(follow=True))
        b'1\\n2\\n3\\n'
        """
        return Logs(self._session, self.id, lines, follow)

    def kill(self, sig: int = signal.SIGTERM) -> None:
        """Sends a signal. It is no error if the command has ended."""
        now(self._kill(sig))

    def wait(self, timeout: float | None = None) -> Completed[bytes]:
        """Waits for its end. After `timeout` seconds it raises `kennel.TimeoutExpired`, and the command goes on."""
        return now(self._wait(timeout))


class Shell(ShellBase["Session"]):
    """A shell that keeps its directory, variables, functions and jobs from one snippet to the next.

    `Session.shell` makes it. Snippets of one shell run one after the other.
    """

    def run(
        self,
        snippet: str | bytes,
        *,
        timeout: float | None = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        check: bool = False,
        truncate: bool = False,
    ) -> Completed[Any]:
        """Runs a snippet. After `timeout` seconds it is interrupted, and the shell keeps its state.

        `directory` of the result is the shell's directory afterwards.
        """
        return now(self._run(snippet, timeout, _calls.encoding_of(text, encoding, errors), check, truncate))

    def close(self) -> None:
        """Ends the shell with its jobs."""
        now(self._close())

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
