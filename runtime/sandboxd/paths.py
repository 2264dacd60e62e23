"""``sys.path`` of the tenant's Python programs: theirs first, and nothing of ours.

``python -`` has '' (the working directory), the standard library, the user's own packages, those of the environment: a
package that the user installed wins over the one that came with the sandbox. A fresh interpreter gets the same order from
``sitecustomize``; forks of the zygote, which was started without a user, get it here.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

OWN = str(Path(__file__).resolve().parent.parent)
"""The directory that holds this package."""

_plain: list[str] = []


def note() -> None:
    """Note, in the boot process, what is on the path besides the working directory and us; take the former off it."""
    _plain[:] = [entry for entry in sys.path if entry and os.path.realpath(entry) != OWN]
    sys.path[:] = [OWN, *_plain]


def restore() -> None:
    """Set ``sys.path`` as a fresh interpreter with this process's environment would have it."""
    sys.path[:] = ["", *_plain]
    site.USER_BASE = site.USER_SITE = None
    user = site.getusersitepackages()
    site.ENABLE_USER_SITE = True
    if os.path.isdir(user):
        before = sys.path.copy()
        try:
            site.addsitedir(user, set(before))
        except Exception:  # noqa: BLE001 - a file of theirs is broken: a fresh interpreter says so too, and ends
            import traceback  # noqa: PLC0415 - what is imported with this module counts as there in every program

            traceback.print_exc()
        added = [entry for entry in sys.path if entry not in before]
        place = next((index for index, entry in enumerate(before) if entry.endswith("-packages")), len(before))
        sys.path[:] = [*before[:place], *added, *before[place:]]
