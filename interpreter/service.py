"""The service as one object: what HTTP, and everything after it, may ask.

Promises: ``submit`` decides at once; work goes on in tasks of the service; every wait has a limit; after ``aclose`` no
sandbox, task or descriptor of it is left.
Leaves to http: requests, statuses, authentication; to backends: how a sandbox is confined.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sandboxd.protocol import OutputLimits

import interpreter
from interpreter.backends.base import Backend, BackendUnavailable, SandboxId, Stats
from interpreter.egress.ways import ASK_S, Ways
from interpreter.errors import (
    ExecutionNotFound,
    KernelNotFound,
    ServiceError,
    ShuttingDown,
    TooManyExecutions,
    TooManySessions,
)
from interpreter.executions.execution import Execution
from interpreter.executions.kernel_stops import KernelStops
from interpreter.executions.model import Answer, ExecRequest
from interpreter.executions.recorder import Recorder
from interpreter.executions.run import RunConfig
from interpreter.executions.runner import Runner
from interpreter.executions.spool import make_empty
from interpreter.executions.store import Store
from interpreter.files.service import Files
from interpreter.health import Health
from interpreter.keys import KernelKey, Key, check_name
from interpreter.link.connection import LinkLimits
from interpreter.metrics import Metrics, Now
from interpreter.recovery import boot_id, recover
from interpreter.removal import Removal, all_finished
from interpreter.sandboxes import listings, reaper, spares
from interpreter.sandboxes.asking import ask
from interpreter.sandboxes.kernels import Kernels
from interpreter.sandboxes.live import Live
from interpreter.sandboxes.manager import Manager
from interpreter.sandboxes.starting import SandboxConfig
from interpreter.sandboxes.table import Table
from interpreter.scopes.renaming import can_rename_new
from interpreter.scopes.root import DataRoot, DataRootError
from interpreter.scopes.uids import Ids
from interpreter.service_config import ServiceConfig
from interpreter.statefile import RecordsError
from interpreter.tasks import Tasks, finish

log = logging.getLogger(__name__)

_T = TypeVar("_T")

REMOVE_S = 600.0
"""For removing the data of a scope, which may be millions of files."""
CLOSE_S = 10.0
KERNEL_STOP_S = 5.0
"""For a kernel's end beyond the grace, before its sandbox is ended instead."""


class Interpreter:
    """The service. Made, started, drained and closed by its owner, in one event loop."""

    def __init__(self, config: ServiceConfig, backend: Backend, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._backend = backend
        self._clock = clock
        own = os.geteuid() != 0 or backend.single_tenant
        ids = Ids(own=own, uid=config.uid, gid=config.gid, base=config.uid_base)
        quota, apart = config.quota_mib, config.quota_mib is not None and backend.is_apart()
        self._data = DataRoot(config.data_root, ids, backend.single_tenant, config.link_dir, quota, apart)
        self._table = Table(limit=config.max_sessions, idle_s=config.idle_ttl_s)
        self._kernels = Kernels(max_queue=config.max_queue, max_kernels=config.max_kernels)
        self._outputs = config.data_root / ".outputs"
        self._store = Store(keep_s=config.result_ttl_s, folder=self._outputs, spill=config.spill_bytes)
        self._recorder = Recorder(
            self._data.records, self._kernels, config.data_root, keep_s=config.result_ttl_s, clock=clock
        )
        self._plan = spares.Plan(
            limit=config.pool if backend.spares else 0,
            idle_s=config.idle_ttl_s,
            unseen=not backend.single_tenant and config.quota_mib is None,  # where that is mounted, it stays mounted
        )
        self.metrics = Metrics(version=interpreter.__version__, backend=backend.name, now=self._now)
        sandboxes = SandboxConfig(
            limits=config.limits,
            link=LinkLimits.of(output_bytes=config.output_bytes, result_bytes=config.result_bytes),
            environment=config.environment,
            start_s=config.start_timeout_s,
        )
        self._ways = Ways(
            config.egress,
            root=config.data_root,
            ask=lambda code: ask(backend, self._data, sandboxes, code, within_s=ASK_S),
            on_denied=self._denied,
            metrics=self.metrics,
        )
        self._manager = Manager(
            backend,
            self._data,
            self._table,
            self._kernels,
            sandboxes,
            metrics=self.metrics,
            ways=self._ways,
            plan=self._plan,
            clock=clock,
        )
        self.files = Files(self._data, self._warmed)
        output = OutputLimits(text=config.output_bytes, results=config.result_bytes, spill=config.spill_bytes)
        self._runner = Runner(
            self._table,
            self._kernels,
            self._manager,
            self._store,
            RunConfig(
                grace_s=config.grace_s, output=output, kernel_start_s=config.start_timeout_s, network=config.network
            ),
            recorder=self._recorder,
            metrics=self.metrics,
            store_files=self.files.store,
            clock=clock,
        )
        self._removal = Removal(
            self._table, self._kernels, self._manager, self._runner, self._store, self._recorder, self._data, self._plan
        )
        self._stops = KernelStops(
            self._kernels,
            self._manager,
            self._runner,
            delete_s=config.grace_s + KERNEL_STOP_S,
            restart_s=config.grace_s + config.start_timeout_s,
        )
        self.released = 0
        """How many sandboxes go on without this service."""
        self._tasks = Tasks()
        self._draining = False
        self._health = Health(backend, self._data.trouble, clock=clock)
        self.notices: list[str] = []
        """What the start found and went on without, for the operator."""
        self.warnings: list[str] = []
        """What ``start`` returned."""

    async def start(self) -> list[str]:
        """Lock the data root, check the backend, take over what an earlier service left or remove it, begin reaping; return
        warnings for the operator.

        Raises DataRootError (interpreter.scopes.root; a locked one names the other service's pid), BackendUnavailable
        (backends.base). A start that failed has freed everything.
        """
        await finish(asyncio.to_thread(self._data.open), within_s=REMOVE_S)
        try:
            self.notices = await asyncio.to_thread(self._data.records.open, boot=boot_id(), now=self._clock())
            await asyncio.to_thread(self._recorder.sweep)
            self.notices += await asyncio.to_thread(make_empty, self._outputs)
            warnings = await self._checked()
            await self._ways.start()
            await recover(
                self._backend,
                self._data,
                self._recorder,
                self._manager,
                self._runner,
                text_limit=self._config.output_bytes,
                clock=self._clock,
            )
            self.notices += self._data.volumes.notices
        except BaseException as error:
            await self._ways.aclose()
            self._data.close()
            if isinstance(error, RecordsError):
                raise DataRootError(str(error)) from error
            raise
        if self._config.pool and not await asyncio.to_thread(self._can_spare):
            self._plan.limit = 0
            warnings.append(
                "SANDBOX_POOL is ignored: with this backend or on this file system, a directory in use cannot get its name later."
            )
        await self._ways.learn()
        self._tasks.start(self._recorder.run(), name="recorder")
        self._tasks.start(reaper.run(self._table, self._manager, self._clock), name="reaper")
        if self._data.volumes.active:
            self._tasks.start(reaper.unmount(self._table, self._data.volumes), name="unmount")
        if self._plan.limit:
            self._plan.begin(self._clock())
            self._manager.changed.set()
            making = spares.run(self._plan, self._table, self._manager, self._clock)
            self._tasks.start(making, name="spares")
        self.warnings = warnings
        return list(warnings)

    async def _checked(self) -> list[str]:
        """Return the backend's warnings. Raises BackendUnavailable, but not where the disk is what it lacks: what runs is taken
        over all the same."""
        try:
            warnings = await self._backend.check()
            self.notices += self._backend.notices()
            return warnings
        except BackendUnavailable as error:
            short = await asyncio.to_thread(self._data.trouble)
            if short is None or short not in str(error):
                raise
            self.notices.append(f"no new sandbox can be started: {short}")
            return []

    async def drain(self) -> None:
        """Take no new work (``shutting_down``) and wait for what runs, at most ``drain_timeout_s``."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_timeout_s):
                await all_finished(self._store.active())

    async def release(self) -> None:
        """Let go of what runs, for the next service on this data root, and close all that is ours. May be called twice.

        Where sandboxes cannot outlive the service, as ``aclose``.
        """
        if not self._backend.adopts:
            await self.aclose()
            return
        self._draining = True
        await self._runner.release(within_s=CLOSE_S)
        self.released += await self._manager.release()
        await self._close()

    async def aclose(self) -> None:
        """End everything: executions, sandboxes, tasks, the lock, the backend. May be called twice, and after ``release``."""
        self._draining = True
        active = self._store.active()
        for execution in active:
            self._runner.end(execution, "deleted")
        await self._manager.aclose()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await all_finished(active)
        await self._runner.aclose(within_s=CLOSE_S)
        await self._close()

    async def _close(self) -> None:
        await self.files.aclose()
        await self._tasks.aclose(within_s=CLOSE_S)
        await self._recorder.aclose()
        await self._ways.aclose()
        await self._backend.aclose()
        await asyncio.to_thread(self._data.close)

    def submit(self, request: ExecRequest) -> Execution:
        """Begin to run ``request`` and return its execution, or the first one with the same ``execution_id``.

        Raises ServiceError at once where it cannot be taken; nothing waits here. Names are checked here, once more.
        """
        Key.of(request.scope, request.session)
        check_name("context", request.context)
        if request.execution_id is not None:
            check_name("execution_id", request.execution_id)
        if (first := self._store.known(request, self._clock()) or self._kept(request)) is not None:
            return first
        if self._draining:
            raise ShuttingDown("The service is stopping and takes no new work.", retry_after_s=5.0)
        if self._store.active_count() >= self._config.max_concurrent:
            raise TooManyExecutions(
                f"{self._config.max_concurrent} executions are queued or running, which is the limit.",
                retry_after_s=1.0,
            )
        return self._runner.begin(request)

    def warm(self, scope: str, session: str | None) -> None:
        """Begin to start the sandbox of a session that will be used soon. To be called before its directory is made: a spare
        becomes the sandbox of a new session only.

        Never waits and never fails: where there is no room, or it cannot start, the first execution says so.
        """
        key = Key.of(scope, session)
        if self._draining:
            return
        with contextlib.suppress(TooManySessions):
            self._table.enter(key, self._clock())
            try:
                self._manager.warm(key)
            finally:
                self._table.leave(key, self._clock())

    async def _warmed(self, key: Key) -> None:
        self.warm(*key)
        await self._manager.given(key)

    def spares(self) -> dict[str, int]:
        """Return how many spare sandboxes there are, and how many new sessions got one or did not: there, taken, missed."""
        return {"there": len(self._table.spares()), "taken": self._plan.taken, "missed": self._plan.missed}

    async def settle(self, execution: Execution) -> Answer:
        """Return the answer of ``execution``. Raises ServiceError if it never ran. Cancelling this wait cancels nothing."""
        return await execution.finished()

    def execution(self, execution_id: str, scope: str | None) -> Execution:
        """Return a kept execution. scope: needed for ids that callers made. Raises ExecutionNotFound."""
        try:
            return self._store.get(execution_id, scope, self._clock())
        except ExecutionNotFound:
            if (kept := self._recorder.find(execution_id, scope)) is None:
                raise
        self._store.restore(kept)
        return kept

    async def recall(self, execution_id: str | None, scope: str | None) -> None:
        """Have a long answer that is kept on disk in memory, so that ``submit`` and ``execution`` read no file for it."""
        if execution_id is None or self._store.has(execution_id, scope, self._clock()):
            return
        kept = await self._recorder.recall(execution_id, scope)
        if kept is not None and not self._store.has(execution_id, scope, self._clock()):
            self._store.restore(kept)

    def _kept(self, request: ExecRequest) -> Execution | None:
        """Return the first execution of the same request and id if it is not in memory any more. Raises ExecutionIdTaken."""
        if request.execution_id is None or (kept := self._recorder.find(request.execution_id, request.scope)) is None:
            return None
        self._store.restore(kept)
        return self._store.known(request, self._clock())

    def cancel(self, execution: Execution) -> None:
        """End it: a queued one never runs, a running one is interrupted or killed. Nothing if it has finished."""
        self._runner.end(execution, "cancel")

    async def input(self, execution: Execution, text: str) -> None:
        """Give an execution what it reads. Raises NoInputRequested where it has not asked."""
        await self._runner.input(execution, text)

    async def scopes(self) -> list[dict[str, Any]]:
        """Return the entries of ``GET /v1/scopes``: scopes that have data or a sandbox."""
        kept = await asyncio.to_thread(self._data.scopes)
        scopes = sorted({row.key.scope for row in self._table.rows()}.union(kept))
        usages = await asyncio.to_thread(lambda: [self._data.volumes.usage(scope) for scope in scopes])
        return [listings.scope(*each, self._ways.shown(each[0])) for each in zip(scopes, usages, strict=True)]

    def sandboxes(self) -> int:
        """Return how many sandboxes there are."""
        return len(self._table.rows())

    async def sessions(self, scope: str) -> list[dict[str, Any]]:
        """Return the entries of ``GET /v1/scopes/{scope}/sessions``: the sandboxes of ``scope``."""
        check_name("scope", scope)
        lives = [self._manager.get(row.key) for row in self._table.rows(scope)]
        there = [live for live in lives if live is not None]
        stats = await asyncio.to_thread(lambda: [live.stats() for live in there])  # several files each
        return [self._session(live, memory) for live, memory in zip(there, stats, strict=True)]

    def kernels(self, scope: str, session: str | None) -> list[dict[str, Any]]:
        """Return the entries of ``GET /v1/kernels/{scope}``: the kernels that run, or are about to."""
        return [listings.kernel(kernel) for kernel in self._kernels.of(Key.of(scope, session))]

    async def interrupt_kernel(self, scope: str, session: str | None, language: str, context: str) -> dict[str, Any]:
        """Interrupt what runs in a kernel: ``{"interrupted": bool}``. Raises KernelNotFound."""
        key, name = Key.of(scope, session), KernelKey(language, context)
        kernel = self._kernels.get(key, name)
        if kernel is None or not (kernel.alive or kernel.wanted):
            raise KernelNotFound("No such kernel is running.")
        running = self._runner.running(key, name)
        if running is not None:
            self._runner.end(running, "cancel")
        return {"interrupted": running is not None}

    async def restart_kernel(self, scope: str, session: str | None, language: str, context: str) -> dict[str, Any]:
        """Restart a kernel, ending what runs and waits in it (``cancelled``): ``{"restarted": true}``.

        Raises KernelNotFound.
        """
        key, name = Key.of(scope, session), KernelKey(language, context)
        if not await self._shielded(self._stops.stop(key, name, "restart"), "restart kernel"):
            raise KernelNotFound("No such kernel is running.")
        return {"restarted": True}

    async def delete_kernel(self, scope: str, session: str | None, language: str, context: str) -> dict[str, Any]:
        """End a kernel and what runs and waits in it (``cancelled``): ``{"removed": 0 or 1, "purged": False}``."""
        key, name = Key.of(scope, session), KernelKey(language, context)
        existed = await self._shielded(self._stops.stop(key, name, "deleted"), "delete kernel")
        return {"removed": int(existed), "purged": False}

    async def remove_session(
        self, scope: str, session: str, *, purge: bool = False, force: bool = False
    ) -> dict[str, Any]:
        """Remove the session's sandbox, and its directory if ``purge``: ``{"removed": n, "purged": bool}``.

        Raises SessionBusy while something is queued or running there, unless ``force``.
        """
        key = Key.of(scope, check_name("session", session))
        return await self._shielded(self._removal.remove([key], purge=purge, force=force), "remove session")

    async def remove_sandbox(self, scope: str, *, force: bool = False) -> dict[str, Any]:
        """Remove the session-less sandbox; otherwise as ``remove_session``."""
        return await self._shielded(
            self._removal.remove([Key.of(scope, None)], purge=False, force=force), "remove sandbox"
        )

    async def remove_scope(self, scope: str, *, purge: bool = False, force: bool = False) -> dict[str, Any]:
        """Remove all sandboxes of ``scope``, and all its data if ``purge``; otherwise as ``remove_session``."""
        check_name("scope", scope)
        keys = sorted({*self._table.keys(scope), *self._kernels.keys(scope)}, key=lambda key: key.session or "")
        return await self._shielded(self._removal.remove(keys, purge=purge, force=force, scope=scope), "remove scope")

    async def health(self) -> tuple[bool, dict[str, Any]]:
        """Return whether sandboxes can be served, and ``{"status", "runtime"}``, with ``message`` if not."""
        return await self._health.ask()

    def _denied(self, sandbox: SandboxId, host: str, port: int, reason: str) -> None:
        self._runner.denied(sandbox, host, port, reason)

    def _now(self) -> Now:
        return Now(
            executions=self._store.phases(),
            sandboxes=self._table.states(),
            kernels=self._kernels.counts(),
            spares_taken=self._plan.taken,
            spares_missed=self._plan.missed,
            spares_wanted=self._plan.limit,
            link_bytes=self._manager.received,
            records_failed=self._data.records.failures,
            records_failing=self._recorder.failing,
            removals_hanging=self._backend.hanging(),
        )

    def _can_spare(self) -> bool:
        return self._backend.spares and can_rename_new(self._data.path)

    def _session(self, live: Live, stats: Stats | None) -> dict[str, Any]:
        leased, idle_s = self._table.leased(live.row.key), self._clock() - live.row.used_at
        kernels, name = self._kernels.of(live.row.key), self._backend.name
        expires_s = None if leased else self._config.idle_ttl_s
        return listings.sandbox(live, stats, kernels, backend=name, leased=leased, idle_s=idle_s, expires_s=expires_s)

    async def _shielded(self, work: Coroutine[Any, Any, _T], name: str) -> _T:
        """Do ``work`` to its end also when its caller goes away."""
        return await asyncio.shield(self._tasks.start(work, name=name, expected=ServiceError))
