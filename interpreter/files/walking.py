"""Going through a directory with all that is in it, in order, and what of it a pattern means.

Promises: no link is followed and nothing leads above the top (see position.py), so whatever moves meanwhile, nothing outside is
seen; memory does not grow with the number of names, nor do descriptors with the depth; what may be looked at is bounded. Blocks.
"""

from __future__ import annotations

import contextlib
import fnmatch
import heapq
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from interpreter.errors import InvalidRequest
from interpreter.files.errors import FileBusy
from interpreter.files.names import MAX_PARTS
from interpreter.files.position import Position

MAX_NAMES = 1_000_000
"""That one walk looks at, about a second's work."""
_CHUNK = 10_000
"""Names of one directory in memory. One with more of them is gone through again for the next ones."""

Path = tuple[bytes, ...]


@dataclass(slots=True)
class Budget:
    """How many names may still be looked at. spent: whether a walk has ended for want of them."""

    names: int = MAX_NAMES
    spent: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """One entry: its path below where the walk began, its own state, and the directory that has it, open until the next one."""

    path: Path
    state: os.stat_result
    directory: int

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory, and no link to one."""
        return stat.S_ISDIR(self.state.st_mode)


class _Spent(Exception):
    """The budget is used up."""


def walk(directory: int, budget: Budget, *, after: Sequence[bytes] = ()) -> Iterator[Found]:
    """Yield what is in ``directory``, each before what is in it, in the order of paths, behind the path ``after``.

    Ends early once the budget is used up, but not before the first of them. What cannot be opened or vanishes is passed over.
    """
    with contextlib.closing(Position(directory)) as here:
        try:
            yield from _below(here, budget, after, ())
        except _Spent:
            budget.spent = True


def _below(here: Position, budget: Budget, after: Sequence[bytes], path: Path) -> Iterator[Found]:
    first = after[0] if after else b""
    for name in _names(here, first, budget):
        try:
            state = os.stat(name, dir_fd=here.handle, follow_symlinks=False)
        except FileNotFoundError:
            continue
        found = Found((*path, name), state, here.handle)
        is_first = bool(after) and name == first
        if not is_first:
            yield found
            if budget.names <= 0 and found.is_dir:
                raise _Spent
        if found.is_dir and len(found.path) < MAX_PARTS:
            try:
                here.down(name)
            except OSError:
                continue
            with contextlib.suppress(OSError, FileBusy):
                yield from _below(here, budget, after[1:] if is_first else (), found.path)
            here.up()  # Raises FileBusy: then the rest of this directory is passed over.


def _names(here: Position, first: bytes, budget: Budget) -> Iterator[bytes]:
    """Yield the names of the directory that ``here`` is in from ``first`` on, sorted by their bytes. It is there for each."""
    last = b""
    while True:
        seen = 0
        with os.scandir(here.handle) as entries:
            names = []
            for entry in entries:
                seen += 1
                name = os.fsencode(entry.name)
                if name >= first and name > last:
                    names.append(name)
                    if len(names) >= 4 * _CHUNK:
                        names = heapq.nsmallest(_CHUNK, names)
        budget.names -= seen
        names = heapq.nsmallest(_CHUNK, names)
        yield from names
        if len(names) < _CHUNK:
            return
        if budget.names <= 0:
            raise _Spent
        last = names[-1]


def matcher(pattern: str) -> Callable[[Path], bool]:
    """Return whether a path is meant by a pattern: ``*``, ``?`` and ``[…]`` within a part, ``**`` for any parts or none.

    Raises InvalidRequest.
    """
    parts = pattern.split("/")
    if not all(parts) or len(parts) > MAX_PARTS or len(pattern) > 1024 or "\0" in pattern:
        raise InvalidRequest("glob must be a pattern like `**/*.csv`, relative and without empty parts.")
    wanted = [None if part == "**" else re.compile(fnmatch.translate(part)) for part in parts]

    def matches(path: Path) -> bool:
        reached = {0}  # how many parts of the pattern what has been read of the path can stand for
        for name in map(os.fsdecode, path):
            reached = _closed(wanted, reached)
            following = set()
            for at in reached:
                if at < len(wanted):
                    one = wanted[at]
                    if one is None:
                        following.add(at)
                    elif one.match(name):
                        following.add(at + 1)
            reached = following
        return len(wanted) in _closed(wanted, reached)

    return matches


def _closed(wanted: Sequence[re.Pattern[str] | None], reached: set[int]) -> set[int]:
    found = set(reached)
    for at in sorted(reached):
        while at < len(wanted) and wanted[at] is None:
            at += 1  # noqa: PLW2901 - going on from there
            found.add(at)
    return found
