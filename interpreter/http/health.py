"""``/healthz``: whether the service can serve."""

from __future__ import annotations

from interpreter import wire
from interpreter.errors import RuntimeUnavailable, ShuttingDown, Unauthorized
from interpreter.http.base import ApiHandler


class HealthHandler(ApiHandler):
    """The health of the service."""

    async def on_get(self, _query: wire.NoQuery, _body: wire.NoBody) -> None:
        """Say it; 503 while sandboxes cannot be made or the service is stopping."""
        ok, found = await self.api.service.health()
        health = {"status": found["status"], "version": self.api.version, "runtime": found["runtime"], **found}
        if self._has_key():  # holes are not told to everybody
            health["warnings"] = self.api.service.warnings
        if self.api.draining:
            code, message = ShuttingDown.code, "The service is stopping."
        elif not ok:
            code, message = RuntimeUnavailable.code, str(found.get("message", "The runtime cannot serve now."))
        else:
            self.send(health)
            return
        self.set_header("Retry-After", "5")
        self.send({"code": code, "message": message, "retryable": True} | health | {"message": message}, status=503)

    def _has_key(self) -> bool:
        headers = self.request.headers
        try:
            self.api.guard.check_key(headers.get("X-API-Key"), headers.get("Authorization"))
        except Unauthorized:
            return False
        return True
