"""Ending and restarting kernels at their owner's wish.

Promises: what runs and waits in the kernel ends as ``cancelled``; its queue stands still meanwhile; a sandbox that does not
end a kernel, or not all of it, is ended itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import Literal

from interpreter.executions.runner import Runner
from interpreter.keys import KernelKey, Key
from interpreter.link.errors import LinkClosed, LinkTimeout
from interpreter.sandboxes.kernels import Kernels
from interpreter.sandboxes.live import Live
from interpreter.sandboxes.manager import Manager

log = logging.getLogger(__name__)


class KernelStops:
    """delete_s, restart_s: for a kernel to end, and to be started anew, before its sandbox is ended instead."""

    def __init__(
        self, kernels: Kernels, manager: Manager, runner: Runner, *, delete_s: float, restart_s: float
    ) -> None:
        self._kernels = kernels
        self._manager = manager
        self._runner = runner
        self._delete_s = delete_s
        self._restart_s = restart_s

    async def stop(self, key: Key, name: KernelKey, how: Literal["deleted", "restart"]) -> bool:
        """End a kernel, and start it anew for a restart; whether there was one."""
        kernel, live = self._kernels.get(key, name), self._manager.get(key)
        if kernel is None or not (kernel.alive or kernel.wanted):
            self._kernels.ended_by_owner(key, name)
            return False
        for execution in self._runner.of_kernel(key, name):
            self._runner.end(execution, how)
        limit_s = self._restart_s if how == "restart" else self._delete_s
        ticket = f"{how}/{secrets.token_hex(8)}"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._runner.turn(key, name, ticket, within_s=limit_s), name="turn")
                if live is not None and live.hello is not None:
                    group.create_task(
                        self._stop_in(live, name, restart=how == "restart", within_s=limit_s), name="stop"
                    )
        finally:
            self._kernels.ended_by_owner(key, name)
            if how == "restart" and live is not None and live.hello is not None and not live.over.is_set():
                self._kernels.restarted(key, name, live.row.id, time.time())
            self._runner.leave(key, name, ticket)
        return True

    async def _stop_in(self, live: Live, name: KernelKey, *, restart: bool, within_s: float) -> None:
        try:
            link = live.connection
            stopped = await link.stop_kernel(name.language, name.context, restart=restart, within_s=within_s)
            if stopped.sandbox_unsafe:
                self._manager.stop(live, "killed")
        except LinkTimeout:
            self._manager.stop(live, "killed")
        except LinkClosed:
            log.info("a sandbox ended before its kernel", extra={"sandbox": live.row.id})
