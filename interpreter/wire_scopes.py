"""What of scopes crosses the wire: the models of ``/v1/scopes``.

As wire.py, which has the rules that hold for all of them.
"""

from __future__ import annotations

from pydantic import Field

from interpreter.wire import AnswerModel


class EgressRules(AnswerModel):
    """What may be reached from a sandbox."""

    allow: list[str] = Field(
        description="`host`, `*.host`, `*`, `@pypi`, `@npm`, or an address, each also with `:port`."
    )
    deny: list[str] = Field(description="The same; it beats `allow`.")
    ports: list[int] = Field(description="Ports that entries of `allow` without one open.")


class EgressInfo(EgressRules):
    """What may be reached from the sandboxes of a scope."""

    sessions: dict[str, EgressRules] = Field(description="Of sessions that have rules of their own.")


class ScopeInfo(AnswerModel):
    """A scope that has data or a sandbox."""

    scope: str = Field(description="Its name.")
    egress: EgressInfo | None = Field(
        default=None, description="What its sandboxes may reach; null where there is no way out."
    )
    disk_used_bytes: int | None = Field(
        default=None, description="How much of its quota is used, with what its file system needs for itself."
    )
    disk_limit_bytes: int | None = Field(default=None, description="Its quota. Both are absent where it has none.")


class ScopeList(AnswerModel):
    """Who has data or a sandbox."""

    scopes: list[ScopeInfo] = Field(description="The scopes.")
