"""``/v1/scopes``: what runs, and removing it."""

from __future__ import annotations

from interpreter import wire
from interpreter.http.base import ApiHandler


class ScopesHandler(ApiHandler):
    """All scopes."""

    async def on_get(self, _query: wire.NoQuery, _body: wire.NoBody) -> None:
        """List them."""
        self.send({"scopes": await self.api.service.scopes()})


class ScopeHandler(ApiHandler):
    """One scope."""

    async def on_delete(self, scope: str, query: wire.PurgeQuery, _body: wire.NoBody) -> None:
        """Remove its sandboxes, and its data if asked."""
        self.send(await self.api.service.remove_scope(scope, purge=query.purge, force=query.force))


class SessionsHandler(ApiHandler):
    """The sandboxes of a scope."""

    async def on_get(self, scope: str, _query: wire.NoQuery, _body: wire.NoBody) -> None:
        """List them."""
        self.send({"sessions": await self.api.service.sessions(scope)})


class SessionHandler(ApiHandler):
    """One session."""

    async def on_delete(self, scope: str, session: str, query: wire.PurgeQuery, _body: wire.NoBody) -> None:
        """Remove its sandbox, and its directory if asked."""
        self.send(await self.api.service.remove_session(scope, session, purge=query.purge, force=query.force))


class SandboxHandler(ApiHandler):
    """The session-less sandbox of a scope."""

    async def on_delete(self, scope: str, query: wire.ForceQuery, _body: wire.NoBody) -> None:
        """Remove it."""
        self.send(await self.api.service.remove_sandbox(scope, force=query.force))
