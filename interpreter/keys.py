"""The names by which sandboxes and kernels are known inside the service.

Promises: a ``Key`` made by ``Key.of`` holds nothing but ``[A-Za-z0-9_-]{1,64}``, so its parts are directory names as they are.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from interpreter.errors import InvalidRequest

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_name(field: str, value: str) -> str:
    """Return ``value`` if it may name a scope, session, context or execution; InvalidRequest naming ``field`` if not."""
    if NAME.fullmatch(value) is None:
        raise InvalidRequest(f"{field} must be 1 to 64 letters (A-Z, a-z), digits, '_' or '-'.")
    return value


class Key(NamedTuple):
    """What one sandbox belongs to. session: None for the session-less one."""

    scope: str
    session: str | None

    @classmethod
    def of(cls, scope: str, session: str | None) -> Key:
        """Return the checked key; an empty session means none. Raises InvalidRequest."""
        return cls(check_name("scope", scope), check_name("session", session) if session else None)


def spare(scope: str | None) -> Key:
    """Return what a sandbox is known by that no session has yet: no session has an empty name. None: no scope has it either."""
    return Key(scope or "", "")


class KernelKey(NamedTuple):
    """One kernel within a sandbox."""

    language: str
    context: str
