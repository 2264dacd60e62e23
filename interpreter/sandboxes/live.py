"""One sandbox at work: its start, its link, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from signal import SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM

from sandboxd.protocol import Hello, Reason

from interpreter.backends.base import Sandbox, SandboxExit, Stats
from interpreter.link.connection import Connection, Pending
from interpreter.link.errors import LinkClosed
from interpreter.sandboxes.table import Row

_KILLED = frozenset(128 + number for number in (SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM))
"""Statuses of a sandbox that somebody ended by a signal, to its first process or to sandboxd: the tenant, or the host. What
else it ends with is a crash: an error of sandboxd, or a signal that a fault raises."""


class SandboxStopped(Exception):
    """The sandbox was stopped before it was ready: whoever waited for it may have a fresh one."""


class Live:
    """One sandbox. Its manager alone changes it.

    started: done once it works, or with what kept it from working. over: it is of no more use, for ``reason``.
    gone: nothing of it is left. released: it goes on without this service. expected: of a sandbox that is being taken over,
    the ids under which it was sent what has not ended, with the text limit of each. resumed: those that it knew, once it works.
    """

    def __init__(self, row: Row, expected: Mapping[str, int] | None = None) -> None:
        self.row = row
        self.expected = expected
        self.resumed: dict[str, Pending] = {}
        self.released = False
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self.gone = asyncio.Event()
        self.reason: Reason | None = None
        self.sandbox: Sandbox | None = None
        self.exit: SandboxExit | None = None
        """How it ended, if it did before it worked."""
        self.hello: Hello | None = None
        self.started_at = datetime.now(UTC)
        self._connection: Connection | None = None
        self._oom_kills = 0

    @property
    def connection(self) -> Connection:
        """The link. Raises LinkClosed before there is one."""
        if self._connection is None:
            raise LinkClosed("there is no link yet")
        return self._connection

    @property
    def usable(self) -> bool:
        """Whether it can take work now, as far as is known."""
        return self._connection is not None and not (self._connection.ended.is_set() or self.over.is_set())

    @property
    def adopting(self) -> bool:
        """Whether it is of an earlier service, and it is not known yet if it works."""
        return self.expected is not None and not (self.started.done() or self.over.is_set())

    def connected(self, connection: Connection, hello: Hello) -> None:
        """Take the link, once."""
        self._connection, self.hello = connection, hello

    def end(self, reason: Reason) -> None:
        """Say that it is of no more use; everything that waits on its link learns so at once. First reason wins."""
        if self.reason is not None:
            return
        self.reason = reason
        if self._connection is not None:
            self._connection.close()
        self.over.set()
        if not self.started.done():
            self.started.set_exception(SandboxStopped())
            self.started.exception()

    def stats(self) -> Stats | None:
        """Return the counters of the host; None before it was started."""
        return None if self.sandbox is None else self.sandbox.stats()

    def oom_mark(self) -> int:
        """Return a mark of now for ``oom_since``."""
        self._oom_kills = max(self._oom_kills, 0 if self.sandbox is None else self.sandbox.oom_kills())
        return self._oom_kills

    def oom_since(self, mark: int) -> bool:
        """Whether its memory limit has killed something after ``mark``."""
        return self.oom_mark() > mark

    def oom_news(self) -> bool:
        """Whether its memory limit has killed something since anybody last looked."""
        return self.oom_since(self._oom_kills)

    def why(self, end: SandboxExit | None) -> Reason:
        """Return why it ended by itself, as the host tells it."""
        if (end is not None and end.oom) or self.oom_news():
            return "oom"
        # No status: its supervisor was killed before it could say one.
        return "killed" if end is not None and (end.status is None or end.status in _KILLED) else "crash"
