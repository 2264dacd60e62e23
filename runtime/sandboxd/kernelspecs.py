"""Which kernels there are in a sandbox: ours, and any that is installed as Jupyter kernels are.

Promises: whatever lies in the user's folder of kernels, reading it neither blocks nor fails nor takes much, and what is found
fits into ``Hello``.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from .protocol import BootConfig

_NAME = re.compile(r"[a-z0-9._-]{1,64}")
"""Jupyter's own rule, and a length that fits into a message."""

_MOST_KERNELS = 64
"""As many as ``Hello`` names."""

_MOST_ENTRIES = 1_000
_MAX_BYTES = 65_536


class _Ours(Struct, frozen=True):
    marks: bool = False
    fields: list[str] = []
    forked: bool = False
    child: bool = False


class _Metadata(Struct):
    cellbox: _Ours = _Ours()


class _File(Struct):
    argv: list[str]
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    env: dict[str, str] = {}
    interrupt_mode: str = "signal"


class Kernelspec(Struct, frozen=True):
    """One kernelspec.

    argv: with its placeholders. marks: it follows our contract: it listens on ipc sockets, greets subscribers, never drops a
    message, and tells which execution its output belongs to. fields: of an execution's, those that it can honour. forked: it is
    Python and ours, imported ahead of time and not executed. child: executions run in a child of it.
    interrupted_by_message: it wants a request on control and no signal.
    """

    name: str
    argv: list[str]
    folder: Path
    env: dict[str, str]
    marks: bool = False
    fields: frozenset[str] = frozenset()
    forked: bool = False
    child: bool = False
    interrupted_by_message: bool = False

    def command(self, connection_file: str) -> list[str]:
        """Return the arguments that start it."""
        values = {"{connection_file}": connection_file, "{resource_dir}": str(self.folder)}
        command = []
        for argument in self.argv:
            for placeholder, value in values.items():
                argument = argument.replace(placeholder, value)  # noqa: PLW2901 - filled in step by step
            command.append(argument)
        return command


def find(config: BootConfig) -> dict[str, Kernelspec]:
    """Return the kernelspecs by name. Ours come first; a folder without a sound ``kernel.json`` is none."""
    user = Path(config.environment.get("HOME", config.user)) / ".local"
    user = Path(config.environment.get("PYTHONUSERBASE", user))
    found: dict[str, Kernelspec] = {}
    for root in (Path(config.kernels), Path(sys.prefix, "share/jupyter/kernels"), user / "share/jupyter/kernels"):
        ours = root == Path(config.kernels)
        for folder in _folders(root):
            spec = _read(folder, ours=ours)
            if spec is not None and len(found) < _MOST_KERNELS:
                found.setdefault(spec.name, spec)
    return found


def forked(root: Path) -> list[Path]:
    """Return the folders of those of our kernels, in ``root``, that are to be imported ahead of time."""
    return [folder for folder in _folders(root) if (spec := _read(folder, ours=True)) is not None and spec.forked]


def _folders(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            return sorted(root / entry.name for entry in islice(entries, _MOST_ENTRIES))
    except OSError:
        return []


def _read(folder: Path, *, ours: bool) -> Kernelspec | None:
    name = folder.name.lower()
    if _NAME.fullmatch(name) is None:
        return None
    try:
        file = msgspec.json.decode(_content(folder / "kernel.json"), type=_File)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    if not file.argv:
        return None
    cellbox = file.metadata.cellbox if ours else _Ours()
    return Kernelspec(
        name=name,
        argv=file.argv,
        folder=folder,
        env={key: os.path.expandvars(value) for key, value in file.env.items()},
        marks=cellbox.marks,
        fields=frozenset(cellbox.fields),
        forked=cellbox.forked,
        child=cellbox.child,
        interrupted_by_message=file.interrupt_mode == "message",
    )


def _content(file: Path) -> bytes:
    """Return the bytes of a small regular file. Raises OSError or ValueError for anything else, and never waits for it."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, _MAX_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)
    if len(data) > _MAX_BYTES:
        raise ValueError("too long for a kernelspec")
    return data
