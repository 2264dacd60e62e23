"""Packages that the user installs while the kernel runs.

Python puts the user's own packages on the path when it starts, and only if the folder is there; the first ``pip install``
makes it.
"""

from __future__ import annotations

import importlib
import os
import site
import sys


def find_new() -> None:
    """See to it that what has been installed for the user can be imported."""
    folder = site.getusersitepackages()
    if not site.ENABLE_USER_SITE or folder in sys.path or not os.path.isdir(folder):
        return
    others = (at for at, entry in enumerate(sys.path) if entry.endswith("-packages"))
    sys.path.insert(next(others, len(sys.path)), folder)
    importlib.invalidate_caches()
