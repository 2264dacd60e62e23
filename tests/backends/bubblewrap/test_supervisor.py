"""The parts of the supervisor that can be looked at without a sandbox."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "interpreter" / "backends" / "bubblewrap"


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    import supervisor as module

    yield module
    for name in ("supervisor", "ending"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("listed", [True, False])
def test_a_lock_is_seen_without_being_taken(
    supervisor: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    """Also where the kernel lists it under other numbers."""
    lock = tmp_path / "lock"
    assert not supervisor._held(str(lock))
    holder = os.open(lock, os.O_CREAT | os.O_RDWR)
    if not listed:
        monkeypatch.setattr(supervisor.ending, "read", lambda _path: "1: FLOCK ADVISORY WRITE 7 00:1f:1 0 EOF\n")
    assert not supervisor._held(str(lock))
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert supervisor._held(str(lock))
    os.close(holder)
    assert not supervisor._held(str(lock))


def test_a_limit_that_the_kernel_does_not_take_is_an_error(
    supervisor: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor.os, "mkdir", lambda _path: None)
    with pytest.raises(supervisor.Failed, match="did not take the limit null"):
        supervisor._make_groups([("/dev", [("null", "64")])], enter=os.getpid())


def test_a_place_is_opened_without_following_links(supervisor: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "scope" / "workspace").mkdir(parents=True)
    os.close(supervisor._open_below(str(tmp_path), "scope/workspace"))
    for planted in ("scope/link", "link/workspace"):
        place = tmp_path / "scope" / "link" if planted == "scope/link" else tmp_path / "link"
        place.symlink_to(tmp_path / "scope")
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            supervisor._open_below(str(tmp_path), planted)


def test_it_imports_little() -> None:
    """Each import costs every start milliseconds and every sandbox memory."""
    program = "import sys; sys.path.insert(0, sys.argv[1]); import supervisor; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, FOLDER], capture_output=True, text=True, check=True
    )
    assert not {"asyncio", "enum", "json", "re", "signal", "subprocess", "typing"} & set(done.stdout.split())
