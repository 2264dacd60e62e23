"""One execution's time in the sandbox: sent over the link, watched by our clock, ended from outside if need be."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
from sandboxd.protocol import Execute, Finished, Outcome, OutputLimits, Reason, Refused

from interpreter.backends.base import SandboxId
from interpreter.errors import KernelStartFailed
from interpreter.executions.execution import Execution
from interpreter.executions.model import ExecRequest, ended
from interpreter.link.connection import Pending
from interpreter.link.errors import LinkClosed, LinkNotSent
from interpreter.sandboxes.live import Live
from interpreter.tasks import Tasks

MARGIN_S = 0.2
"""After timeout and grace. Answers come by timeout + grace + 0.3 s, so this leaves a tenth for the way back."""
OVER_S = 5.0
"""In which the end of a sandbox is known after its link has ended."""

How = Literal["cancel", "deleted", "restart"]
"""Why an execution is ended before its time: by its caller, with its kernel or sandbox, for a restart of its kernel."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """grace_s: from the interrupt to the end of a kernel. kernel_start_s: until a kernel must have started. network: whether
    sandboxes have one."""

    grace_s: float
    output: OutputLimits
    kernel_start_s: float = 30.0
    network: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """Where an earlier service has sent an execution: under which id, when. live: None where its sandbox is gone."""

    sandbox: SandboxId
    live: Live | None
    link_id: str
    at: float


class Work:
    """One execution being worked on. nudge: set whenever there may be something new for its task.

    sent: by an earlier service. whole: its request can be run, if that did not happen. told: whether a sandbox may know of it.
    """

    def __init__(self, execution: Execution, *, sent: Sent | None = None, whole: bool = True) -> None:
        self.execution = execution
        self.sent = sent
        self.whole = whole
        self.told = sent is not None
        self.sandbox: SandboxId | None = None
        """In which it runs."""
        self.settle: Callable[[], None] = _nothing
        """To be called when the answer is kept."""
        self.input: Callable[[str], Awaitable[None]] = _nobody_reads
        """To be called with what it reads."""
        self.how: How | None = None
        self.turn = False
        self.nudge = asyncio.Event()
        self.prepared = False
        """Whether what comes before the run is done."""
        self.installed: Outcome | None = None
        """How its requirements were installed."""
        self.failed: Outcome | None = None
        """How it ends without having run, since they were not."""


class Run:
    """One execution in one sandbox. began: when its code began, on the monotonic clock.

    stop: ends the sandbox from outside, without waiting. tasks: own what is sent on the side. resumed: its id on the link, if an
    earlier service has sent it. request: what is run, if that is something else, on the way to it.
    """

    def __init__(
        self,
        work: Work,
        live: Live,
        config: RunConfig,
        *,
        stop: Callable[[Live, Reason], None],
        tasks: Tasks,
        clock: Callable[[], float],
        resumed: str | None = None,
        request: ExecRequest | None = None,
    ) -> None:
        self._work = work
        self._request = request or work.execution.request
        self._live = live
        self._config = config
        self._stop = stop
        self._tasks = tasks
        self._clock = clock
        # Not the execution's own id: callers may use one again, and what comes late for the first is not the second's.
        self.link_id = resumed or secrets.token_hex(16)
        self.began = clock()
        # What was killed while there was no service may have been of this one.
        self._mark = live.oom_mark() if resumed is None else 0

    async def finished(self) -> Finished | Refused:
        """Return how it ended, told by the sandbox or decided by us. Raises LinkNotSent: the sandbox knows nothing of it."""
        request, connection = self._request, self._live.connection
        try:
            # A sandboxd that the tenant has frozen takes no long frame, and the answer is due all the same.
            async with asyncio.timeout(request.timeout_s + self._config.grace_s + MARGIN_S):
                pending = await connection.execute(
                    _execute(self.link_id, request, self._config), self._work.execution.hear
                )
        except LinkNotSent:
            raise
        except LinkClosed:
            return await self._sandbox_gone("", "")
        except TimeoutError:
            self._stop(self._live, "killed")
            return self._ended("", "", "timeout", "timeout")
        return await self._outcome(pending)

    def abandon(self) -> None:
        """End the sandbox: something of it cannot be ended from inside."""
        self._stop(self._live, "killed")

    async def resumed(self, pending: Pending, sent_at: float) -> Finished | Refused:
        """Return how one ended that an earlier service has sent.

        When its code began is not known: sandboxd ends it in time; we, should it not, later by what a kernel may take to start.
        """
        if not pending.starting:
            self.began = min(self.began, sent_at + self._config.kernel_start_s)
        return await self._outcome(pending)

    async def _outcome(self, pending: Pending) -> Finished | Refused:
        try:
            await self._wait(pending)
            if pending.end.done():
                end = pending.end.result()
                if isinstance(end, Refused):
                    return end
                elapsed_s = self._clock() - self.began
                return Finished(
                    id=end.id,
                    outcome=self._settled(end.outcome, elapsed_s),
                    sandbox_unsafe=end.sandbox_unsafe,
                )
            return self._overdue(pending)
        except LinkClosed:
            return await self._sandbox_gone(pending.text("stdout"), pending.text("stderr"))
        finally:
            self._live.connection.forget(self.link_id)

    async def _wait(self, pending: Pending) -> None:
        """Return when the end is there, or when it should have been."""
        work = self._work
        request, grace_s = self._request, self._config.grace_s
        work.nudge = pending.changed
        preparing, asked_at = False, None
        while not pending.end.done():
            if preparing and not pending.starting:
                self.began = self._clock()
            preparing = pending.starting
            if work.how is not None and asked_at is None:
                asked_at = self._clock()
                if work.how == "cancel":
                    self._tasks.start(self._cancel(), name=f"cancel {work.execution.id}")
            limits = [
                self.began + (self._config.kernel_start_s if preparing else request.timeout_s + grace_s + MARGIN_S)
            ]
            if asked_at is not None:
                limits.append(asked_at + grace_s + MARGIN_S)
            pending.changed.clear()
            left_s = min(limits) - self._clock()
            if left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await pending.changed.wait()

    async def _cancel(self) -> None:
        with contextlib.suppress(LinkClosed):
            await self._live.connection.cancel(self.link_id)

    def _settled(self, outcome: Outcome, elapsed_s: float) -> Outcome:
        """Return ``outcome`` as we see it: memory is told from crash, and who asked for the end from how it went."""
        status, reason, exit_code, how = outcome.status, outcome.reason, outcome.exit_code, self._work.how
        killed = exit_code == 137 if status == "error" else status == "died" and reason in ("killed", "crash")
        if killed and self._live.oom_since(self._mark):
            # What a kernel started may have been killed and not the kernel: that is an error, and nothing is lost.
            lives = status == "error" and outcome.kernel in ("new", "kept")
            status, reason, exit_code = "error" if lives else "died", "oom", 137
        elif how is not None and status in ("interrupted", "cancelled"):
            status, exit_code = ("interrupted" if how == "cancel" else "cancelled"), 130
            reason = reason if how == "cancel" else how
        elif status == "timeout" and outcome.kernel == "lost":
            reason = "timeout"
        run_ms = min(outcome.run_ms, milliseconds(elapsed_s) + 1)
        return msgspec.structs.replace(outcome, status=status, reason=reason, exit_code=exit_code, run_ms=run_ms)

    def _overdue(self, pending: Pending) -> Finished:
        """End the sandbox for an execution that is not over in time, and say so without waiting."""
        self._stop(self._live, "killed")
        if pending.starting and self._work.how is None:
            raise KernelStartFailed("The kernel did not start in time.", retry_after_s=1.0)
        return self._ended(pending.text("stdout"), pending.text("stderr"), "timeout", "timeout")

    async def _sandbox_gone(self, stdout: str, stderr: str) -> Finished:
        """Say how it ended with its sandbox, once that is known."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OVER_S):
                await self._live.over.wait()
        return self._ended(stdout, stderr, "died", self._live.reason or "crash")

    def _ended(self, stdout: str, stderr: str, status: Literal["timeout", "died"], reason: Reason) -> Finished:
        how, request = self._work.how, self._request
        run_ms = milliseconds(self._clock() - self.began)
        outcome = ended(request, status, run_ms=run_ms, stdout=stdout, stderr=stderr, reason=reason)
        if how is not None:
            outcome = ended(
                request,
                "interrupted" if how == "cancel" else "cancelled",
                run_ms=run_ms,
                stdout=stdout,
                stderr=stderr,
                reason=reason if how == "cancel" else how,
            )
        told: Literal["lost"] | None = "lost" if request.stateful else None
        outcome = msgspec.structs.replace(outcome, kernel=told, files_incomplete="not_known")
        return Finished(id=self.link_id, outcome=outcome)


def _nothing() -> None:
    pass


async def _nobody_reads(_text: str) -> None:
    pass


def _execute(link_id: str, request: ExecRequest, config: RunConfig) -> Execute:
    return Execute(
        id=link_id,
        language=request.language,
        code=request.code,
        timeout_s=request.timeout_s,
        grace_s=config.grace_s,
        limits=config.output,
        stateful=request.stateful,
        context=request.context,
        env=dict(request.env),
        cwd=request.cwd,
        stdin=request.stdin,
        stream=request.stream,
        allow_input=request.allow_input,
    )


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, never negative."""
    return max(0, round(seconds * 1000))
