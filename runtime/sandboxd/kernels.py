"""The kernels of one sandbox: started at need, one execution at a time in each, ended when they must.

Owns every kernel process and what is known of it. Promises: each ``execute`` is answered exactly once, at the latest at
its timeout plus its grace plus the time a new kernel takes to start; a kernel that ends is noticed within a second.
Leaves to the daemon: the link and stateless runs; to the service: queues, generations, and the clock from outside.
"""

from __future__ import annotations

from collections.abc import Callable

from .processes import Zygote
from .protocol import BootConfig, Execute, Finished, FromSandbox, KernelStopped, Refused, StopKernel


class Kernels:
    """All kernels of a sandbox, by (language, context).

    send: called with Preparing, Started, Progress and KernelGone, in the loop; must not block or raise.
    """

    def __init__(self, config: BootConfig, zygote: Zygote, send: Callable[[FromSandbox], None]) -> None: ...

    def languages(self) -> list[str]:
        """Return the names of the kernels that there are, for ``Hello``: ours and any installed kernelspec."""

    async def execute(self, message: Execute) -> Finished | Refused:
        """Run a stateful execution to its end. Never raises.

        The service sends one at a time per kernel; a second one for a busy kernel waits. Cancelling the call kills the kernel.
        """

    def cancel(self, execution: str) -> bool:
        """Interrupt ``execution`` with the ladder of a timeout; False if it is not here. ``execute`` answers."""

    async def stop(self, message: StopKernel) -> KernelStopped:
        """End a kernel; what runs in it ends as ``cancelled``. Answers once its processes are gone, within 2 s."""

    async def aclose(self) -> None:
        """End all kernels. May be called twice."""
