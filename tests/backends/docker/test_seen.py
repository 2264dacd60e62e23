"""What the host shows of a container is taken only if it is that container's."""

from __future__ import annotations

import os
from pathlib import Path

from interpreter.backends.docker import seen

CONTAINER = "c" * 64
V1 = "".join(
    f"{n}:{name}:/docker/{CONTAINER}\n" for n, name in enumerate(("name=systemd", "pids", "memory", "cpu,cpuacct"))
)


def mounts(root: Path) -> str:
    lines = [f"30 20 0:{n} / {root}/{n} rw - cgroup cgroup rw,{n}" for n in ("pids", "memory", "cpu", "systemd")]
    return "\n".join([*lines, f"31 20 0:9 / {root}/unified rw - cgroup2 cgroup2 rw"]) + "\n"


def made(root: Path, name: str, path: str) -> str:
    folder = root / name / path
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").touch()
    return str(folder)


def test_groups_of_version_1_are_those_that_limit(tmp_path: Path) -> None:
    wanted = {made(tmp_path, name, f"docker/{CONTAINER}") for name in ("pids", "memory", "cpu")}
    assert set(seen._groups(V1, mounts(tmp_path), CONTAINER)) == wanted


def test_the_group_of_version_2_is_found(tmp_path: Path) -> None:
    path = f"system.slice/docker-{CONTAINER}.scope"
    wanted = made(tmp_path, "unified", path)
    assert list(seen._groups(f"0::/{path}\n", mounts(tmp_path), CONTAINER)) == [wanted]


def test_groups_of_others_and_those_that_are_not_there_are_none(tmp_path: Path) -> None:
    made(tmp_path, "memory", "docker/other")
    assert list(seen._groups("4:memory:/docker/other\n0::/\n", mounts(tmp_path), CONTAINER)) == []
    assert list(seen._groups(V1, mounts(tmp_path), CONTAINER)) == []


def test_a_process_that_is_not_the_containers_is_let_go() -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert seen.look(CONTAINER, os.getpid()) == seen.NOTHING
    assert seen.look(CONTAINER, 0) == seen.NOTHING
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_limit_that_the_kernel_does_not_have_is_named(tmp_path: Path) -> None:
    (tmp_path / "pids.max").write_text("max\n")
    (tmp_path / "memory.max").write_text("64\n")
    wanted = {"pids.max": "80", "memory.max": "64", "memory.swap.max": "0"}
    assert seen.wrong_limits((str(tmp_path),), wanted) == ["pids.max"]
