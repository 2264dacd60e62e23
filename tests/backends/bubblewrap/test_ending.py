"""Ending processes by pidfd and cgroup, and never the wrong one."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interpreter.backends.bubblewrap import cgroups, ending
from tests.attempts import in_time
from tests.contracts.conftest import BUBBLEWRAP


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_pid_is_killed_only_if_it_started_when_it_should_have(sleeper: subprocess.Popen[bytes]) -> None:
    started = ending.start_time(sleeper.pid)
    assert started is not None
    assert not ending.kill_if_started_at(sleeper.pid, started - 1)
    assert sleeper.poll() is None
    assert ending.kill_if_started_at(sleeper.pid, started)
    assert sleeper.wait(20) == -9


def test_what_is_gone_is_not_there() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert ending.start_time(process.pid) is None
    assert ending.parent(process.pid) is None
    assert not ending.kill_if_started_at(process.pid, 0)


def test_a_process_that_is_not_in_the_group_is_spared(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """As when a pid was reused between reading the group and killing."""
    (tmp_path / "cgroup.procs").write_text(f"{sleeper.pid}\n")
    assert not ending.end_groups([str(tmp_path)], within_s=0.05)
    assert sleeper.poll() is None


def test_a_group_that_is_gone_has_ended(tmp_path: Path) -> None:
    assert ending.end_groups([str(tmp_path / "gone")], within_s=0)


@pytest.mark.alone
@pytest.mark.skipif(BUBBLEWRAP.marks[0].args[0], reason="needs root and bubblewrap on this host")
def test_a_group_is_emptied_and_removed(sleeper: subprocess.Popen[bytes]) -> None:
    found = cgroups.detect()
    assert found is not None
    group = found.bases["pids"] / f"cellbox-test-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(sleeper.pid))
    started = time.monotonic()
    assert ending.end_groups([str(group)], within_s=5)
    in_time(time.monotonic() - started, 1)
    assert not group.exists()
    assert sleeper.wait(20) == -9
