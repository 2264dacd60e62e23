"""``/healthz``: whether the service can serve."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from interpreter import wire
from interpreter.errors import RuntimeUnavailable, ShuttingDown
from interpreter.http.base import ApiHandler

KEEP_S = 2.0


class HealthCache:
    """The last answer of ``check``, asked again only when it is old: anybody may ask, and a check may cost a sandbox."""

    def __init__(self, check: Callable[[], Awaitable[tuple[bool, dict[str, Any]]]]) -> None:
        self._check = check
        self._lock = asyncio.Lock()
        self._found: tuple[bool, dict[str, Any]] = (False, {})
        self._until = 0.0

    async def get(self) -> tuple[bool, dict[str, Any]]:
        """Return what ``check`` said at most ``KEEP_S`` seconds ago; all who ask meanwhile wait for one check."""
        async with self._lock:
            clock = asyncio.get_running_loop().time
            if clock() >= self._until:
                self._found = await self._check()
                self._until = clock() + KEEP_S
            return self._found


class HealthHandler(ApiHandler):
    """The health of the service."""

    async def on_get(self, _query: wire.NoQuery, _body: wire.NoBody) -> None:
        """Say it; 503 while sandboxes cannot be made or the service is stopping."""
        cache: HealthCache = self.application.settings["health"]
        ok, found = await cache.get()
        health = {"status": found["status"], "version": self.api.version, "runtime": found["runtime"], **found}
        if self.api.draining:
            code, message = ShuttingDown.code, "The service is stopping."
        elif not ok:
            code, message = RuntimeUnavailable.code, str(found.get("message", "The runtime cannot serve now."))
        else:
            self.send(health)
            return
        self.set_header("Retry-After", "5")
        self.send({"code": code, "message": message, "retryable": True} | health | {"message": message}, status=503)
