"""``/metrics``: what the service counts, for a Prometheus server."""

from __future__ import annotations

from interpreter import wire
from interpreter.http.base import ApiHandler
from interpreter.metrics import CONTENT_TYPE


class MetricsHandler(ApiHandler):
    """The metrics of the service."""

    async def on_get(self, _query: wire.NoQuery, _body: wire.NoBody) -> None:
        """Send them all."""
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(self.api.service.metrics.text())
