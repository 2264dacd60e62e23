"""The order of packages in every Python of a sandbox: the user's own win over those that came with it.

Python imports this by itself at its start, before any program. A virtual environment either has no user site or has it
behind its own packages; here it stands right after the standard library. Nothing happens without PYTHONUSERBASE, or where
the interpreter was told to leave users out (``-s``, ``-I``). Forks of the zygote do the same in ``sandboxd/paths.py``.
"""

import os
import site
import sys


def _put_user_first() -> None:
    if not os.environ.get("PYTHONUSERBASE") or sys.flags.no_user_site or sys.flags.ignore_environment:
        return
    site.ENABLE_USER_SITE = True
    user = site.getusersitepackages()
    added = [entry for entry in sys.path if entry == user]
    others = [entry for entry in sys.path if entry != user]
    if not added and os.path.isdir(user):
        known = set(others)
        sys.path[:] = others
        site.addsitedir(user, known)
        added = [entry for entry in sys.path if entry not in others]
    place = next((index for index, entry in enumerate(others) if entry.endswith("-packages")), len(others))
    sys.path[:] = [*others[:place], *added, *others[place:]]


_put_user_first()
