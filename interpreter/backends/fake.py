"""A backend whose sandboxes are coroutines: for tests of everything above the backends, and it fails on request.

``FakeBackend(boot)`` runs ``boot(spec)`` as a task for each start; a scripted sandboxd dials
``spec.link_dir / LINK_SOCKET`` in it as the real one does and returns the exit status. The attributes decide how the
next calls go:

- ``refuse``: an error that ``start`` raises, until set back to None; ``unavailable``: one that ``check`` raises.
- ``hold``: an event that ``start`` waits for; unset, the start hangs until it is cancelled.
- ``numbers``: what ``stats`` of a running sandbox says.

``FakeSandbox.die`` ends a sandbox from outside, as the host's kernel does. ``started`` lists every spec in order;
``running`` holds what has not ended.
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


class FakeSandbox(Sandbox):
    """A task that plays the sandbox."""

    def __init__(self, backend: FakeBackend, spec: SandboxSpec) -> None:
        self.id = spec.id
        self.spec = spec
        self.stops = 0
        self._backend = backend
        self._exit: asyncio.Future[SandboxExit] = asyncio.get_running_loop().create_future()
        self._last = Stats(memory_bytes=0, oom_kills=0, processes=0)
        self._task = backend.tasks.start(self._run(), name=f"fake sandbox {spec.id}")
        # Also of a task that is cancelled before its first step, which runs nothing of it.
        self._task.add_done_callback(lambda _task: backend.running.pop(spec.id, None))

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
            self._last = self._backend.numbers
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
            status = await self._backend.boot(self.spec)
        finally:
            if not self._exit.done():
                self._exit.set_result(SandboxExit(status))


class FakeBackend(Backend):
    """Sandboxes without a host."""

    name = "fake"

    def __init__(self, boot: Boot = boot_that_idles, *, single_tenant: bool = False) -> None:
        self.boot = boot
        self.single_tenant = single_tenant
        self.refuse: BackendError | None = None
        self.unavailable: BackendError | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.numbers = Stats(memory_bytes=1, oom_kills=0, processes=1)
        self.leftovers = 0
        self.started: list[SandboxSpec] = []
        self.running: dict[SandboxId, FakeSandbox] = {}
        self.tasks = Tasks()

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

    async def remove_leftovers(self) -> int:
        """Return ``leftovers``, once."""
        count, self.leftovers = self.leftovers, 0
        return count

    async def aclose(self) -> None:
        """End what is left."""
        await self.tasks.aclose(within_s=5)
