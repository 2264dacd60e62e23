"""What ``cellbox doctor`` has found: one line each, with what to type where something is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """what: was looked at. text: how it is. remedy: what to do; empty where nothing is wrong."""

    what: str
    state: State
    text: str
    remedy: str = ""


def ok(what: str, text: str) -> Finding:
    """Return that it is as it has to be, or is not needed."""
    return Finding(what, "ok", text)


def warning(what: str, text: str, remedy: str) -> Finding:
    """Return that a service works with it, and worse than it could."""
    return Finding(what, "warning", text, remedy)


def error(what: str, text: str, remedy: str) -> Finding:
    """Return that no service works here before this is put right."""
    return Finding(what, "error", text, remedy)
