"""A backend whose sandboxes are coroutines: for tests of everything above the backends, and it fails on request.

``FakeBackend(boot)`` runs ``boot(spec)`` as a task for each start; a scripted sandboxd dials
``spec.link_dir / LINK_SOCKET`` in it as the real one does and returns the exit status. The attributes decide how the
next calls go:

- ``refuse``: an error that ``start`` raises, until set back to None; ``unavailable``: one that ``check`` raises.
- ``hold``: an event that ``start`` waits for; unset, the start hangs until it is cancelled.
- ``numbers``: what ``stats`` of a running sandbox says.
- ``refuse_adoption``: an error that ``adoptable`` raises; ``lost``: ids that ``adoptable`` does not find, as where a
  supervisor was killed.

``FakeSandbox.die`` ends a sandbox from outside, as the host's kernel does. ``started`` lists every spec in order;
``running`` holds what has not ended.

Sandboxes live on a ``FakeHost`` and outlive the backend that started them: the backend of the next service, made with the
same ``host``, adopts them (so does the same backend, asked again). ``FakeHost.power_off`` ends what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from interpreter.tasks import Tasks

from .base import Backend, BackendError, Sandbox, SandboxExit, SandboxId, SandboxSpec, Stats

Boot = Callable[[SandboxSpec], Awaitable[int]]
"""What runs in place of the boot process: told the spec, returns the exit status."""


async def boot_that_idles(spec: SandboxSpec) -> int:  # noqa: ARG001 - the shape of a Boot
    """Never dial, never end by itself."""
    await asyncio.Event().wait()
    return 0


async def boot_that_dies(spec: SandboxSpec) -> int:  # noqa: ARG001 - the shape of a Boot
    """End at once, with status 1."""
    return 1


class FakeHost:
    """What outlives a backend: the sandboxes that run, and their tasks."""

    def __init__(self) -> None:
        self.running: dict[SandboxId, FakeSandbox] = {}
        self.tasks = Tasks()

    async def power_off(self) -> None:
        """End every sandbox."""
        await self.tasks.aclose(within_s=5)


class FakeSandbox(Sandbox):
    """A task that plays the sandbox."""

    def __init__(self, backend: FakeBackend, spec: SandboxSpec) -> None:
        self.id = spec.id
        self.spec = spec
        self.stops = 0
        self.backend = backend
        """Whose ``numbers`` are told: of the one that started it, or adopted it last."""
        self._exit: asyncio.Future[SandboxExit] = asyncio.get_running_loop().create_future()
        self._last = Stats(memory_bytes=0, oom_kills=0, processes=0)
        host = backend.host
        self._task = host.tasks.start(self._run(), name=f"fake sandbox {spec.id}")
        # Also of a task that is cancelled before its first step, which runs nothing of it.
        self._task.add_done_callback(lambda _task: host.running.pop(spec.id, None))

    async def stop(self) -> None:
        """Cancel the task and wait until it has ended."""
        self.stops += 1
        self.die(128 + 9)
        await asyncio.wait([self._task])

    async def wait(self) -> SandboxExit:
        """Return how it ended, once it has."""
        return await asyncio.shield(self._exit)

    def stats(self) -> Stats:
        """Return the backend's ``numbers``, or the last ones with no process once it has ended."""
        if not self._exit.done():
            self._last = self.backend.numbers
            return self._last
        return Stats(self._last.memory_bytes, self._last.oom_kills, 0)

    def die(self, status: int | None, *, oom: bool = False) -> None:
        """End it now from outside. Does nothing once it has ended."""
        if not self._exit.done():
            self._exit.set_result(SandboxExit(status, oom=oom))
        self._task.cancel()

    async def _run(self) -> None:
        status = 1
        try:
            status = await self.backend.boot(self.spec)
        finally:
            if not self._exit.done():
                self._exit.set_result(SandboxExit(status))


class FakeBackend(Backend):
    """Sandboxes without a host."""

    name = "fake"

    def __init__(
        self, boot: Boot = boot_that_idles, *, single_tenant: bool = False, host: FakeHost | None = None
    ) -> None:
        self.boot = boot
        self.single_tenant = single_tenant
        self.host = host or FakeHost()
        self.refuse: BackendError | None = None
        self.unavailable: BackendError | None = None
        self.refuse_adoption: BackendError | None = None
        self.lost: set[SandboxId] = set()
        self.hold = asyncio.Event()
        self.hold.set()
        self.numbers = Stats(memory_bytes=1, oom_kills=0, processes=1)
        self.started: list[SandboxSpec] = []

    @property
    def running(self) -> dict[SandboxId, FakeSandbox]:
        """What has not ended, of the whole host."""
        return self.host.running

    async def check(self) -> list[str]:
        """Return no warning, or raise ``unavailable``."""
        if self.unavailable is not None:
            raise self.unavailable
        return []

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start ``boot`` as a task, as the attributes allow."""
        self.started.append(spec)
        await self.hold.wait()
        if self.refuse is not None:
            raise self.refuse
        sandbox = FakeSandbox(self, spec)
        self.running[spec.id] = sandbox
        return sandbox

    async def adoptable(self) -> list[Sandbox]:
        """Return what runs and is not ``lost``, or raise ``refuse_adoption``."""
        if self.refuse_adoption is not None:
            raise self.refuse_adoption
        found = [sandbox for sandbox in self.running.values() if sandbox.id not in self.lost]
        for sandbox in found:
            sandbox.backend = self
        return [*found]

    async def remove_leftovers(self, keep: frozenset[SandboxId] = frozenset()) -> int:
        """End what runs and is not to be kept."""
        left = [sandbox for sandbox in self.running.values() if sandbox.id not in keep]
        for sandbox in left:
            await sandbox.stop()
        return len(left)

    async def aclose(self) -> None:
        """Let go: what runs goes on, on its host."""
