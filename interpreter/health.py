"""Whether sandboxes can be served now, as the backend and the disk of the data root tell it.

Promises: both are asked every ``KEPT_S`` seconds at most, however many ask here: nobody needs a key for that. A disk that hangs
takes one thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from interpreter.backends.base import Backend, BackendError

log = logging.getLogger(__name__)

ASK_S = 5.0
KEPT_S = 2.0


class Health:
    """What is known of ``backend`` and the disk. disk: tells, in a thread, what keeps it from taking what is to be noted.
    clock: monotonic seconds.
    """

    def __init__(self, backend: Backend, disk: Callable[[], str | None], *, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._disk = disk
        self._clock = clock
        self._asking = asyncio.Lock()
        self._disk_asked: asyncio.Future[str | None] | None = None  # and has not answered
        self._until = 0.0
        self._trouble: str | None = None
        self._short: str | None = None

    async def ask(self) -> tuple[bool, dict[str, Any]]:
        """Return whether sandboxes can be served, and ``{"status", "runtime"}``, with ``message`` if not.

        With a disk that takes nothing what runs is served, and what needs no note: true, ``degraded`` and a message.
        """
        async with self._asking:
            if self._clock() >= self._until:
                self._short = await self._ask_disk()
                self._trouble = await self._ask_backend()
                self._until = self._clock() + KEPT_S
        about: dict[str, Any] = {"status": "ok", "runtime": self._backend.name}
        # Not where the disk is what the backend lacks: what runs goes on, and a restart would not make it better.
        if self._trouble is not None and not (self._short and self._short in self._trouble):
            return False, {**about, "status": "unavailable", "message": self._trouble}
        if self._short is not None:
            return True, {**about, "status": "degraded", "message": f"{self._short[0].upper()}{self._short[1:]}."}
        return True, about

    async def _ask_disk(self) -> str | None:
        asked = self._disk_asked or asyncio.get_running_loop().run_in_executor(None, self._disk)
        self._disk_asked = asked
        if not (await asyncio.wait([asked], timeout=ASK_S))[0]:
            return "the disk of the data root does not answer"
        self._disk_asked = None
        return asked.result()

    async def _ask_backend(self) -> str | None:
        """Return what keeps sandboxes from being served, in a sentence."""
        try:
            async with asyncio.timeout(ASK_S):
                await self._backend.check()
        except BackendError as error:
            return str(error)
        except TimeoutError:
            return "The runtime does not answer."
        except Exception as error:
            log.error("the runtime could not be asked", exc_info=error)
            return "The runtime could not be asked, for a fault of ours; the log of the service has it."
        return None
