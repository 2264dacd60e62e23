"""The order of packages in every Python of a sandbox: the user's own win over those that came with it.

Python imports this by itself at its start, before any program. A virtual environment either has no user site or has it
behind its own packages; here it stands right after the standard library. Nothing happens without PYTHONUSERBASE, or where
the interpreter was told to leave users out (``-s``, ``-I``). Forks of the zygote do the same in ``sandboxd/paths.py``.

Where there is a proxy, aiohttp's sessions use it: of the usual clients it alone has to be told to look at the environment, and
without that it finds nothing here.
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


class _Aiohttp:
    """Finds the module with aiohttp's sessions, once, and changes what they do if nothing is said."""

    def find_spec(self, name, path=None, target=None):  # noqa: ANN001, ANN202 - in each interpreter's start, without typing
        """Return the module's spec, as the others would, with a loader that is ours."""
        if name != "aiohttp.client":
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        from importlib.machinery import PathFinder  # noqa: PLC0415 - not at the start of each interpreter

        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):  # noqa: ANN001, ANN202 - as above
                load(module)
                _look_at_the_environment(module)

            spec.loader.exec_module = exec_module
        return spec


def _look_at_the_environment(module):  # noqa: ANN001, ANN202 - as above
    session = getattr(module, "ClientSession", None)
    plain = getattr(session, "__init__", None)
    if plain is None:
        return
    from functools import wraps  # noqa: PLC0415 - as above

    @wraps(plain)
    def made(self, *args, trust_env=True, **named):  # noqa: ANN001, ANN002, ANN003, ANN202 - as above
        plain(self, *args, trust_env=trust_env, **named)

    session.__init__ = made


def use_proxies() -> None:
    """Have aiohttp use the proxies of the environment, if there are any. Also called in forks of the zygote."""
    named = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    if named and not any(isinstance(finder, _Aiohttp) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Aiohttp())


_put_user_first()
use_proxies()
