"""The kernels of one sandbox: started at need, one execution at a time in each, ended when they must.

Owns every kernel process and what is known of it. Promises: each ``execute`` is answered exactly once, at the latest at
its timeout plus its grace plus the time a new kernel takes to start; a kernel that ends is noticed within a second.
Leaves to the daemon: the link and stateless runs; to the service: queues, generations, and the clock from outside; to
``kernel.py`` what goes on in one kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import zmq

from . import places
from .kernel import Kernel, KernelStartError, PortsTakenError
from .kernelspecs import Kernelspec, find
from .processes import Zygote
from .protocol import (
    Alive,
    BootConfig,
    Execute,
    Finished,
    FromSandbox,
    Input,
    KernelGone,
    KernelStopped,
    Outcome,
    Preparing,
    Reason,
    Refused,
    Started,
    StopKernel,
)

_Key = tuple[str, str]

_TRIES = 3
"""Starts of a kernel whose ports somebody else has taken."""

_MOST_SPARES = 2
"""Kernels that are made ahead of time for those that were lost. The service does not count them, so that code which loses one
kernel after the other would have any number."""

_NOT_RUN = Outcome("cancelled", 130, 0)


class Kernels:
    """All kernels of a sandbox, by (language, context).

    send: called with Preparing, Started, Progress, what is streamed, KernelGone and StillWriting, in the loop; must not block or
    raise. full: while it says so what kernels write stays in their pipes.
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
        self._specs = find(config)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        folders = (Path(config.runtime) / f"k{number}" for number in itertools.count(1))
        self._folders = (folder for folder in folders if not os.path.lexists(folder))  # the tenant can make some too
        self._kernels: dict[_Key, Kernel] = {}
        self._locks: dict[_Key, asyncio.Lock] = {}
        self._here: dict[str, _Key] = {}
        self._cancelled: set[str] = set()
        self._ending: set[Kernel] = set()
        self._spares: dict[_Key, asyncio.Task[None]] = {}
        self._closed = False
        self.preparing: set[str] = set()
        """Executions that wait for a kernel to start."""

    def languages(self) -> list[str]:
        """Return the names of the kernels that there are, for ``Hello``: ours and any installed kernelspec."""
        return sorted(self._specs)

    def alive(self) -> list[Alive]:
        """Return which kernels run or are made ahead of time, for ``Hello``."""
        return [Alive(*key) for key in sorted({*self._kernels, *self._spares})]

    def rewind(self) -> None:
        """Tell the progress of all executions anew, from the start."""
        for kernel in self._kernels.values():
            kernel.rewind()

    async def execute(self, message: Execute) -> Finished | Refused:
        """Run a stateful execution to its end. Never raises.

        The service sends one at a time per kernel; a second one for a busy kernel waits. Cancelling the call kills the kernel.
        """
        if message.language not in self._specs:
            self._specs = find(self._config)  # it may have been installed meanwhile
        spec = self._specs.get(message.language)
        refused = self._refused(message, spec)
        if refused is not None or spec is None:
            return refused or Refused(message.id, "unknown_language", "there is no such kernel")
        key = (message.language, message.context)
        self._here[message.id] = key
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                return await self._execute(message, spec, key)
        finally:
            del self._here[message.id]
            self._cancelled.discard(message.id)
            if key not in self._here.values():
                del self._locks[key]

    def cancel(self, execution: str) -> bool:
        """Interrupt ``execution`` with the ladder of a timeout; False if it is not here. ``execute`` answers."""
        key = self._here.get(execution)
        if key is None:
            return False
        kernel = self._kernels.get(key)
        if kernel is None or not kernel.interrupt(execution):
            self._cancelled.add(execution)
        return True

    def input(self, message: Input) -> None:
        """Give an execution what it reads, if it waits for that."""
        key = self._here.get(message.id)
        kernel = None if key is None else self._kernels.get(key)
        if kernel is not None:
            kernel.input(message)

    async def stop(self, message: StopKernel) -> KernelStopped:
        """End a kernel; what runs in it ends as ``cancelled``. Answers once its processes are gone, within 2 s."""
        key = (message.language, message.context)
        waiting = [execution for execution, where in self._here.items() if where == key]
        self._cancelled.update(waiting)
        await self._no_spare(key)
        kernel = self._kernels.get(key)
        clean = True
        if kernel is not None:
            self._forget(key, kernel)
            clean = await kernel.stop("restart" if message.restart else "deleted")
        if message.restart and clean and (spec := self._specs.get(message.language)) is not None:
            self._prepare_spare(key, spec)
        return KernelStopped(message.request, existed=kernel is not None or bool(waiting), sandbox_unsafe=not clean)

    async def aclose(self) -> None:
        """End all kernels. May be called twice."""
        self._closed = True
        for key in list(self._spares):
            await self._no_spare(key)
        kernels = {*self._kernels.values(), *self._ending}
        self._kernels = {}
        await asyncio.gather(*(kernel.stop("killed") for kernel in kernels))
        if self._context is not None:
            self._context.destroy(linger=0)

    def _refused(self, message: Execute, spec: Kernelspec | None) -> Refused | None:
        if spec is None:
            there = ", ".join(self.languages())
            return Refused(message.id, "unknown_language", f"the kernels here are: {there}"[:2000])
        for field, value in (("env", message.env), ("cwd", message.cwd), ("stdin", message.stdin)):
            if value and field not in spec.fields:
                return Refused(
                    message.id, "unsupported_field", f"{field}: the {message.language} kernel cannot honour it"
                )
        if message.allow_input and "input" not in spec.fields:
            return Refused(message.id, "unsupported_field", f"allow_input: the {message.language} kernel cannot ask")
        if message.cwd is not None and not places.enterable(os.path.join(self._config.workspace, message.cwd)):
            return Refused(message.id, "cwd_not_found", "cwd: there is no such directory")
        return None

    async def _execute(self, message: Execute, spec: Kernelspec, key: _Key) -> Finished | Refused:
        if message.id in self._cancelled:
            return Finished(message.id, _NOT_RUN)
        prepared = False
        if key not in self._kernels or key in self._spares:
            self._send(Preparing(message.id))
            prepared = True
            self.preparing.add(message.id)
            try:
                await self._started(key, spec)
            except KernelStartError as error:
                return Refused(message.id, "kernel_start_failed", str(error))
            finally:
                self.preparing.discard(message.id)
        kernel = self._kernels[key]
        if message.id in self._cancelled:
            return Finished(message.id, _NOT_RUN)
        if prepared:
            self._send(Started(message.id))
        try:
            finished = await kernel.execute(message)
        except BaseException:
            self._forget(key, kernel)
            raise
        if finished.outcome.kernel == "lost":
            self._forget(key, kernel)
            spares = len(self._spares) + sum(kernel.fresh for kernel in self._kernels.values())
            interrupted = finished.outcome.status in ("timeout", "interrupted") and not finished.sandbox_unsafe
            if interrupted and spares < _MOST_SPARES:
                self._prepare_spare(key, spec)
        return finished

    def _forget(self, key: _Key, kernel: Kernel) -> None:
        """Take a kernel that has ended, or is ending, out of the table."""
        if self._kernels.get(key) is kernel:
            del self._kernels[key]
        self._ending.add(kernel)

    async def _started(self, key: _Key, spec: Kernelspec) -> None:
        """Have the kernel of ``key`` in the table. Raises KernelStartError."""
        spare = self._spares.get(key)
        if spare is not None:
            await asyncio.wait([spare])
            self._spares.pop(key, None)
        if key not in self._kernels:
            self._kernels[key] = await self._start(key, spec)

    async def _start(self, key: _Key, spec: Kernelspec) -> Kernel:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(PortsTakenError):
                return await self._start_once(key, spec)
        return await self._start_once(key, spec)

    async def _start_once(self, key: _Key, spec: Kernelspec) -> Kernel:
        def gone(reason: Reason, unsafe: bool) -> None:
            if unsafe:
                self._send(KernelGone(*key, reason, sandbox_unsafe=True))
            elif self._kernels.get(key) is kernel:
                self._forget(key, kernel)
                if not kernel.fresh:  # nobody knows of one that was made ahead of time
                    self._send(KernelGone(*key, reason))

        self._ending = {kernel for kernel in self._ending if not kernel.is_gone}
        places.keep_usable(self._config.runtime)
        kernel = Kernel(spec, self._config, next(self._folders), gone, self._send, full=self._full)
        await kernel.start(self._zygote, self._zmq)
        return kernel

    def _zmq(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Return what kernels of others need, made at the first need, since it has threads."""
        self._context = self._context or zmq.Context()
        return self._context

    def _prepare_spare(self, key: _Key, spec: Kernelspec) -> None:
        """Start the next kernel of ``key`` before anybody asks for it; if that fails, whoever asks will see why."""

        async def prepare() -> None:
            with contextlib.suppress(KernelStartError):
                kernel = await self._start(key, spec)
                self._kernels[key] = kernel
            self._spares.pop(key, None)

        if not self._closed and key not in self._spares and key not in self._kernels:
            loop = asyncio.get_running_loop()
            self._spares[key] = loop.create_task(prepare(), name=f"spare kernel {key}")

    async def _no_spare(self, key: _Key) -> None:
        spare = self._spares.pop(key, None)
        if spare is not None:
            spare.cancel()
            await asyncio.wait([spare])
