"""A container at work, seen from the service that started or adopted it.

Promises: its end is noticed by whoever notices first, the host or the engine, and told once all its processes are gone; what
has ended is removed from the engine by itself, and an engine that refuses, hangs or is gone is asked until it is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from interpreter.backends.base import BackendError, Sandbox, SandboxExit, SandboxId, Stats
from interpreter.backends.bubblewrap import cgroups, ending
from interpreter.tasks import Tasks

from .engine import Engine, EngineError, NotThere
from .seen import NOTHING, Seen

log = logging.getLogger(__name__)

STOP_S = 5.0
_TOLD_S = 3.0
"""For the engine to notice an end that the host has shown."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 10.0
_STATS_S = 1.0
_KILLED = 128 + signal.SIGKILL


class DockerSandbox(Sandbox):
    """Holds the name of a container, and where they can be seen its first process and its cgroups.

    forget: called once nothing of it is left in the engine.
    """

    def __init__(
        self,
        ident: SandboxId,
        container: str,
        engine: Engine,
        tasks: Tasks,
        forget: Callable[[DockerSandbox], None],
    ) -> None:
        self.id = ident
        self.container = container
        """Its id in the engine; empty before there is one."""
        self.unwanted = False
        """Whether ``stop`` was called: what is still there of it has to go."""
        self._unremoved_since: float | None = None
        self._engine = engine
        self._tasks = tasks
        self._forget = forget
        self._seen = NOTHING
        self._last = Stats(0, 0, 0)
        self._oom_kills = 0
        self._asked = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._exit: asyncio.Future[SandboxExit] = asyncio.get_running_loop().create_future()
        self._noticed = asyncio.Event()
        self._gone = False
        self._ending: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._removing: asyncio.Task[None] | None = None
        self._again = asyncio.Event()

    @property
    def hanging(self) -> bool:
        """Whether the engine should have removed it by now, whether it refuses or says nothing."""
        since = self._unremoved_since
        return since is not None and not self._gone and time.monotonic() - since > STOP_S

    def see(self, seen: Seen) -> None:
        """Take over what the host shows of it."""
        if self._gone or self._ending is not None:
            if seen.process >= 0:
                os.close(seen.process)
            return
        self._seen = seen
        if seen.process >= 0:
            asyncio.get_running_loop().add_reader(seen.process, self.ended)

    async def wait(self) -> SandboxExit:
        """Return how it ended, once it has and all of it is gone."""
        return await asyncio.shield(self._exit)

    async def stop(self) -> None:
        """End all of it; return when no process is left and the engine has forgotten it."""
        self.unwanted = True
        if self._gone:
            return
        if self._stopping is None or self._stopping.done():
            self._stopping = self._tasks.start(self._stop(), name=f"stop sandbox {self.id}", expected=BackendError)
        await asyncio.shield(self._stopping)

    def stats(self) -> Stats:
        """Read the counters; the last ones once it has ended, or those of a moment ago where only the engine has them."""
        if self._exit.done():
            return Stats(self._last.memory_bytes, self.oom_kills(), 0)
        if self._seen.groups:
            read = cgroups.stats(list(self._seen.groups))
            if read.processes is not None:
                self._last = read
        elif time.monotonic() - self._asked > _STATS_S:
            self._asked = time.monotonic()
            self._exit.get_loop().call_soon_threadsafe(self._ask_soon)  # listings read from threads
        return Stats(self._last.memory_bytes, self.oom_kills(), self._last.processes)

    def oom_kills(self) -> int:
        """Return how many processes its memory limit has killed: read where the host shows it, else what was told."""
        if not self._exit.done() and self._seen.groups:
            self._oom_kills = max(self._oom_kills, ending.oom_kills(self._seen.groups))
        return self._oom_kills

    def oom(self) -> None:
        """Hear from the engine that its memory limit has killed a process."""
        if not self._seen.groups:
            self._oom_kills += 1

    def ended(self) -> None:
        """Hear, from the host or the engine, that it has ended. May be called any number of times."""
        if self._ending is None and not self._exit.done():
            self.oom_kills()
            self.release()
            self._noticed.set()
            self._ending = self._tasks.start(self._end(), name=f"clean up sandbox {self.id}")

    def ask_again(self) -> None:
        """Hear that the engine answers: a removal that waits is tried now."""
        self._again.set()

    def has_ended(self, end: SandboxExit) -> None:
        """Take over how it ended, before anybody here knew of it."""
        self._oom_kills = int(end.oom)
        self._exit.set_result(end)

    def release(self) -> None:
        """Let go of its process, and leave it alone."""
        if self._seen.process >= 0:
            asyncio.get_running_loop().remove_reader(self._seen.process)
            os.close(self._seen.process)
        self._seen = Seen(-1, self._seen.groups)

    # --- its end ----------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Learn how it ended, tell, and remove what is left of it."""
        try:
            end = await asyncio.wait_for(self._engine.end(self._how), _TOLD_S)
        except NotThere:
            end = self._unknown()
        except (EngineError, TimeoutError) as error:
            log.warning(
                "the engine does not tell how a sandbox ended", extra={"sandbox": self.id, "error": repr(error)}
            )
            end = self._unknown()
        if end.oom and not self._oom_kills:
            self._oom_kills = 1
        if not self._exit.done():
            self._exit.set_result(end)
        if not await self._removed(within_s=STOP_S):
            self.unwanted = True

    def _unknown(self) -> SandboxExit:
        return SandboxExit(_KILLED if self.unwanted else None, oom=self._oom_kills > 0)

    def _how(self) -> SandboxExit:
        """Ask the engine how it ended. Blocking."""
        status = self._engine.ends.wait(self.container, within_s=_TOLD_S)
        state = self._engine.ends.inspect(self.container)["State"]
        return SandboxExit(status, oom=exit_of(state).oom or self._oom_kills > 0)

    async def _removed(self, *, within_s: float) -> bool:
        """End and remove the container; whether the engine has done so in time. It is asked on until it has."""
        if self._removing is None:
            self._removing = self._tasks.start(self._remove(), name=f"remove sandbox {self.id}")
        await asyncio.wait([self._removing], timeout=within_s)
        return self._gone

    async def _remove(self) -> None:
        began, pause_s, late = time.monotonic(), _FIRST_PAUSE_S, False
        self._unremoved_since = began
        while self.container:
            self._again.clear()
            try:
                await self._engine.end(lambda: self._engine.ends.remove(self.container))
                break
            except EngineError as error:  # Conflict: it, or somebody else, does it just now
                if not late and time.monotonic() - began > STOP_S:
                    late = True
                    log.warning(
                        "the engine does not remove a sandbox; it is asked on",
                        extra={"sandbox": self.id, "error": repr(error)},
                    )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._again.wait(), pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if late:
            log.info(
                "the engine has removed a sandbox late",
                extra={"sandbox": self.id, "seconds": round(time.monotonic() - began)},
            )
        self._gone = True
        self._forget(self)
        if self._ending is None:
            self._removed_by_us()

    async def _stop(self) -> None:
        if not self._exit.done() and self._ending is None and self._seen.process >= 0:
            ending.kill(self._seen.process)  # at once, and whatever state the engine is in
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._noticed.wait(), STOP_S)
        if self._ending is None and not await self._removed(within_s=STOP_S):
            raise BackendError("a sandbox could not be ended: the container engine does not do it")
        if self._ending is not None:
            await asyncio.wait([self._ending], timeout=_TOLD_S + STOP_S)
        if not self._exit.done():
            raise BackendError("a sandbox could not be ended: some of its processes are still there")
        if not self._gone:  # adopted when it had ended; or the engine did not do it before, and is asked on
            await self._removed(within_s=STOP_S)

    def _removed_by_us(self) -> None:
        """Tell its end, which nobody can be asked about any more."""
        self.oom_kills()
        self.release()
        if not self._exit.done():
            self._exit.set_result(SandboxExit(_KILLED, oom=self._oom_kills > 0))

    def _ask_soon(self) -> None:
        if self._asking is None or self._asking.done():  # an engine that hangs is not asked ever more
            self._asking = self._tasks.start(self._ask(), name=f"ask about sandbox {self.id}")

    async def _ask(self) -> None:
        """Ask the engine for the counters."""
        try:
            said = await self._engine.call(lambda: self._engine.client.stats(self.container))
        except EngineError:
            return
        self._last = _stats(said)


def exit_of(state: dict[str, Any]) -> SandboxExit:
    """Read how a container ended from what the engine says of its state."""
    return SandboxExit(int(state["ExitCode"]), oom=bool(state.get("OOMKilled")))


def _stats(said: dict[str, Any]) -> Stats:
    """Read the engine's counters. Memory without the file pages that the kernel would drop first."""
    memory, processes = said.get("memory_stats") or {}, said.get("pids_stats") or {}
    used = memory.get("usage")
    if used is not None:
        detail = memory.get("stats") or {}
        used = max(0, used - (detail.get("total_inactive_file") or detail.get("inactive_file") or 0))
    return Stats(used, 0, processes.get("current"))
