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
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from sandboxd.protocol import KernelGone, ProtocolError, Reason

from interpreter import shortage
from interpreter.backends.base import (
    Backend,
    BackendError,
    BackendUnavailable,
    Limits,
    Sandbox,
    SandboxId,
    SandboxSpec,
)
from interpreter.errors import (
    InternalError,
    RuntimeUnavailable,
    SandboxStartFailed,
    ServiceError,
    ShuttingDown,
    StorageFailed,
)
from interpreter.keys import KernelKey, Key
from interpreter.link.connection import Connection, LinkLimits
from interpreter.link.errors import LinkError
from interpreter.link.listener import Listener
from interpreter.records import SandboxRecord
from interpreter.sandboxes.kernels import Kernels
from interpreter.sandboxes.live import Live, SandboxStopped
from interpreter.sandboxes.table import Table
from interpreter.scopes.root import DataRoot
from interpreter.tasks import Tasks, finish

log = logging.getLogger(__name__)

_T = TypeVar("_T")

STOP_S = 20.0
"""For all of a stop, the backend's own 5 s and a second try included."""
PREPARE_S = 120.0
"""For making directories, and taking over data that belongs to another uid."""
ADOPT_S = 15.0
"""For a sandbox of an earlier service to dial: it tries several times a second."""
EXIT_S = 0.5
"""A sandbox whose link has ended has this long to end by itself, so that its exit tells why."""


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """What every sandbox gets. start_s: from the start to the hello. starts: how many may start at once; the others wait."""

    limits: Limits
    link: LinkLimits
    environment: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 30.0
    starts: int = 1 + (os.cpu_count() or 1)
    """A start takes a fifth of a second of a core. 200 at once on two cores took each other's time, and half of them were told
    after 30 s that they had been too slow; in turns the first has its answer after 0.5 s and the last one no later."""


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._data = data
        self._table = table
        self._kernels = kernels
        self._config = config
        self._clock = clock
        self._tasks = Tasks()
        self._lives: dict[Key, Live] = {}
        self._leaving: set[Live] = set()
        self._holds: dict[asyncio.Event, frozenset[Key] | str] = {}
        self._closed = False
        self._starts = asyncio.Semaphore(config.starts)

    def get(self, key: Key) -> Live | None:
        """Return the sandbox of ``key``, starting or ready."""
        return self._lives.get(key)

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
        del self._lives[live.row.key]
        self._leaving.add(live)
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
        for live in list(self._lives.values()):
            self.stop(live, "killed")
        await self.gone(list(self._leaving))
        await self._tasks.aclose(within_s=STOP_S)

    async def release(self) -> int:
        """Let go of all sandboxes that work, and return how many; those that are starting are ended. May be called twice.

        One of an earlier service that has not dialled yet, or says nothing, is let go of too: it is the next one's to judge.
        """
        self._closed = True
        released = 0
        for live in list(self._lives.values()):
            if live.usable or live.adopting:
                released += not live.released
                live.released = True
            else:
                self.stop(live, "killed")
        await self.gone(list(self._leaving))
        await self._tasks.aclose(within_s=STOP_S)
        return released

    def _begin(self, key: Key) -> Live:
        return self._live(Live(self._table.begin(key, SandboxId(secrets.token_hex(8)), self._clock())))

    def _live(self, live: Live) -> Live:
        self._lives[live.row.key] = live
        self._tasks.start(self._life(live), name=f"sandbox {live.row.id}")
        return live

    async def _life(self, live: Live) -> None:
        """All of one sandbox, from waiting for its predecessor to the last of its cleanup."""
        try:
            await _unless(live.over, self._clear(live.row.key))
            began = self._clock()
            await _unless(live.over, self._start(live) if live.expected is None else self._adopt(live))
            if live.over.is_set():
                raise SandboxStopped  # Both at once: it works, and nobody wants it any more.
            self._table.ready(live.row, self._clock())
            live.started.set_result(None)
            what = "sandbox started" if live.expected is None else "sandbox adopted"
            log.info(what, extra={**_fields(live), "elapsed_ms": round((self._clock() - began) * 1000)})
            self.stop(live, await _unless(live.over, _watch(live)))
        except SandboxStopped:
            pass
        except ServiceError as error:
            if not live.started.done():
                live.started.set_exception(error if live.expected is None else SandboxStopped())
                live.started.exception()
            log.warning(
                "sandbox did not start", extra={**_fields(live), "error": type(error.__cause__ or error).__name__}
            )
        except Exception as error:
            if not live.started.done():
                live.started.set_exception(InternalError("The sandbox could not be started, for a fault of ours."))
                live.started.exception()
            log.error("a sandbox's task failed", extra=_fields(live), exc_info=error)
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
        while holds := [hold for hold, keys in self._holds.items() if _held(key, keys)]:
            await holds[0].wait()

    async def _start(self, live: Live) -> None:
        key, sandbox_id = live.row.key, live.row.id
        try:
            place = await finish(asyncio.to_thread(self._data.prepare, key), within_s=PREPARE_S)
            async with self._starts, asyncio.timeout(self._config.start_s):
                directory = await finish(asyncio.to_thread(self._data.run_dir, sandbox_id), within_s=PREPARE_S)
                listener = Listener(directory, uid=place.uid, gid=place.gid)
                try:
                    self._data.records.sandbox_begins(
                        SandboxRecord(sandbox_id, key.scope, key.session, live.started_at.timestamp())
                    )
                    spec = SandboxSpec(
                        id=sandbox_id,
                        uid=place.uid,
                        gid=place.gid,
                        workspace=place.workspace,
                        user=place.user,
                        link_dir=directory,
                        limits=self._config.limits,
                        environment=self._config.environment,
                    )
                    live.sandbox = await self._backend.start(spec)
                    await self._greet(live, listener)
                finally:
                    listener.close()
        except BackendUnavailable as error:
            raise RuntimeUnavailable(str(error), retry_after_s=5.0) from error
        except BackendError as error:
            raise SandboxStartFailed(str(error), retry_after_s=1.0) from error
        except TimeoutError as error:
            raise SandboxStartFailed("The sandbox did not start in time.", retry_after_s=1.0) from error
        except (LinkError, ProtocolError) as error:
            raise SandboxStartFailed("The sandbox started and did not work.", retry_after_s=1.0) from error
        except OSError as error:
            cause = shortage.told(error.errno) or "the log of the service has the reason"
            raise SandboxStartFailed(f"The sandbox could not be started: {cause}.", retry_after_s=5.0) from error

    async def _adopt(self, live: Live) -> None:
        """Take the link of a sandbox that an earlier service started. Raises SandboxStartFailed."""
        try:
            place = await finish(asyncio.to_thread(self._data.prepare, live.row.key), within_s=PREPARE_S)
            async with asyncio.timeout(ADOPT_S):
                listener = Listener(self._data.found_run_dir(live.row.id), uid=place.uid, gid=place.gid)
                try:
                    await self._greet(live, listener)
                finally:
                    listener.close()
        except (OSError, TimeoutError, LinkError, ProtocolError) as error:
            raise SandboxStartFailed("A sandbox could not be taken over.", retry_after_s=1.0) from error
        live.oom_mark()
        hello = live.hello
        if hello is not None:
            self._kernels.found(
                live.row.key, live.row.id, [KernelKey(kernel.language, kernel.context) for kernel in hello.alive]
            )

    async def _greet(self, live: Live, listener: Listener) -> None:
        """Take the link of a started sandbox, or fail as soon as the sandbox has ended."""
        if live.sandbox is None:
            raise ValueError("greeted before it was started")
        ended = asyncio.get_running_loop().create_task(live.sandbox.wait(), name="exit while starting")
        dead = asyncio.Event()
        ended.add_done_callback(lambda _task: dead.set())
        try:
            await _unless(dead, self._connect(live, listener))
        except SandboxStopped as error:
            # The tenant's processes may have written it: only into our log, escaped and cut.
            live.exit = ended.result()
            log.warning("a starting sandbox ended", extra={**_fields(live), "said": ascii(live.exit.said[:1000])})
            # Which of our own sentences it is about, though, anybody may choose.
            cause = shortage.told_by(live.exit.said) or "the log of the service has what it said"
            raise SandboxStartFailed(f"The sandbox ended while it was starting: {cause}.", retry_after_s=1.0) from error
        finally:
            ended.cancel()
            await asyncio.wait([ended])

    async def _connect(self, live: Live, listener: Listener) -> None:
        accepted = await listener.accept(within_s=self._config.start_s)
        connection = await Connection.open(
            accepted,
            limits=self._config.link,
            on_kernel_gone=lambda gone: self._kernel_gone(live, gone),
            on_writing=lambda: self._table.used(live.row, self._clock()),
            clock=self._clock,
        )
        try:
            hello = await connection.hello(within_s=self._config.start_s)
        except BaseException:
            await connection.wait_closed()
            raise
        for known in hello.known:
            if (text_limit := (live.expected or {}).get(known.id)) is not None:
                live.resumed[known.id] = connection.adopt(known.id, text_limit)
            else:
                self._tasks.start(_disown(connection, known.id), name=f"disown {known.id}")
        live.connected(connection, hello)

    def _kernel_gone(self, live: Live, gone: KernelGone) -> None:
        kernel = KernelKey(gone.language, gone.context)
        reason: Reason = "oom" if gone.reason in ("killed", "crash") and live.oom_news() else gone.reason
        self._kernels.gone(live.row.key, kernel, live.row.id, reason)
        if gone.sandbox_unsafe:
            self.stop(live, "killed")

    async def _cleanup(self, live: Live) -> None:
        """End all of ``live``, from outside."""
        try:
            if live.sandbox is not None:
                await _stopped(live)
            if live.hello is not None:
                await live.connection.wait_closed()
            await asyncio.to_thread(self._data.drop_run_dir, live.row.id)
        finally:
            self._leaving.discard(live)
            self._table.gone(live.row)
            live.gone.set()
            lived_ms = round((datetime.now(UTC) - live.started_at).total_seconds() * 1000)
            log.info("sandbox ended", extra={**_fields(live), "reason": live.reason, "elapsed_ms": lived_ms})


async def _disown(connection: Connection, execution: str) -> None:
    """End an execution that nobody can ask for any more."""
    connection.settle([execution])
    with contextlib.suppress(LinkError):
        await connection.cancel(execution)


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
            log.error("a sandbox could not be ended", extra=_fields(live), exc_info=last)


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
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


def _held(key: Key, keys: frozenset[Key] | str) -> bool:
    return key.scope == keys if isinstance(keys, str) else key in keys


def _fields(live: Live) -> dict[str, object]:
    return {"scope": live.row.key.scope, "session": live.row.key.session, "sandbox": live.row.id}
