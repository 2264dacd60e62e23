"""Rule S7: what is bound is looked at right before the start, and no planted link is followed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from interpreter.backends.docker import sources
from interpreter.backends.docker.spec import Bind


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for place in ("data/scope/sessions/s", "data/.run/id", "elsewhere/sessions/s"):
        (tmp_path / place).mkdir(parents=True, mode=0o755)
    (tmp_path / "data/file").touch()
    return tmp_path / "data"


def bind(source: Path, *, tenant: bool = True) -> Bind:
    return Bind(source, "/opt/workspace", writable=tenant, tenant=tenant)


def test_what_the_service_made_is_taken(root: Path) -> None:
    sources.check([bind(root / "scope/sessions/s"), bind(root / ".run/id", tenant=False)], root)
    sources.check([bind(root / "file", tenant=False)], root)


@pytest.mark.parametrize("part", ["scope", "scope/sessions", "scope/sessions/s"])
def test_a_planted_link_is_not_followed_wherever_it_is(root: Path, part: str) -> None:
    shutil.rmtree(root / part)
    (root / part).symlink_to(root.parent / "elsewhere")
    with pytest.raises(sources.Planted):
        sources.check([bind(root / "scope/sessions/s")], root)


@pytest.mark.parametrize("kind", ["file", "fifo", "missing"])
def test_a_tenants_place_is_a_directory(root: Path, kind: str) -> None:
    place = root / "scope/sessions/s"
    place.rmdir()
    if kind == "file":
        place.touch()
    elif kind == "fifo":
        os.mkfifo(place)
    with pytest.raises(sources.Planted):
        sources.check([bind(place)], root)


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_place_in_a_directory_that_others_can_write_is_refused(root: Path, mode: int) -> None:
    (root / "scope").chmod(mode)
    with pytest.raises(sources.Planted, match="somebody else"):
        sources.check([bind(root / "scope/sessions/s")], root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_place_in_a_tenants_own_directory_is_refused(root: Path) -> None:
    os.chown(root / "scope/sessions", 300_000, 300_000)
    with pytest.raises(sources.Planted, match="somebody else"):
        sources.check([bind(root / "scope/sessions/s")], root)


def test_no_descriptor_stays_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with pytest.raises(sources.Planted):
            sources.check([bind(root / "scope/nothing/s")], root)
        sources.check([bind(root / "scope/sessions/s")], root)
    assert len(os.listdir("/proc/self/fd")) == before
