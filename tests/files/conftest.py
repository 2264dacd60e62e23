"""Fixtures: ``tree`` on a directory of its own, once with openat2 and once without; ``workspace`` is that directory, ``outside``
one beside it with a secret, ``staging`` where files come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from interpreter.files import confine
from interpreter.files.tree import Tree

SECRET = b"of somebody else"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    path = tmp_path / "staging"
    path.mkdir()
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_bytes(SECRET)
    return path


@pytest.fixture(params=["openat2", "walk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "openat2" and not confine.has_openat2():
        pytest.skip("this kernel has no openat2")
    monkeypatch.setattr(confine, "_has_openat2", request.param == "openat2")
    return str(request.param)


@pytest.fixture
def tree(workspace: Path, staging: Path, way: str) -> Iterator[Tree]:
    root, place = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (workspace, staging))
    uid = 200_123 if os.geteuid() == 0 else None
    made = Tree(root, place, uid, uid)
    yield made
    made.close()
