"""Whether sandboxes can be served now, as the backend tells it.

Promises: the backend is asked every ``KEPT_S`` seconds at most, however many ask here: nobody needs a key for that.
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
    """What is known of ``backend``. clock: monotonic seconds."""

    def __init__(self, backend: Backend, *, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._clock = clock
        self._asking = asyncio.Lock()
        self._until = 0.0
        self._trouble: str | None = None

    async def ask(self) -> tuple[bool, dict[str, Any]]:
        """Return whether sandboxes can be served, and ``{"status", "runtime"}``, with ``message`` if not."""
        async with self._asking:
            if self._clock() >= self._until:
                self._trouble = await self._ask_backend()
                self._until = self._clock() + KEPT_S
        about: dict[str, Any] = {"status": "ok", "runtime": self._backend.name}
        if self._trouble is not None:
            return False, {**about, "status": "unavailable", "message": self._trouble}
        return True, about

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
