"""Which kernels there are in a sandbox: ours, and any that is installed as Jupyter kernels are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from .protocol import BootConfig

PYTHON = "python"
"""Name of the kernel that is forked and not executed."""


class _Ours(Struct, frozen=True):
    marks: bool = False
    fields: list[str] = []


class _Metadata(Struct):
    cellbox: _Ours = _Ours()


class _File(Struct):
    argv: list[str]
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    env: dict[str, str] = {}


class Kernelspec(Struct, frozen=True):
    """One kernelspec.

    argv: without its placeholders. marks: it tells which execution its output belongs to. fields: of an execution's, those that
    it can honour. forked: it is our Python kernel.
    """

    name: str
    argv: list[str]
    folder: Path
    env: dict[str, str]
    marks: bool = False
    fields: frozenset[str] = frozenset()
    forked: bool = False

    def command(self, connection_file: str) -> list[str]:
        """Return the arguments that start it."""
        values = {"{connection_file}": connection_file, "{resource_dir}": str(self.folder)}
        command = []
        for argument in self.argv:
            for placeholder, value in values.items():
                argument = argument.replace(placeholder, value)  # noqa: PLW2901
            command.append(argument)
        return command


def find(config: BootConfig) -> dict[str, Kernelspec]:
    """Return the kernelspecs by name. Ours come first; a folder without a sound ``kernel.json`` is none."""
    user = Path(config.environment.get("HOME", config.user)) / ".local"
    user = Path(config.environment.get("PYTHONUSERBASE", user))
    found: dict[str, Kernelspec] = {}
    for root in (Path(config.kernels), Path(sys.prefix, "share/jupyter/kernels"), user / "share/jupyter/kernels"):
        ours = root == Path(config.kernels)
        for folder in sorted(root.iterdir()) if root.is_dir() else ():
            spec = _read(folder, ours=ours)
            if spec is not None:
                found.setdefault(spec.name, spec)
    return found


def _read(folder: Path, *, ours: bool) -> Kernelspec | None:
    name = folder.name.lower()
    try:
        file = msgspec.json.decode((folder / "kernel.json").read_bytes(), type=_File)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    if not file.argv or len(name) > 64:
        return None
    cellbox = file.metadata.cellbox if ours else _Ours()
    return Kernelspec(
        name=name,
        argv=file.argv,
        folder=folder,
        env={key: os.path.expandvars(value) for key, value in file.env.items()},
        marks=cellbox.marks,
        fields=frozenset(cellbox.fields),
        forked=ours and name == PYTHON,
    )
