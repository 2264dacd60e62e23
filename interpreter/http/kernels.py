"""``/v1/kernels``: the kernels of a sandbox."""

from __future__ import annotations

from interpreter import languages, wire
from interpreter.errors import KernelNotFound
from interpreter.http.base import ApiHandler


class KernelsHandler(ApiHandler):
    """All kernels of a sandbox."""

    async def on_get(self, scope: str, query: wire.SessionQuery, _body: wire.NoBody) -> None:
        """List them."""
        self.send({"kernels": self.api.service.kernels(scope, query.session)})


class KernelHandler(ApiHandler):
    """One kernel."""

    async def on_delete(self, scope: str, language: str, query: wire.KernelQuery, _body: wire.NoBody) -> None:
        """End it and what runs in it."""
        service = self.api.service
        self.send(await service.delete_kernel(scope, query.session, _language(language), query.context))


class InterruptHandler(ApiHandler):
    """What runs in a kernel."""

    async def on_post(self, scope: str, language: str, query: wire.KernelQuery, _body: wire.NoBody) -> None:
        """Interrupt it."""
        service = self.api.service
        self.send(await service.interrupt_kernel(scope, query.session, _language(language), query.context))


class RestartHandler(ApiHandler):
    """The life of a kernel."""

    async def on_post(self, scope: str, language: str, query: wire.KernelQuery, _body: wire.NoBody) -> None:
        """Begin a new one."""
        service = self.api.service
        self.send(await service.restart_kernel(scope, query.session, _language(language), query.context))


def _language(text: str) -> str:
    language = languages.canonical(text)
    if language is None:
        raise KernelNotFound("No such kernel is running.")
    return language
