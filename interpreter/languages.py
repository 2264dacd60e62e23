"""The languages of the wire contract, their other names, and how they are listed."""

from __future__ import annotations

import re
from collections.abc import Iterable

LANGUAGES = ("python", "node", "bash")
ALIASES = {
    "py": "python",
    "python3": "python",
    "javascript": "node",
    "js": "node",
    "nodejs": "node",
    "sh": "bash",
    "shell": "bash",
}
MAX_LISTED = 20
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")


def canonical(text: str) -> str | None:
    """Return the language that ``text`` means, case and aliases aside; None if nothing can have that name."""
    name = text.lower()
    name = ALIASES.get(name, name)
    return name if _NAME.fullmatch(name) else None


def listed(names: Iterable[str]) -> str:
    """Return ``names`` for a sentence: ours in the order of the contract, then others, cut; none that is an alias."""
    there = {name for name in names if canonical(name) == name}
    found = [*(name for name in LANGUAGES if name in there), *sorted(there.difference(LANGUAGES))]
    return ", ".join([*found[:MAX_LISTED], *(["…"] if len(found) > MAX_LISTED else [])]) or "none"
