"""The work of running executions: a turn at the kernel, a sandbox, the link, the answer.

Promises: each execution is one task of this object and ends exactly once. What ends it is decided by our clocks, never by the
sandbox alone: a run that is not over at its timeout, the grace and a margin costs the whole sandbox, and the answer does
not wait for that. An execution that is ended while it waits never runs. Its lease and its place in the queue are given back
before its end is told. What an earlier service has sent is waited for, and never sent again to a sandbox that knows it.
Leaves to sandboxd: the timeout itself, as long as it does its part.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec
from sandboxd.protocol import Finished, Outcome, Reason, Refused

from interpreter.backends.base import SandboxId
from interpreter.errors import (
    InternalError,
    NoInputRequested,
    QueueTimeout,
    SandboxStartFailed,
    ServiceError,
    ShuttingDown,
)
from interpreter.executions import preparing, refusals, requirements
from interpreter.executions.execution import Execution
from interpreter.executions.model import Answer, ExecRequest, Life, Timing, answer, ended, heavy, with_cause
from interpreter.executions.recorder import Recorder
from interpreter.executions.run import How, Run, RunConfig, Sent, Work, milliseconds
from interpreter.executions.store import Store
from interpreter.keys import KernelKey, Key
from interpreter.link.connection import Pending
from interpreter.link.errors import LinkClosed, LinkNotSent
from interpreter.metrics import Metrics
from interpreter.sandboxes.kernels import Kernels, Told
from interpreter.sandboxes.live import Live
from interpreter.sandboxes.manager import Manager
from interpreter.sandboxes.table import Table
from interpreter.tasks import Tasks

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""Sandboxes that are tried for an execution that provably none of them has read."""


class Runner:
    """Runs executions. store_files: see preparing.py."""

    def __init__(
        self,
        table: Table,
        kernels: Kernels,
        manager: Manager,
        store: Store,
        config: RunConfig,
        *,
        recorder: Recorder,
        metrics: Metrics,
        store_files: preparing.StoreFiles,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._table = table
        self._kernels = kernels
        self._manager = manager
        self._store = store
        self._recorder = recorder
        self._metrics = metrics
        self._store_files = store_files
        self._config = config
        self._released = False
        self._clock = clock
        self._wall = wall
        self._tasks = Tasks()
        self._works: dict[str, Work] = {}
        self._turns: dict[str, Callable[[], None]] = {}

    def begin(self, request: ExecRequest) -> Execution:
        """Take ``request`` in and work on it. Raises TooManySessions, QueueFull, TooManyKernels, StorageFailed; then nothing has
        happened.
        """
        self._table.enter(request.key, self._clock())
        execution = self._store.add(request)
        try:
            self._recorder.taken(execution)
            self._take(Work(execution))
        except ServiceError:
            self._store.drop(execution)
            self._recorder.dropped(execution)
            self._table.leave(request.key, self._clock())
            raise
        return execution

    def resume(self, execution: Execution, *, sent: Sent | None, whole: bool) -> None:
        """Work on what an earlier service has left, to be called in the order of their coming. sent, whole: see ``Work``.

        One that its caller cannot ask for, and of which no sandbox was told, is forgotten: it is as if it had not come. One that
        may have run, and for which there is no room any more, has died.
        """
        if sent is None and not (execution.named and whole):
            self._recorder.dropped(execution)
            return
        self._store.restore(execution)
        try:
            self._table.enter(execution.request.key, self._clock())
            try:
                self._take(Work(execution, sent=sent, whole=whole))
            except ServiceError:
                self._table.leave(execution.request.key, self._clock())
                raise
        except ServiceError as error:
            end = error if sent is None else self._died(execution, sent)
            execution.end(end, self._clock())
            self._store.finished(execution, self._clock())
            if isinstance(end, Answer):
                self._recorder.ended(execution, end, settle=lambda: None)
            else:
                self._recorder.dropped(execution)

    def end(self, execution: Execution, how: How) -> None:
        """End it: while it waits it never runs, while it runs it is interrupted or killed. Nothing once it has finished."""
        work = self._works.get(_ticket(execution))
        if work is not None and work.how is None:
            work.how = how
            if execution.phase == "queued" and (kernel := execution.request.kernel) is not None and not work.turn:
                self._kernels.leave(execution.request.key, kernel, _ticket(execution))
            work.nudge.set()

    async def input(self, execution: Execution, text: str) -> None:
        """Give it what it reads. Raises NoInputRequested."""
        work = self._works.get(_ticket(execution))
        if work is None or not execution.asks:
            raise NoInputRequested("The execution waits for no input.")
        execution.asks, execution.asked = False, None
        with contextlib.suppress(LinkClosed):  # how it ended is told as any other end
            await work.input(text)

    def denied(self, sandbox: SandboxId, host: str, port: int, reason: str) -> None:
        """Count a refusal on the way out of a sandbox for all that runs in it: which of them asked cannot be told."""
        for work in self._works.values():
            if work.sandbox == sandbox and work.execution.phase == "running":
                work.execution.denials.add(host, port, reason)

    def running(self, key: Key, kernel: KernelKey) -> Execution | None:
        """Return the execution whose turn it is at a kernel."""
        known = self._kernels.get(key, kernel)
        work = None if known is None or known.running is None else self._works.get(known.running)
        return None if work is None else work.execution

    def of_kernel(self, key: Key, kernel: KernelKey) -> list[Execution]:
        """Return what runs and waits in a kernel."""
        works = (work.execution for work in self._works.values())
        return [e for e in works if e.request.key == key and e.request.kernel == kernel]

    async def turn(self, key: Key, kernel: KernelKey, ticket: str, *, within_s: float) -> None:
        """Wait for the next turn at a kernel, for something that is no execution; at most ``within_s`` seconds.

        ``leave`` it in any case.
        """
        mine = asyncio.Event()
        self._turns[ticket] = mine.set
        if not self._kernels.join(key, kernel, ticket, first=True):
            try:
                async with asyncio.timeout(within_s):
                    await mine.wait()
            except TimeoutError:
                log.warning("a kernel's turn did not end", extra={"scope": key.scope, "session": key.session})

    def leave(self, key: Key, kernel: KernelKey, ticket: str) -> None:
        """Give a turn, or the wait for it, to the next one."""
        self._turns.pop(ticket, None)
        following = self._kernels.leave(key, kernel, ticket)
        if following is not None and following in self._turns:
            self._turns[following]()

    async def aclose(self, *, within_s: float) -> None:
        """Cancel what is still being worked on and wait for it. May be called twice."""
        await self._tasks.aclose(within_s=within_s)

    async def release(self, *, within_s: float) -> None:
        """Let go of everything: what runs goes on, what waits and has a name waits for the next service. Whoever waits here is
        told so.
        """
        self._released = True
        await self._tasks.aclose(within_s=within_s)

    def _take(self, work: Work) -> None:
        request, ticket = work.execution.request, _ticket(work.execution)
        work.turn = request.kernel is None or self._kernels.join(request.key, request.kernel, ticket)
        self._works[ticket] = work
        self._turns[ticket] = lambda: _your_turn(work)
        task = self._tasks.start(self._work(work), name=f"execution {work.execution.id}")
        task.add_done_callback(lambda _task: self._never_began(work))

    async def _work(self, work: Work) -> None:
        execution = work.execution
        result: Answer | ServiceError = InternalError("The service was stopped.")
        try:
            result = await self._result(work)
        except ServiceError as error:
            result = error
        except Exception as error:
            log.error("an execution failed for a fault of ours", exc_info=error, extra={"execution": execution.id})
            result = InternalError("The execution failed, for a fault of ours.")
        finally:
            self._over(work, result)

    def _over(self, work: Work, result: Answer | ServiceError) -> None:
        execution = work.execution
        if execution.request.kernel is not None:
            self.leave(execution.request.key, execution.request.kernel, _ticket(execution))
        self._turns.pop(_ticket(execution), None)
        self._table.leave(execution.request.key, self._clock())
        del self._works[_ticket(execution)]
        goes_on = False
        if self._released and not isinstance(result, Answer):
            goes_on = execution.phase == "running" or execution.named
            result = refusals.goes_on(execution)
        uncertain = work.told and isinstance(result, InternalError)
        self._count(execution, result, goes_on=goes_on)
        execution.end(result, self._clock(), goes_on=goes_on, uncertain=uncertain)
        self._store.finished(execution, self._clock())
        if isinstance(result, Answer):
            self._recorder.ended(execution, result, settle=work.settle)
        elif uncertain:
            self._recorder.uncertain(execution, settle=work.settle)
        elif not self._released:
            self._recorder.dropped(execution)
            work.settle()
        # Whoever waits has the answer first: a line takes as long as all of this.
        asyncio.get_running_loop().call_soon(partial(log.info, "execution ended", extra=_fields(execution, result)))

    def _count(self, execution: Execution, result: Answer | ServiceError, *, goes_on: bool) -> None:
        """Count how it ended; nothing where the next service will see that."""
        request = execution.request
        if not isinstance(result, Answer):
            if not goes_on:
                self._metrics.ended(request.language, stateful=request.stateful, status="refused")
            return
        ran = execution.phase == "running"
        self._metrics.ended(
            request.language,
            stateful=request.stateful,
            status=result.status,
            queued_s=result.timing.queued_ms / 1000 if ran else None,
            run_s=result.timing.run_ms / 1000 if ran else None,
        )

    def _never_began(self, work: Work) -> None:
        """End an execution whose task was cancelled before its first step, of which nothing runs then."""
        if self._works.get(_ticket(work.execution)) is work:
            self._over(work, InternalError("The service was stopped."))

    async def _result(self, work: Work) -> Answer:
        """Run it; raise ServiceError if it never ran."""
        request, began = work.execution.request, self._clock()
        await self._wait_for_turn(work, began + request.queue_timeout_s)
        turn = self._clock()
        if work.sent is not None and not await self._adopted(work.sent):
            return self._died(work.execution, work.sent)
        live, run, finished = await self._run(work)
        if live is None or run is None or finished is None:
            timing = Timing(queued_ms=milliseconds(turn - began), started_ms=milliseconds(self._clock() - turn))
            return self._not_run(work, timing)
        if isinstance(finished, Refused):
            raise refusals.refused(request, finished, live)
        outcome = with_cause(finished.outcome)
        if (said := outcome.stderr.removeprefix(finished.outcome.stderr)) and work.execution.events.text_size("stderr"):
            work.execution.events.add_text("stderr", said)  # where nothing was heard of it, the answer's is told whole
        if work.installed is not None:
            outcome = requirements.said(work.installed, outcome, self._config.output.text)
        life = self._life(request, live.row.id, outcome, over=live.over.is_set())
        if finished.sandbox_unsafe:
            self._manager.stop(live, "killed")
        elif live.reason is not None:
            self._kernels.sandbox_gone(request.key, live.row.id, live.reason)
        if life.state is not None and life.state != "kept":
            state = "died" if outcome.kernel == "lost" else "restarted" if life.state == "lost" else "started"
            work.execution.events.add("kernel", state=state, reason=life.reason, generation=life.generation)
        timing = Timing(milliseconds(turn - began), milliseconds(run.began - turn), outcome.run_ms)
        denied = work.execution.denials.listed()
        if heavy(outcome):
            return await asyncio.to_thread(
                answer, work.execution.id, request, outcome, life, timing, egress_denied=denied
            )
        return answer(work.execution.id, request, outcome, life, timing, egress_denied=denied)

    def _not_run(self, work: Work, timing: Timing) -> Answer:
        """Return the answer of one that was ended before it ran, or whose preparation failed."""
        reason: Reason | None = None if work.how == "cancel" else work.how
        outcome = ended(work.execution.request, "cancelled", reason=reason)
        if work.failed is not None and not work.how:
            outcome = with_cause(work.failed)
        denied = work.execution.denials.listed()
        return answer(work.execution.id, work.execution.request, outcome, Life(), timing, egress_denied=denied)

    def _died(self, execution: Execution, sent: Sent) -> Answer:
        """Return the answer of one that an earlier service has sent to a sandbox that is gone."""
        request = execution.request
        execution.running()
        why = (sent.live.reason if sent.live is not None else None) or "killed"
        outcome = msgspec.structs.replace(with_cause(ended(request, "died", reason=why)), kernel="lost")
        life = self._life(request, sent.sandbox, outcome)
        return answer(execution.id, request, outcome, life, Timing())

    async def _run(self, work: Work) -> tuple[Live, Run, Finished | Refused] | tuple[None, None, None]:
        """Run it in a working sandbox; nothing is returned where it is to end before that. Raises ServiceError.

        A sandbox that ended before it could know of the execution is no answer to it: a fresh one is, a few times.
        """
        if work.sent is not None and (resumed := self._resumed(work, work.sent)) is not None:
            adopted, run, pending = resumed
            work.execution.resumed()
            pending.hear = work.execution.hear_rest
            return adopted, run, await run.resumed(pending, work.sent.at)
        for _ in range(ATTEMPTS):
            live = None if work.how else await self._sandbox(work)
            if live is None:
                return None, None, None
            try:
                if not (work.prepared or await self._prepared(work, live)):
                    return None, None, None
                work.prepared = True
                run = self._at(work, live)
                self._recorder.sent(work.execution, live.row.id, run.link_id)
                work.told = True
                return live, run, await run.finished()
            except LinkNotSent:
                work.told = False
                log.info("a sandbox ended before it was told of an execution", extra={"sandbox": live.row.id})
        raise SandboxStartFailed("Sandboxes end as soon as they have started; nothing has run.", retry_after_s=1.0)

    async def _prepared(self, work: Work, live: Live) -> bool:
        if not work.execution.request.files:
            work.execution.running()
            return True

        def run(work: Work, live: Live, config: RunConfig, request: ExecRequest) -> Run:
            return Run(
                work, live, config, stop=self._manager.stop, tasks=self._tasks, clock=self._clock, request=request
            )

        work.sandbox = live.row.id
        return await preparing.prepare(work, live, self._config, self._store_files, run)

    async def _adopted(self, sent: Sent) -> bool:
        """Wait until it is known whether a sandbox of an earlier service works."""
        if sent.live is None:
            return False
        await asyncio.wait([sent.live.started])
        return sent.live.started.exception() is None and sent.live.usable

    def _resumed(self, work: Work, sent: Sent) -> tuple[Live, Run, Pending] | None:
        """Return what is to be waited for; None if it provably did not reach its sandbox. Raises ShuttingDown if it cannot be
        sent again.
        """
        if sent.live is not None and (pending := sent.live.resumed.pop(sent.link_id, None)) is not None:
            return sent.live, self._at(work, sent.live, resumed=sent.link_id), pending
        if not (work.whole and work.execution.named):  # who cannot ask for it has most likely asked again
            raise ShuttingDown("The service was stopped before it could be run; nothing has run.", retry_after_s=1.0)
        work.told = False
        return None

    def _at(self, work: Work, live: Live, resumed: str | None = None) -> Run:
        run = Run(
            work, live, self._config, stop=self._manager.stop, tasks=self._tasks, clock=self._clock, resumed=resumed
        )
        link_id = run.link_id
        work.sandbox = live.row.id
        work.input = lambda text: live.connection.input(link_id, text)
        work.settle = lambda: live.connection.settle([link_id])  # nothing of ``run``: a cycle would keep the answer
        return run

    async def _wait_for_turn(self, work: Work, until: float) -> None:
        try:
            async with asyncio.timeout(until - self._clock()):
                while not (work.turn or work.how):
                    work.nudge.clear()
                    await work.nudge.wait()
        except TimeoutError:
            raise QueueTimeout(
                "The kernel was busy for all of queue_timeout; nothing has run.", retry_after_s=1.0
            ) from None

    async def _sandbox(self, work: Work) -> Live | None:
        """Return a working sandbox, or None once the execution is to end. Raises ServiceError."""
        live = self._manager.get(work.execution.request.key)
        if live is not None and live.started.done() and live.usable:
            return live
        ready = asyncio.get_running_loop().create_task(self._manager.ready(work.execution.request.key), name="ready")
        ready.add_done_callback(lambda _task: work.nudge.set())
        try:
            while not (ready.done() or work.how):
                work.nudge.clear()
                await work.nudge.wait()
            return None if work.how else ready.result()
        finally:
            ready.cancel()
            await asyncio.wait([ready])
            if not ready.cancelled():
                ready.exception()

    def _life(self, request: ExecRequest, sandbox: SandboxId, outcome: Outcome, *, over: bool = True) -> Life:
        if request.kernel is None:
            return Life()
        if self._kernels.get(request.key, request.kernel) is None:  # its first life, for which there is no room now
            return Life("lost", 1, outcome.reason)
        told: Told = outcome.kernel
        if outcome.status == "died" or (over and outcome.kernel is None):
            told = "lost"
        return self._kernels.ran(
            request.key, request.kernel, sandbox, told=told, reason=outcome.reason, now=self._wall()
        )


def _your_turn(work: Work) -> None:
    work.turn = True
    work.nudge.set()


def _ticket(execution: Execution) -> str:
    """Return its name in queues. With the scope: two callers may have chosen the same id."""
    return f"{execution.scope}/{execution.id}"


def _fields(execution: Execution, result: Answer | ServiceError) -> dict[str, object]:
    fields: dict[str, object] = {"scope": execution.scope, "session": execution.session, "execution": execution.id}
    if isinstance(result, ServiceError):
        return {**fields, "status": "refused", "reason": result.code}
    sizes = {"outputs": len(result.results), "output_bytes": sum(result.output_bytes.values())}
    return {**fields, "status": result.status, "reason": result.reason, "elapsed_ms": result.duration_ms, **sizes}
