"""Modules that the zygote has imported: what stateless programs see of them, and how they get them back.

A program must not notice what was imported for us. So in its process the third-party modules leave ``sys.modules``. They
are kept aside, and an import is answered with what was kept if the usual search finds the very same file; a newer version of
the user's own therefore wins, and a package the search does not find does not exist. The standard library stays.

Promises: a top-level package comes back whole or not at all. One that has modules without a file (made at run time, with
import hooks of its own) is never kept, since only its own code can set that up.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_baseline: set[str] = set()
_meta_path: list[Any] = []
_filters: list[Any] = []
_families: dict[str, dict[str, ModuleType]] = {}
_kernels: dict[str, ModuleType] = {}
_find_spec = PathFinder.find_spec


def note_plain() -> None:
    """Note, in the boot process before it imports anything third-party, what a plain interpreter has."""
    _baseline.update(name for name in sys.modules if name.partition(".")[0] != __package__)
    _meta_path[:] = sys.meta_path
    _filters[:] = warnings.filters


def load_kernel(directory: Path) -> None:
    """Import the kernel in ``directory``, one of ours, and with it all that it needs."""
    name = directory.name
    spec = importlib.util.spec_from_file_location(f"cellbox_{name}_program", directory / "kernel.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"the {name} kernel is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _kernels[name] = module


def kernel(name: str) -> Any:
    """Return what ``load_kernel`` imported from the folder of that name: ``run(connection_file) -> exit code``."""
    return _kernels[name]


def note_loaded() -> None:
    """Note, in the boot process once all is imported, what is third-party."""
    for name, module in sys.modules.items():
        top = name.partition(".")[0]
        if name not in _baseline and top not in sys.stdlib_module_names and not top.startswith("_sysconfigdata"):
            _families.setdefault(top, {})[name] = module


def put_aside() -> None:
    """Take what is third-party out of ``sys.modules``, in a fork, before its program runs."""
    for top, family in _families.items():
        for name in family:
            sys.modules.pop(name, None)
        if top not in family or not all(map(_has_file, family.values())):
            family.clear()
    sys.meta_path[:] = _meta_path
    warnings.filters[:] = _filters  # type: ignore[index]  # a list, the stubs say Sequence
    warnings._filters_mutated()  # type: ignore[attr-defined]  # private to CPython
    PathFinder.find_spec = classmethod(_find)  # type: ignore[assignment, method-assign]  # the one hook there is


def _has_file(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "origin", None) is not None


def _find(
    _cls: type, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """``PathFinder.find_spec``, answering with the kept module where it is the one that was found."""
    spec = _find_spec(fullname, path, target)
    family = _families.get(fullname)
    if spec is None or not family:
        return spec
    kept = family[fullname].__spec__
    if kept is not None and spec.origin == kept.origin:
        spec.loader = _Kept(spec.loader, family.copy())
    family.clear()  # given out once: who deletes it from sys.modules wants it made anew
    return spec


class _Kept(Loader):
    """Loads a package by putting back all of its modules."""

    def __init__(self, loader: Any, family: dict[str, ModuleType]) -> None:
        self._loader = loader
        self._family = family

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._family[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        for name, member in self._family.items():
            sys.modules.setdefault(name, member)
