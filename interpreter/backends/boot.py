"""How the boot process is told what it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sandboxd.protocol import BootConfig


def encode_config(
    *, link: str, workspace: str, user: str, kernels: str, runtime: str, environment: Mapping[str, str]
) -> str:
    """Return the one argument of the boot process: a ``BootConfig`` as JSON. Paths are those that it sees itself."""
    config = BootConfig(link, workspace, user, kernels, runtime, dict(environment))
    return msgspec.json.encode(config).decode()
