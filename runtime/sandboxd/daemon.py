"""sandboxd: serves one service after the other, from the first message of the first to the word that it is enough.

Owns the task of each execution. Promises: an ``Execute`` is run once, and answered on each link until its answer is settled. A
link that ends ends nothing here: what runs goes on, and the next service is dialled; ``Shutdown`` ends all kernels, runs and
this process.
Leaves to link.py: connections, and what is kept for the next one; to kernels.py and runs.py: everything about executions.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket

import msgspec

from . import egress, places, protocol
from .changes import Workspace
from .kernels import Kernels
from .link import Link
from .processes import Zygote
from .protocol import (
    BootConfig,
    Cancel,
    Execute,
    Finished,
    Hello,
    Input,
    KernelGone,
    Known,
    Outcome,
    Refused,
    Settled,
    Shutdown,
    StopKernel,
)
from .runs import Runs

_DIAL_WITHIN_S = 20.0
"""For the first service, which is there and waits for us."""

_CLOSE_WITHIN_S = 5.0

_ORPHANED = 128 + signal.SIGTERM
"""The exit status of a sandbox that nobody wants any more: it was ended, and is not broken."""

_log = logging.getLogger(__name__)


def run(config: BootConfig, requests: socket.socket) -> int:
    """Be sandboxd to the end of the sandbox; return the exit code. requests: our end of the socket to the zygote."""
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
    return asyncio.run(_serve(config, requests))


async def _serve(config: BootConfig, requests: socket.socket) -> int:
    zygote = Zygote(requests)
    link = Link(config.link)
    try:
        async with asyncio.timeout(_DIAL_WITHIN_S):
            await link.dial()
    except TimeoutError:
        _log.error("no link: nobody answered for %.0f s", _DIAL_WITHIN_S)
        return 1
    places.keep_usable(config.user, config.workspace)
    server = _Server(config, zygote, link)
    status = 0
    try:
        async with egress.way_out(config.egress), asyncio.TaskGroup() as tasks:
            while not await server.served(tasks) and config.redial:
                if not await _dialled_again(link, config.orphan_s):
                    status = _ORPHANED
                    break
            server.end()
    finally:
        async with asyncio.timeout(_CLOSE_WITHIN_S):
            await server.aclose()
        zygote.close()
        link.close()
    return status


async def _dialled_again(link: Link, orphan_s: float) -> bool:
    """Return whether there is a service again, in time."""
    try:
        async with asyncio.timeout(orphan_s or None):
            await link.dial()
    except TimeoutError:
        _log.warning("no service has come back for %.0f s", orphan_s)
        return False
    return True


class _Server:
    """Turns messages into tasks, and their results into messages."""

    def __init__(self, config: BootConfig, zygote: Zygote, link: Link) -> None:
        self._config = config
        self._link = link
        self._kernels = Kernels(config, zygote, link.send, lambda: link.is_full)
        self._runs = Runs(config, zygote, link.send, lambda: link.is_full)
        self._workspace = Workspace(config.workspace, config.user)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unwanted: set[str] = set()  # of those that run: settled before they have ended
        self._cancelled: set[str] = set()  # of those that run: before they began

    async def served(self, tasks: asyncio.TaskGroup) -> bool:
        """Serve one service to the end of its connection; return whether it said that it is enough."""
        self._link.greet(self._hello())
        self._kernels.rewind()
        self._runs.rewind()
        while (message := await self._link.receive()) is not None:
            if isinstance(message, Shutdown):
                return True
            self._take(message, tasks)
        return False

    def end(self) -> None:
        """End all executions: nobody waits for their answers any more."""
        for task in self._tasks.values():
            task.cancel()

    async def aclose(self) -> None:
        await self._kernels.aclose()

    def _hello(self) -> Hello:
        unsettled = self._link.unsettled
        running = [execution for execution in self._tasks if execution not in unsettled]
        return Hello(
            version=protocol.VERSION,
            kernels=self._kernels.languages(),
            stateless=self._runs.languages,
            known=[
                *(Known(execution, "running", execution in self._kernels.preparing) for execution in running),
                *(Known(execution, "finished") for execution in unsettled),
            ],
            alive=self._kernels.alive()[: protocol.MAX_ALIVE],
        )

    def _take(self, message: Execute | Cancel | Input | Settled | StopKernel, tasks: asyncio.TaskGroup) -> None:
        """Act on a message; what takes time becomes a task."""
        if isinstance(message, Execute):
            self._begin(message, tasks)
        elif isinstance(message, Cancel):
            # A task that was made just now begins first.
            asyncio.get_running_loop().call_soon(self._cancel, message.id)
        elif isinstance(message, Input):
            self._kernels.input(message)
        elif isinstance(message, Settled):
            for execution in message.ids:
                self._link.unsettled.settle(execution)
                if execution in self._tasks:
                    self._unwanted.add(execution)
        else:
            tasks.create_task(self._stop_kernel(message), name=f"stop {message.language}")

    def _begin(self, message: Execute, tasks: asyncio.TaskGroup) -> None:
        """Run it, unless it is known already or there are too many."""
        if message.id in self._link.unsettled:
            self._link.again(message.id)
        elif message.id in self._tasks:
            pass  # it will be answered
        elif (
            len(self._tasks) >= protocol.MAX_RUNNING
            or len(self._tasks) + len(self._link.unsettled) >= protocol.MAX_KNOWN
        ):
            # Not kept: if it is not heard, this id is unknown, and has not run.
            self._link.send(Refused(message.id, "run_start_failed", "Too many executions run in this sandbox."))
        else:
            task = tasks.create_task(self._execute(message), name=f"execute {message.id}")
            self._tasks[message.id] = task
            task.add_done_callback(lambda _: self._ended(message.id))

    def _ended(self, execution: str) -> None:
        del self._tasks[execution]
        self._unwanted.discard(execution)
        self._cancelled.discard(execution)

    def _cancel(self, execution: str) -> None:
        if not (self._runs.cancel(execution) or self._kernels.cancel(execution)) and execution in self._tasks:
            self._cancelled.add(execution)

    async def _execute(self, message: Execute) -> None:
        answer: Finished | Refused
        places.keep_usable(self._config.user, self._config.workspace)
        try:
            answer = await self._watched(message)
        except Exception:  # noqa: BLE001 - the edge of a task: told in the log, and the sandbox goes on
            _log.exception("an execution failed")
            answer = Refused(id=message.id, code="run_start_failed", message="The sandbox could not run it.")
        if message.id not in self._unwanted:
            self._link.answer(answer, message.limits)
        elif isinstance(answer, Finished) and (answer.sandbox_unsafe or answer.outcome.kernel == "lost"):
            reason = answer.outcome.reason or "killed"
            self._link.send(KernelGone(message.language, message.context, reason, sandbox_unsafe=answer.sandbox_unsafe))

    async def _watched(self, message: Execute) -> Finished | Refused:
        """Run it, and add what has changed in the workspace meanwhile."""
        watch = await self._workspace.begin()
        try:
            if message.id in self._cancelled:
                return Finished(message.id, Outcome("cancelled", 130, 0))
            answer = await (self._kernels if message.stateful else self._runs).execute(message)
        finally:
            files, incomplete = self._workspace.end(watch)
        if isinstance(answer, Finished) and (files or incomplete):
            outcome = msgspec.structs.replace(answer.outcome, files=files, files_incomplete=incomplete)
            answer = msgspec.structs.replace(answer, outcome=outcome)
        return answer

    async def _stop_kernel(self, message: StopKernel) -> None:
        self._link.send(await self._kernels.stop(message))
