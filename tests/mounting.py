"""Loop devices and mounts: whether they can be had here, and which there are."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from interpreter.scopes import images


@functools.cache
def trouble() -> str | None:
    """Why no file system can be made and mounted here."""
    with tempfile.TemporaryDirectory() as place:
        return images.trouble(Path(place))


def need() -> None:
    """Skip the test where none can be had."""
    if (why := trouble()) is not None:
        pytest.skip(f"needs file systems in files: {why}")


def below(directory: Path) -> list[str]:
    """Return where something is mounted below ``directory``."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return sorted(place for place in places if Path(place).is_relative_to(directory))


def may_grow_in_use() -> bool:
    """Whether we have CAP_SYS_RESOURCE."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> 24 & 1)
