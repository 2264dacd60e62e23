"""Stateless executions: a fresh program each, of which nothing but files is left.

Owns the programs' descriptors and clocks. Python is forked from the zygote, except where that could be told; Node and Bash
are started (``languages.py``).

Promises: each ``execute`` is answered once, at its timeout plus ``CLEAN_WITHIN_S`` plus 0.3 s at the latest; all that the
program and its descendants wrote until then is counted, whatever they did to their descriptors.
Leaves to the daemon: the link; to the service: how many run side by side.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence

from . import languages, places
from .output import Capture, PipeReader
from .processes import Exited, Process, SpawnError, Zygote
from .protocol import BootConfig, Execute, Finished, FromSandbox, Outcome, Progress, Reason, Refused, Status, StreamName
from .stream import Stream

_PROGRESS_EVERY_S = 0.25
_PIPES_END_WITHIN_S = 0.2
"""After the last process of the run. A pipe that is open then was handed to a process that is not of the run."""

_KILLED = 137


class Runs:
    """All stateless executions of a sandbox. send: called with Progress and Output, in the loop; must not block or raise.

    full: while it says so what programs write stays in their pipes.
    """

    def __init__(
        self,
        config: BootConfig,
        zygote: Zygote,
        send: Callable[[FromSandbox], None],
        full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._full = full
        self._zygote = zygote
        self._send = send
        self._running: dict[str, _Run] = {}
        self.languages = languages.installed(config.environment)
        """The names of the interpreters there are, for ``Hello``."""

    async def execute(self, message: Execute) -> Finished | Refused:
        """Run a program to its end. Never raises. Cancelling the call kills it."""
        if message.language not in self.languages:
            return Refused(id=message.id, code="unknown_language", message=f"There is no {message.language} here.")
        cwd = os.path.join(self._config.workspace, message.cwd or "")
        if not places.enterable(cwd):
            return Refused(id=message.id, code="cwd_not_found", message="The working directory does not exist.")
        run = self._running[message.id] = _Run(message, self._send, self._full)
        try:
            return await run.execute(self._zygote, self._config.environment, cwd)
        except (SpawnError, OSError) as error:
            return Refused(id=message.id, code="run_start_failed", message=str(error)[:1000])
        finally:
            del self._running[message.id]

    def rewind(self) -> None:
        """Tell the progress of all runs anew, from the start."""
        for run in self._running.values():
            run.rewind()

    def cancel(self, execution: str) -> bool:
        """Kill ``execution``; False if it is not here. ``execute`` answers."""
        run = self._running.get(execution)
        if run is not None:
            run.end("interrupted")
        return run is not None


class _Run:
    """One execution. A run is ended by its program, by its clock or by ``end``, whichever is first."""

    def __init__(self, message: Execute, send: Callable[[FromSandbox], None], full: Callable[[], bool]) -> None:
        self._message = message
        self._full = full
        self._send = send
        self._stream = Stream(message, send)
        self._captures: dict[StreamName, Capture] = {
            "stdout": self._stream.capture("stdout"),
            "stderr": self._stream.capture("stderr"),
        }
        self._process: Process | None = None
        self._ended_as: Status | None = None

    def rewind(self) -> None:
        self._stream.stop()
        for capture in self._captures.values():
            capture.rewind()

    def end(self, status: Status) -> None:
        """Kill it, now or as soon as it exists; ``status`` says why."""
        if self._ended_as is None:
            self._ended_as = status
        if self._process is not None:
            self._process.kill()

    async def execute(self, zygote: Zygote, environment: Mapping[str, str], cwd: str) -> Finished:
        """Run it. Raises SpawnError or OSError if it could not be started."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pipes: dict[StreamName, PipeReader] = {}
        writers: dict[StreamName, int] = {}
        timers: list[asyncio.TimerHandle] = []
        try:
            for name, capture in self._captures.items():
                reader, writers[name] = os.pipe2(os.O_CLOEXEC)
                pipes[name] = PipeReader(reader, capture.feed, self._full)
            with languages.start(self._message, environment, cwd) as start:
                self._process = await zygote.spawn(
                    start.program,
                    stdin=start.stdin,
                    stdout=writers["stdout"],
                    stderr=writers["stderr"],
                    extra=start.extra,
                )
            _close(writers)
            timers.append(loop.call_at(began + self._message.timeout_s, self.end, "timeout"))
            timers.append(loop.call_later(_PROGRESS_EVERY_S, self._progress, timers))
            if self._ended_as is not None:
                self._process.kill()
            exited = await self._exited(self._process)
            run_s = loop.time() - began
            clean = await self._process.gone()
            await _end_of(list(pipes.values()))
        finally:
            for timer in timers:
                timer.cancel()
            if self._process is not None:
                self._process.kill()  # without effect unless the call was cancelled
            _close(writers)
            for pipe in pipes.values():
                pipe.close()
        return Finished(id=self._message.id, outcome=self._outcome(exited, run_s), sandbox_unsafe=not clean)

    def _progress(self, timers: list[asyncio.TimerHandle]) -> None:
        for name, capture in self._captures.items():
            if text := capture.progress():
                self._send(Progress(id=self._message.id, stream=name, text=text))
        timers.append(asyncio.get_running_loop().call_later(_PROGRESS_EVERY_S, self._progress, timers))
        del timers[1:-1]

    async def _exited(self, process: Process) -> Exited:
        exited = await process.wait()
        if self._ended_as is None:
            self._ended_as = "ok"  # the clock and cancellation come too late
        return exited

    def _outcome(self, exited: Exited, run_s: float) -> Outcome:
        for capture in self._captures.values():
            capture.close()
        status, exit_code, reason = _ending(self._ended_as, exited)
        stdout, stderr = self._captures["stdout"], self._captures["stderr"]
        return Outcome(
            status=status,
            exit_code=exit_code,
            run_ms=int(run_s * 1000),
            stdout=stdout.text(),
            stderr=stderr.text(),
            stdout_bytes=stdout.size,
            stderr_bytes=stderr.size,
            truncated=stdout.truncated or stderr.truncated,
            reason=reason,
        )


def _ending(ended_as: Status | None, exited: Exited) -> tuple[Status, int, Reason | None]:
    """Return status, exit code and reason as API.md has them."""
    if ended_as == "timeout":
        return "timeout", _KILLED, None
    if ended_as == "interrupted":
        return "interrupted", 130, None
    if exited.status is None:
        return "died", _KILLED, "killed"
    if exited.status < 0:
        return "error", 128 - exited.status, None
    return ("error" if exited.status else "ok"), exited.status, None


def _close(writers: dict[StreamName, int]) -> None:
    while writers:
        os.close(writers.popitem()[1])


async def _end_of(pipes: Sequence[PipeReader]) -> None:
    """Return when both are read to their ends, or what is in them has been read."""
    for pipe in pipes:
        pipe.drain()
    open_ends = [pipe.eof for pipe in pipes if not pipe.eof.done()]
    if open_ends:
        await asyncio.wait(open_ends, timeout=_PIPES_END_WITHIN_S)
