"""The directory that whoever goes through a tree is in: one descriptor, however deep the tree is.

Promises: each directory is opened by its name in the one before, and no link is followed. Up is the very directory that it came
from, or, where something was moved meanwhile, what has the same names below the top and is the same directory; there is no way
above the top. Blocks.
"""

from __future__ import annotations

import contextlib
import os

from interpreter.files.errors import FileBusy

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Position:
    """A place in the tree below the directory open as ``top``, which it does not own. To be closed."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._way: list[tuple[bytes, tuple[int, int]]] = []  # names, each with the directory that has it
        self.handle = os.dup(top)
        """Of the directory that it is in now."""

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.handle)

    def down(self, name: bytes) -> None:
        """Go into the directory ``name``. Raises OSError: then it is where it was."""
        inner = os.open(name, _DIRECTORY, dir_fd=self.handle)
        self._way.append((name, _identity(self.handle)))
        self._be(inner)

    def up(self) -> None:
        """Go back to where the last ``down`` began. Raises FileBusy if that was moved away: then it is nowhere, but can go up
        further."""
        _, wanted = self._way.pop()
        with contextlib.suppress(OSError):
            outer = os.open("..", _DIRECTORY, dir_fd=self.handle)
            if _identity(outer) == wanted:
                self._be(outer)
                return
            os.close(outer)
        try:
            self._be(os.dup(self._top))
            for name, _ in self._way:
                self._be(os.open(name, _DIRECTORY, dir_fd=self.handle))
        except OSError as error:
            raise FileBusy("A directory was moved meanwhile.") from error
        if _identity(self.handle) != wanted:
            raise FileBusy("A directory was moved meanwhile.")

    def _be(self, handle: int) -> None:
        os.close(self.handle)
        self.handle = handle


def _identity(directory: int) -> tuple[int, int]:
    state = os.fstat(directory)
    return state.st_dev, state.st_ino
