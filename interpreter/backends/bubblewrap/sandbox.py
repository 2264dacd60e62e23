"""A running bubblewrap sandbox, seen from the service that started or adopted it: its supervisor, its cgroups, its end.

Promises: ``stop`` asks the supervisor, and a second later does its work itself; the end of a supervisor that was killed
is cleaned up here before ``wait`` returns.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path
from typing import IO, Any

from interpreter.backends.base import BackendError, Sandbox, SandboxExit, SandboxId, Stats
from interpreter.tasks import Tasks

from . import cgroups, ending, leftovers

log = logging.getLogger(__name__)

_ASK_S = 1.0
_STOP_S = 5.0
_LINE_BYTES = 2**16


class EndedSandbox(Sandbox):
    """A sandbox that ended while there was no service to be told. note: the file that says how."""

    def __init__(self, ident: SandboxId, end: leftovers.End, note: Path) -> None:
        self.id = ident
        self._end = end
        self._note = note

    async def stop(self) -> None:
        """Remove the note, the last of it; until then each service is told again, should this one be killed too."""
        self._note.unlink(missing_ok=True)

    async def wait(self) -> SandboxExit:
        """Return how it ended."""
        return self._end.exit

    def stats(self) -> Stats:
        """Return that nothing is left."""
        return Stats(0, self._end.oom_kills, 0)


class BubblewrapSandbox(Sandbox):
    """Holds the supervisor, by a pidfd, and the pipe of its reports if it was started here."""

    def __init__(
        self,
        ident: SandboxId,
        supervisor: int,
        groups: list[str],
        state: Path,
        tasks: Tasks,
        *,
        reports: IO[bytes] | None = None,
        first: tuple[int, int] | None = None,
    ) -> None:
        """Take over ``supervisor``, its pidfd, and ``reports``. first: pid and start time, where they are known."""
        self.id = ident
        self.started: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        """The first line of the supervisor; empty if it ended without one."""
        self._pidfd = supervisor
        self._reports = reports
        self._groups = groups
        self._state = state
        self._ended = state.with_suffix(leftovers.ENDED)
        self._tasks = tasks
        self._text = b""
        self._first = first
        self._last = Stats(0 if groups else None, 0, 0 if groups else None)
        self._exit: asyncio.Future[SandboxExit] = asyncio.get_running_loop().create_future()
        self._stopping: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        if reports is not None:
            os.set_blocking(reports.fileno(), False)
            loop.add_reader(reports.fileno(), self._read)
        loop.add_reader(supervisor, self._supervisor_ended)

    async def wait(self) -> SandboxExit:
        """Return how it ended, once it has and all of it is gone."""
        return await asyncio.shield(self._exit)

    async def stop(self) -> None:
        """End all of it; return when no process is left."""
        if self._exit.done():
            return
        if self._stopping is None or self._stopping.done():
            self._stopping = self._tasks.start(self._stop(), name=f"stop sandbox {self.id}")
        await asyncio.shield(self._stopping)

    def stats(self) -> Stats:
        """Read the counters; the last ones once it has ended."""
        if self._groups and not self._exit.done() and Path(self._groups[0]).exists():
            with contextlib.suppress(OSError, ValueError):
                self._last = cgroups.stats(self._groups)
        return self._last

    def oom_kills(self) -> int:
        """Read one file, where ``stats`` reads twelve."""
        return self._last.oom_kills if self._exit.done() else max(self._last.oom_kills, ending.oom_kills(self._groups))

    def release(self) -> None:
        """Let go of a sandbox that is to outlive this service; its supervisor does the rest."""
        self._close_reports()
        self._close_pidfd()

    async def _stop(self) -> None:
        self._signal(signal.SIGTERM)
        await asyncio.wait([self._exit], timeout=_ASK_S)
        if self._exit.done():
            return
        if self._first is not None:
            ending.kill_if_started_at(*self._first)
        self._signal(signal.SIGKILL)
        await asyncio.wait([self._exit], timeout=_STOP_S - _ASK_S)
        if not self._exit.done():
            raise BackendError("a sandbox could not be ended: some of its processes are still there")

    def _signal(self, number: signal.Signals) -> None:
        """Signal the supervisor; nothing happens once it has ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _close_pidfd(self) -> None:
        """Forget its number with it: the next descriptor that gets it may be another sandbox's."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _close_reports(self) -> None:
        if self._reports is not None:
            asyncio.get_running_loop().remove_reader(self._reports.fileno())
            self._reports.close()
            self._reports = None

    def _read(self) -> None:
        if self._reports is None:
            return
        try:
            more = os.read(self._reports.fileno(), _LINE_BYTES)
        except BlockingIOError:
            return
        self._text += more
        if not more or len(self._text) > _LINE_BYTES:
            self._close_reports()
        if not self.started.done() and b"\n" in self._text:
            self.started.set_result(self._line(0))
            if first := self.started.result().get("started"):
                self._first = first, ending.start_time(first) or 0

    def _line(self, number: int) -> dict[str, Any]:
        lines = self._text.decode(errors="replace").splitlines()
        line: dict[str, Any] = ast.literal_eval(lines[number]) if number < len(lines) else {}
        return line

    def _supervisor_ended(self) -> None:
        self._read()
        self._close_reports()
        with contextlib.suppress(ChildProcessError):  # adopted: somebody else's
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        self._close_pidfd()
        if not self.started.done():
            self.started.set_result({})
        self._tasks.start(self._clean_up(), name=f"clean up sandbox {self.id}")

    async def _clean_up(self) -> None:
        """Do what a killed supervisor left undone, then tell how it ended."""
        end = self._end() or leftovers.End(None, ending.oom_kills(self._groups))
        if self._state.exists():
            if self._first is not None:
                ending.kill_if_started_at(*self._first)
            # stop() says so after its time; what hangs in the kernel may end yet.
            while not await asyncio.to_thread(ending.end_groups, self._groups, within_s=_STOP_S):
                log.error("processes of a sandbox are still there", extra={"sandbox": self.id})
            self._state.unlink(missing_ok=True)
        self._ended.unlink(missing_ok=True)
        self._last = Stats(self._last.memory_bytes, end.oom_kills, 0)
        self._exit.set_result(end.exit)

    def _end(self) -> leftovers.End | None:
        """Return the end that the supervisor told, on the pipe or in its file; None: it was killed before."""
        if line := self._line(1):
            return leftovers.end_of(line)
        with contextlib.suppress(OSError, leftovers.NotOurs):
            return leftovers.read_end(self._ended)
        return None
