"""One sandbox at work: its start, its link, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from signal import SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM
from typing import Any, TypeVar

from sandboxd.protocol import Hello, Reason

from interpreter.backends.base import Sandbox, SandboxExit, Stats
from interpreter.link.connection import Connection, Pending
from interpreter.link.errors import LinkClosed
from interpreter.sandboxes.table import Row

_T = TypeVar("_T")

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
    spare: of one that was made ahead, what it was known by; giving: the task that gives it to a session.
    """

    def __init__(self, row: Row, expected: Mapping[str, int] | None = None) -> None:
        self.row = row
        self.expected = expected
        self.resumed: dict[str, Pending] = {}
        self.spare = row.key if row.spare else None
        self.giving: asyncio.Task[None] | None = None
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

    def given(self, work: asyncio.Task[None]) -> None:
        """Begin anew, as the sandbox of a session, which it is once ``work`` is done."""
        self.started = asyncio.get_running_loop().create_future()
        self.giving = work

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


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
    """Return what ``work`` returns; SandboxStopped once ``event`` is set, ``work`` being cancelled and waited for."""
    loop = asyncio.get_running_loop()
    task, stop = loop.create_task(work, name="work"), loop.create_task(event.wait(), name="stop")
    try:
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise SandboxStopped
        return task.result()
    finally:
        task.cancel()
        stop.cancel()
        await asyncio.wait([task, stop])
        if not task.cancelled():
            task.exception()


def fields(live: Live) -> dict[str, object]:
    """Return what names a sandbox in the log. A spare's session is empty."""
    return {"scope": live.row.key.scope, "session": live.row.key.session, "sandbox": live.row.id}
