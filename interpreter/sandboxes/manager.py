"""Acts on the table: starts sandboxes, watches them, stops them.

Promises: one start for each key, shared by all who wait for it; a caller that is cancelled fails no other. A sandbox that ends
by itself is noticed at once (its process, or its link), and whatever ran in it learns why. A new sandbox of a key begins
only after the one before it is gone and after a purge of its data. When ``aclose`` returns, nothing of any sandbox is left;
after ``release`` those that work go on, and the next service adopts them.
Leaves to executions: deadlines of runs. To table.py and kernels.py: all decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from sandboxd.protocol import KernelGone, Reason

from interpreter.backends.base import (
    Backend,
    BackendError,
    Sandbox,
    SandboxId,
)
from interpreter.egress.ways import Ways
from interpreter.errors import (
    InternalError,
    ServiceError,
    ShuttingDown,
    StorageFailed,
)
from interpreter.keys import KernelKey, Key
from interpreter.link.errors import LinkError
from interpreter.metrics import Metrics, StartKind
from interpreter.records import SandboxRecord
from interpreter.sandboxes.kernels import Kernels
from interpreter.sandboxes.live import Live, SandboxStopped, fields, unless
from interpreter.sandboxes.spares import Plan
from interpreter.sandboxes.starting import PREPARE_S, SandboxConfig, Starter, with_kernel
from interpreter.sandboxes.table import Row, Table
from interpreter.scopes.root import DataRoot
from interpreter.tasks import Tasks, finish

log = logging.getLogger(__name__)

STOP_S = 20.0
"""For all of a stop, the backend's own 5 s and a second try included."""
EXIT_S = 0.5
"""A sandbox whose link has ended has this long to end by itself, so that its exit tells why."""


class Manager:
    """The sandboxes of the service."""

    def __init__(
        self,
        backend: Backend,
        data: DataRoot,
        table: Table,
        kernels: Kernels,
        config: SandboxConfig,
        *,
        metrics: Metrics,
        ways: Ways,
        plan: Plan | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._data = data
        self._table = table
        self._kernels = kernels
        self._clock = clock
        self._tasks = Tasks()
        self._plan = plan or Plan()
        self._metrics = metrics
        self._ways = ways
        self._received = 0  # from sandboxes that are gone
        self.changed = asyncio.Event()
        """Set whenever a spare may be missing, or room for one may have come."""
        self._lives: dict[Key, Live] = {}
        self._spares: dict[SandboxId, Live] = {}
        self._leaving: set[Live] = set()
        self._holds: dict[asyncio.Event, frozenset[Key] | str] = {}
        self._closed = False
        self._starter = Starter(
            backend,
            data,
            config,
            on_kernel_gone=self._kernel_gone,
            on_writing=lambda live: table.used(live.row, clock()),
            ways=ways,
            tasks=self._tasks,
            clock=clock,
        )

    @property
    def closed(self) -> bool:
        """Whether it starts nothing any more."""
        return self._closed

    @property
    def received(self) -> int:
        """Bytes of frames from all sandboxes there have been."""
        lives = [*self._spares.values(), *self._lives.values(), *self._leaving]
        return self._received + sum(live.connection.received for live in lives if live.hello is not None)

    def get(self, key: Key) -> Live | None:
        """Return the sandbox of ``key``, starting or ready."""
        return self._lives.get(key)

    def live(self, row: Row) -> Live | None:
        """Return the sandbox of ``row``, a spare too; None once it is leaving."""
        live = self._spares.get(row.id) or self._lives.get(row.key)
        return live if live is not None and live.row is row else None

    def warm(self, key: Key) -> None:
        """Begin to start the sandbox of the leased ``key``, if there is none: how that goes is for whoever asks for it."""
        if not self._closed and key not in self._lives:
            self._begin(key)

    async def given(self, key: Key) -> None:
        """Wait until a spare that is being given to ``key`` has its directories, so that nobody makes them before."""
        live = self._lives.get(key)
        if live is not None and live.giving is not None:
            await asyncio.wait([live.giving], timeout=STOP_S)

    async def ready(self, key: Key) -> Live:
        """Return a working sandbox of the leased ``key``, starting one at need. Raises ServiceError."""
        while True:
            if self._closed:
                raise ShuttingDown("The service is stopping.")
            live = self._lives.get(key) or self._begin(key)
            try:
                await asyncio.shield(live.started)
            except SandboxStopped:
                continue
            if live.usable:
                return live
            await live.over.wait()  # Its link has ended; in a moment it is known why, and it is nobody's any more.

    def adopt(self, record: SandboxRecord, sandbox: Sandbox, expected: Mapping[str, int]) -> Live:
        """Take over a sandbox of an earlier service. expected: see ``Live``. One that does not dial in time is ended."""
        live = Live(self._table.adopt(Key(record.scope, record.session), sandbox.id, self._clock()), expected)
        live.sandbox = sandbox
        live.started_at = datetime.fromtimestamp(record.started_at, UTC)
        return self._live(live)

    def stop(self, live: Live, reason: Reason) -> None:
        """Begin to end ``live``: from this call on it is nobody's sandbox, and what runs in it learns ``reason``."""
        if live.released or not self._table.take(live.row):
            return
        if live.row.spare:
            del self._spares[live.row.id]
        else:
            del self._lives[live.row.key]
        self._leaving.add(live)
        self.changed.set()
        with contextlib.suppress(StorageFailed):  # then the next service finds it, without a process
            self._data.records.sandbox_leaves(live.row.id)
        self._kernels.sandbox_gone(live.row.key, live.row.id, reason)
        live.end(reason)

    async def gone(self, lives: Iterable[Live]) -> None:
        """Wait until nothing of ``lives`` is left."""
        for live in lives:
            await live.gone.wait()

    @asynccontextmanager
    async def held(self, keys: frozenset[Key] | str) -> AsyncIterator[None]:
        """Keep new sandboxes of ``keys``, or of all keys of a scope, from starting; those leaving are gone on entry."""
        hold = asyncio.Event()
        self._holds[hold] = keys
        try:
            await self.gone([live for live in self._leaving if _held(live.row.key, keys)])
            yield
        finally:
            del self._holds[hold]
            hold.set()

    async def aclose(self) -> None:
        """Stop all sandboxes and wait until they are gone. May be called twice."""
        self._closed = True
        for live in [*self._spares.values(), *self._lives.values()]:
            self.stop(live, "killed")
        await self.gone(list(self._leaving))
        await self._tasks.aclose(within_s=STOP_S)

    async def release(self) -> int:
        """Let go of all sandboxes that work, and return how many; those that are starting and spares are ended. May be called
        twice.

        One of an earlier service that has not dialled yet, or says nothing, is let go of too: it is the next one's to judge.
        """
        self._closed = True
        released = 0
        for live in [*self._spares.values(), *self._lives.values()]:
            if (live.usable and live.started.done() and not live.row.spare) or live.adopting:
                released += not live.released
                live.released = True
            else:
                self.stop(live, "killed")
        await self.gone(list(self._leaving))
        await self._tasks.aclose(within_s=STOP_S)
        return released

    def begin_spare(self, scope: str | None) -> Live:
        """Begin to start a sandbox for nobody yet; see Table."""
        return self._live(Live(self._table.begin_spare(scope, SandboxId(secrets.token_hex(8)), self._clock())))

    def _begin(self, key: Key) -> Live:
        now, unseen, live = self._clock(), False, None
        self.changed.set()
        if self._plan.limit and key.session is not None and self._data.is_new(key):
            unseen = self._data.is_new(Key(key.scope, None))
            live = self._given(key, unseen=unseen)
            self._plan.used(key.scope, now, unseen=unseen)
        live = live or self._live(Live(self._table.begin(key, SandboxId(secrets.token_hex(8)), now)))
        for row in self._table.surplus():
            self.stop(self._spares[row.id], "idle")
        return live

    def _given(self, key: Key, *, unseen: bool) -> Live | None:
        """Begin to give a spare to ``key``, a new session; None if there is none for it."""
        row = self._table.fitting(key, unseen=unseen)
        if row is None:
            self._plan.missed += 1
            return None
        self._table.claim(row, key, self._clock())
        live = self._lives[key] = self._spares.pop(row.id)
        live.given(self._tasks.start(self._give(live, unseen=unseen), name=f"give {row.id}"))
        self._plan.taken += 1
        return live

    async def _give(self, live: Live, *, unseen: bool) -> None:
        """Make the directories of a spare those of its session. Where they are there already, whoever waits gets another one."""
        key = live.row.key
        try:
            await unless(live.over, self._clear(key))
            await self._ways.give(live.row.id, key)
            await finish(asyncio.to_thread(self._data.give_spare, live.row.id, key, unseen=unseen), within_s=PREPARE_S)
            if live.over.is_set():
                raise SandboxStopped  # its record is gone already, and must not come again
            # Not before: what has a record is adopted, and its directory has to be the session's by then.
            self._data.records.sandbox_begins(
                SandboxRecord(live.row.id, key.scope, key.session, live.started_at.timestamp())
            )
        except (SandboxStopped, ServiceError, OSError) as error:
            log.warning("a spare could not be given away", extra={**fields(live), "error": type(error).__name__})
            self.stop(live, "killed")
        else:
            self._table.ready(live.row, self._clock())
            self.changed.set()
            if not live.started.done():
                live.started.set_result(None)
            log.info("spare given away", extra=fields(live))

    def _live(self, live: Live) -> Live:
        if live.row.spare:
            self._spares[live.row.id] = live
        else:
            self._lives[live.row.key] = live
        self._tasks.start(self._life(live), name=f"sandbox {live.row.id}")
        return live

    async def _life(self, live: Live) -> None:
        """All of one sandbox, from waiting for its predecessor to the last of its cleanup."""
        try:
            await unless(live.over, self._clear(live.row.key))
            began = self._clock()
            await unless(live.over, self._starter.start(live) if live.expected is None else self._adopt(live))
            if live.over.is_set():
                raise SandboxStopped  # Both at once: it works, and nobody wants it any more.
            self._table.ready(live.row, self._clock())
            live.started.set_result(None)
            self.changed.set()
            if live.spare is not None:
                self._tasks.start(with_kernel(live), name=f"kernel of {live.row.id}", expected=LinkError)
            what = "spare" if live.spare is not None else "sandbox"
            what += " started" if live.expected is None else " adopted"
            took_s = self._clock() - began
            kind: StartKind = "adopted" if live.expected is not None else "session" if live.spare is None else "spare"
            self._metrics.sandbox_started(kind, took_s)
            log.info(what, extra={**fields(live), "elapsed_ms": round(took_s * 1000)})
            self.stop(live, await unless(live.over, _watch(live)))
        except SandboxStopped:
            pass
        except ServiceError as error:
            self._metrics.sandbox_failed(error.code)
            if not live.started.done():
                live.started.set_exception(error if live.expected is None else SandboxStopped())
                live.started.exception()
            log.warning(
                "sandbox did not start", extra={**fields(live), "error": type(error.__cause__ or error).__name__}
            )
        except Exception as error:
            if not live.started.done():
                self._metrics.sandbox_failed(InternalError.code)
                live.started.set_exception(InternalError("The sandbox could not be started, for a fault of ours."))
                live.started.exception()
            log.error("a sandbox's task failed", extra=fields(live), exc_info=error)
        finally:
            if live.released:
                if live.hello is not None:
                    await finish(live.connection.wait_closed(), within_s=STOP_S)
            else:
                self.stop(live, "crash" if live.exit is None else live.why(live.exit))
                await finish(self._cleanup(live), within_s=STOP_S)

    async def _clear(self, key: Key) -> None:
        """Wait until a new sandbox of ``key`` may begin."""
        await self.gone([live for live in self._leaving if live.row.key == key])
        if self._table.room() < 0:
            await self.gone([live for live in self._leaving if live.row.spare])
        while holds := [hold for hold, keys in self._holds.items() if _held(key, keys)]:
            await holds[0].wait()

    async def _adopt(self, live: Live) -> None:
        await self._starter.adopt(live)
        alive = [] if live.hello is None else live.hello.alive
        self._kernels.found(live.row.key, live.row.id, [KernelKey(kernel.language, kernel.context) for kernel in alive])

    def _kernel_gone(self, live: Live, gone: KernelGone) -> None:
        kernel = KernelKey(gone.language, gone.context)
        reason: Reason = "oom" if gone.reason in ("killed", "crash") and live.oom_news() else gone.reason
        self._kernels.gone(live.row.key, kernel, live.row.id, reason)
        if gone.sandbox_unsafe:
            self.stop(live, "killed")

    async def _cleanup(self, live: Live) -> None:
        """End all of ``live``, from outside."""
        self._ways.close(live.row.id)  # first: nothing gets out of one that cannot be ended
        try:
            if live.sandbox is not None:
                await _stopped(live)
            if live.hello is not None:
                await live.connection.wait_closed()
            await asyncio.to_thread(self._data.drop_run_dir, live.row.id)
            if live.giving is not None:
                await asyncio.wait([live.giving])
            if live.spare is not None:
                await asyncio.to_thread(self._data.drop_spare, live.row.id, live.spare.scope or None)
        finally:
            self._leaving.discard(live)
            if live.hello is not None:
                self._received += live.connection.received
            self._table.gone(live.row)
            self._metrics.sandbox_ended(live.reason or "crash")
            live.gone.set()
            self.changed.set()
            lived_ms = round((datetime.now(UTC) - live.started_at).total_seconds() * 1000)
            log.info(
                "spare ended" if live.row.spare else "sandbox ended",
                extra={**fields(live), "reason": live.reason, "elapsed_ms": lived_ms},
            )


async def _watch(live: Live) -> Reason:
    """Return why ``live`` ended by itself, once its process or its link has."""
    if live.sandbox is None:
        raise ValueError("watched before it was started")
    loop = asyncio.get_running_loop()
    process = loop.create_task(live.sandbox.wait(), name="exit")
    link = loop.create_task(live.connection.run(), name="link")
    try:
        await asyncio.wait([process, link], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([process], timeout=EXIT_S)
        return live.why(process.result() if process.done() else None)
    finally:
        for task in (process, link):
            task.cancel()
        await asyncio.wait([process, link])


async def _stopped(live: Live) -> None:
    for last in (False, True):
        try:
            if live.sandbox is not None:
                await live.sandbox.stop()
            return
        except BackendError:
            log.error("a sandbox could not be ended", extra=fields(live), exc_info=last)


def _held(key: Key, keys: frozenset[Key] | str) -> bool:
    return key.scope == keys if isinstance(keys, str) else key in keys
