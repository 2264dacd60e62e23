"""Removing what an earlier service left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from interpreter.backends.bubblewrap import leftovers


def test_a_sandbox_that_could_not_be_removed_can_still_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of descriptors: without its state file nobody would ever look for it again."""
    file = tmp_path / f"{'a' * 16}{leftovers.STATE}"
    file.write_text("{}")

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(leftovers, "read_state", refuse)
    leftovers.remove(tmp_path, "cellbox-", {}, frozenset(), within_s=1.0)
    assert file.exists()
    monkeypatch.undo()
    leftovers.remove(tmp_path, "cellbox-", {}, frozenset(), within_s=1.0)
    assert not file.exists()
