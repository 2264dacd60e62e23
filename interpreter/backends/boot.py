"""How the boot process is started and told what it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import msgspec
from sandboxd.protocol import BootConfig

_PROGRAM = "import sys; sys.path.insert(0, {lib!r}); from sandboxd.boot import main; main()"


def encode_config(
    *,
    link: str,
    workspace: str,
    user: str,
    kernels: str,
    runtime: str,
    environment: Mapping[str, str],
    seccomp: bool = True,
    redial: bool = True,
    orphan_s: float = 0.0,
    egress: str = "",
) -> str:
    """Return the one argument of the boot process: a ``BootConfig`` as JSON. Paths are those that it sees itself."""
    config = BootConfig(link, workspace, user, kernels, runtime, dict(environment), seccomp, redial, orphan_s, egress)
    return msgspec.json.encode(config).decode()


def command(python: PurePath, library: PurePath, config: str) -> list[str]:
    """Return the command of the boot process. library: folder that holds the package ``sandboxd``."""
    return [str(python), "-c", _PROGRAM.format(lib=str(library)), config]


def environment_of_boot() -> dict[str, str]:
    """Return the variables of the boot process, complete.

    Built from nothing and pointing nowhere, which isolates it as ``-I`` would, while the programs forked from it have
    the flags of a plain ``python``.
    """
    return {
        "HOME": "/nonexistent",
        "LANG": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
        "PYTHONUSERBASE": "/nonexistent",
    }
