"""Starts one sandbox, or takes over one that an earlier service started: until its link has said hello.

Promises: what keeps it from working is an error for its caller; what is left of it then is in the ``Live``, whose owner cleans
up. A record is there before there is anything else of the sandbox; a spare has none.
Leaves to manager.py: when, for whom, and the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from sandboxd.protocol import KernelGone, ProtocolError

from interpreter import shortage
from interpreter.backends.base import Backend, BackendError, BackendUnavailable, Limits, SandboxSpec
from interpreter.egress.ways import Ways
from interpreter.errors import RuntimeUnavailable, SandboxStartFailed
from interpreter.link.connection import Connection, LinkLimits
from interpreter.link.errors import LinkError
from interpreter.link.listener import Listener
from interpreter.records import SandboxRecord
from interpreter.sandboxes.live import Live, SandboxStopped, fields, unless
from interpreter.scopes.root import DataRoot, Place
from interpreter.tasks import Tasks, finish

log = logging.getLogger(__name__)

PREPARE_S = 120.0
"""For making directories, and taking over data that belongs to another uid."""
ADOPT_S = 15.0
"""For a sandbox of an earlier service to dial: it tries several times a second."""
STARTS = 1 + (os.cpu_count() or 1)
"""At once. A start takes a fifth of a second of a core. 200 at once on two cores took each other's time, and half of them were
told after 30 s that they had been too slow; in turns the first has its answer after 0.5 s and the last one no later."""
KERNEL_S = 10.0
"""For a spare to say that its kernel is being made."""


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """What every sandbox gets. start_s: from the start to the hello. starts: how many may start at once; the others wait,
    ``turn_s`` at most.
    """

    limits: Limits
    link: LinkLimits
    environment: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 30.0
    turn_s: float = 120.0
    starts: int = STARTS


class Starter:
    """Starts sandboxes, so many at once.

    on_kernel_gone, on_writing: as of a Connection, for the sandbox that it is about. ways: out of each. tasks: own what is
    sent on the side.
    """

    def __init__(
        self,
        backend: Backend,
        data: DataRoot,
        config: SandboxConfig,
        *,
        on_kernel_gone: Callable[[Live, KernelGone], None],
        on_writing: Callable[[Live], None],
        ways: Ways,
        tasks: Tasks,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._data = data
        self._config = config
        self._on_kernel_gone = on_kernel_gone
        self._on_writing = on_writing
        self._ways = ways
        self._tasks = tasks
        self._clock = clock
        self._starts = asyncio.Semaphore(config.starts)

    async def start(self, live: Live) -> None:
        """Start it, and take its link. Raises ServiceError."""
        key, sandbox_id = live.row.key, live.row.id
        try:
            place = await finish(asyncio.to_thread(self._place, live), within_s=PREPARE_S)
            async with self._turn(), asyncio.timeout(self._config.start_s):
                directory = await finish(asyncio.to_thread(self._data.run_dir, sandbox_id), within_s=PREPARE_S)
                listener = Listener(directory, uid=place.uid, gid=place.gid)
                try:
                    if live.spare is None:  # which no later service adopts
                        self._data.records.sandbox_begins(
                            SandboxRecord(sandbox_id, key.scope, key.session, live.started_at.timestamp())
                        )
                    policy_of = None if live.spare is not None and not live.spare.scope else key
                    opening = self._tasks.start(
                        self._ways.open(sandbox_id, policy_of, directory), name=f"way out of {sandbox_id}"
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
                        network=self._ways.network,
                    )
                    live.sandbox = await self._backend.start(spec)
                    await self._greet(live, listener)
                    await asyncio.wait([opening])
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

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait until one more may start. Raises SandboxStartFailed."""
        try:
            async with asyncio.timeout(self._config.turn_s):
                await self._starts.acquire()
        except TimeoutError:
            raise SandboxStartFailed(
                f"So many sandboxes start that for {self._config.turn_s:g} s it was not this one's turn.",
                retry_after_s=self._config.start_s,
            ) from None
        try:
            yield
        finally:
            self._starts.release()

    def _place(self, live: Live) -> Place:
        if live.spare is None:
            return self._data.prepare(live.row.key)
        return self._data.prepare_spare(live.row.id, live.spare.scope or None)

    async def adopt(self, live: Live) -> None:
        """Take the link of a sandbox that an earlier service started. Raises SandboxStartFailed."""
        try:
            place = await finish(asyncio.to_thread(self._data.prepare, live.row.key), within_s=PREPARE_S)
            async with asyncio.timeout(ADOPT_S):
                directory = self._data.found_run_dir(live.row.id)
                await self._ways.open(live.row.id, live.row.key, directory)
                listener = Listener(directory, uid=place.uid, gid=place.gid)
                try:
                    await self._greet(live, listener)
                finally:
                    listener.close()
        except (OSError, TimeoutError, LinkError, ProtocolError) as error:
            raise SandboxStartFailed("A sandbox could not be taken over.", retry_after_s=1.0) from error
        live.oom_mark()

    async def _greet(self, live: Live, listener: Listener) -> None:
        """Take the link of a started sandbox, or fail as soon as the sandbox has ended."""
        if live.sandbox is None:
            raise ValueError("greeted before it was started")
        ended = asyncio.get_running_loop().create_task(live.sandbox.wait(), name="exit while starting")
        dead = asyncio.Event()
        ended.add_done_callback(lambda _task: dead.set())
        try:
            await unless(dead, self._connect(live, listener))
        except SandboxStopped as error:
            # The tenant's processes may have written it: only into our log, escaped and cut.
            live.exit = ended.result()
            log.warning("a starting sandbox ended", extra={**fields(live), "said": ascii(live.exit.said[:1000])})
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
            on_kernel_gone=lambda gone: self._on_kernel_gone(live, gone),
            on_writing=lambda: self._on_writing(live),
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


async def with_kernel(live: Live) -> None:
    """Have a Python kernel made ahead: a restart of one that is not there begins it, and takes it for nobody's."""
    await live.connection.stop_kernel("python", "default", restart=True, within_s=KERNEL_S)


async def _disown(connection: Connection, execution: str) -> None:
    """End an execution that nobody can ask for any more."""
    connection.settle([execution])
    with contextlib.suppress(LinkError):
        await connection.cancel(execution)
