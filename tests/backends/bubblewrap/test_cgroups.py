"""Which cgroups are used, from the kernel's own files, and what is written into them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interpreter.backends.base import Limits, Stats
from interpreter.backends.bubblewrap import cgroups
from interpreter.backends.bubblewrap.cgroups import Cgroups

LIMITS = Limits(memory_mib=100, cpus=1.5, pids=10)
MEMORY = str(164 * 2**20)


def _proc(tmp_path: Path, cgroup: str, mounts: list[str]) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text("\n".join(mounts) + "\n")
    return proc


def _mount(root: str, place: Path, kind: str, options: str) -> str:
    return f"30 20 0:26 {root} {place} rw,nosuid - {kind} cgroup rw,{options}"


def test_version_1_takes_our_own_group_of_each_hierarchy(tmp_path: Path) -> None:
    for name in ("memory/service", "pids", "cpu,cpuacct"):
        (tmp_path / name).mkdir(parents=True)
    mounts = [
        _mount("/", tmp_path / "cpu,cpuacct", "cgroup", "cpu,cpuacct"),
        _mount("/", tmp_path / "memory", "cgroup", "memory"),
        _mount("/", tmp_path / "pids", "cgroup", "pids"),
    ]
    found = cgroups.detect(_proc(tmp_path, "4:memory:/service\n3:pids:/\n2:cpu,cpuacct:/\n0::/\n", mounts))
    assert found == Cgroups(
        1, {"memory": tmp_path / "memory/service", "pids": tmp_path / "pids", "cpu": tmp_path / "cpu,cpuacct"}
    )
    assert list((tmp_path / "pids").iterdir()) == []


def test_a_container_sees_only_its_part_of_the_hierarchy(tmp_path: Path) -> None:
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name).mkdir()
    mounts = [_mount("/docker/abc", tmp_path / name, "cgroup", name) for name in ("memory", "pids", "cpu")]
    text = "".join(f"{number}:{name}:/docker/abc\n" for number, name in enumerate(("memory", "pids", "cpu")))
    found = cgroups.detect(_proc(tmp_path, text, mounts))
    assert found is not None
    assert found.bases["memory"] == tmp_path / "memory"


class Kernel:
    """A hierarchy of version 2 in plain files: a group with processes does not hand its controllers on."""

    def __init__(self, tmp_path: Path, own: str, *, container: bool) -> None:
        self.top = tmp_path / "unified"
        self.own = self.top / own.lstrip("/")
        self.own.mkdir(parents=True)
        for group in {self.top, self.own}:
            (group / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
            (group / "cgroup.subtree_control").write_text("")
            (group / "cgroup.procs").write_text("")
            if container or group != self.top:
                (group / "cgroup.type").write_text("domain\n")
        self.proc = _proc(tmp_path, f"0::{own}\n", [_mount("/", self.top, "cgroup2", "nsdelegate")])

    def full(self, pid: int) -> None:
        """Put a process into our own group, which refuses to hand on until there is a leaf to move it to."""
        (self.own / "cgroup.procs").write_text(f"{pid}\n")
        (self.own / "cgroup.subtree_control").unlink()
        (self.own / "cgroup.subtree_control").symlink_to(self.own / "cellbox-service" / "handed-on")


@pytest.fixture
def stranger() -> Iterator[int]:
    """Pid of a process that neither started us nor was started by us: its parent has ended."""
    shell = subprocess.run(
        ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True
    )
    pid = int(shell.stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


def test_version_2_moves_us_into_a_leaf_and_hands_the_controllers_on(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/service", container=False)
    kernel.full(os.getpid())
    assert cgroups.detect(kernel.proc) == Cgroups(2, dict.fromkeys(("memory", "pids", "cpu"), kernel.own))
    assert (kernel.own / "cellbox-service" / "cgroup.procs").read_text() == str(os.getpid())
    assert (kernel.own / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_version_2_leaves_a_group_alone_that_is_not_only_ours(tmp_path: Path, stranger: int) -> None:
    """A login session holds a shell and more: they stay where they are, and the top of the host is used."""
    kernel = Kernel(tmp_path, "/session", container=False)
    kernel.full(stranger)
    found = cgroups.detect(kernel.proc)
    assert found == Cgroups(2, dict.fromkeys(("memory", "pids", "cpu"), kernel.top / "cellbox"))
    assert not (kernel.own / "cellbox-service").exists()


def test_version_2_in_a_container_has_no_other_place(tmp_path: Path, stranger: int) -> None:
    kernel = Kernel(tmp_path, "/session", container=True)
    kernel.full(stranger)
    assert cgroups.detect(kernel.proc) is None


def test_version_2_at_the_top_of_a_container_everything_moves(tmp_path: Path, stranger: int) -> None:
    kernel = Kernel(tmp_path, "/", container=True)
    kernel.full(stranger)
    assert cgroups.detect(kernel.proc) == Cgroups(2, dict.fromkeys(("memory", "pids", "cpu"), kernel.top))
    assert (kernel.top / "cellbox-service" / "cgroup.procs").read_text() == str(stranger)


@pytest.mark.parametrize(
    ("cgroup", "controllers"),
    [("", "cpu memory pids"), ("0::/service\n", "cpu pids"), ("0::/elsewhere\n", "cpu memory pids")],
)
def test_a_controller_that_is_missing_is_none_of_use(tmp_path: Path, cgroup: str, controllers: str) -> None:
    own = tmp_path / "unified" / "service"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text(controllers)
    mounts = [_mount("/", tmp_path / "unified", "cgroup2", "nsdelegate")]
    assert cgroups.detect(_proc(tmp_path, cgroup, mounts)) is None


def test_a_hierarchy_that_we_cannot_write_is_none_of_use(tmp_path: Path) -> None:
    """Nobody can make a directory in /proc, not even root."""
    mounts = [_mount("/", Path("/proc"), "cgroup", name) for name in ("memory", "pids", "cpu")]
    text = "".join(f"{number}:{name}:/\n" for number, name in enumerate(("memory", "pids", "cpu")))
    assert cgroups.detect(_proc(tmp_path, text, mounts)) is None


def test_limits_are_the_tenants_with_our_part_on_top(tmp_path: Path) -> None:
    (tmp_path / "memory.memsw.limit_in_bytes").touch()
    bases = {"memory": tmp_path, "pids": Path("/p"), "cpu": Path("/c")}
    assert Cgroups(1, bases).groups("x", LIMITS) == [
        (str(tmp_path / "x"), [("memory.limit_in_bytes", MEMORY), ("memory.memsw.limit_in_bytes", MEMORY)]),
        ("/p/x", [("pids.max", "58")]),
        ("/c/x", [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "150000")]),
    ]
    one = dict.fromkeys(("memory", "pids", "cpu"), Path("/v2"))
    wanted = [("memory.max", MEMORY), ("pids.max", "58"), ("cpu.max", "150000 100000")]
    assert Cgroups(2, one).groups("x", LIMITS) == [("/v2/x", wanted)]


def test_stats_read_both_versions(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "memory.usage_in_bytes").write_text("1000\n")
    (one / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 300\n")
    (one / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (two / "memory.current").write_text("1000\n")
    (two / "memory.stat").write_text("inactive_file 400\n")
    (two / "memory.events").write_text("low 0\noom 5\noom_kill 3\noom_group_kill 0\n")
    (two / "pids.current").write_text("7\n")
    assert cgroups.stats([str(one)]) == Stats(700, 2, None)
    assert cgroups.stats([str(two)]) == Stats(600, 3, 7)
    assert cgroups.stats([str(tmp_path / "gone")]) == Stats(None, 0, None)
