"""The parts of the Node kernel that need no Node: limits of memory, marks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kernels.conftest import REPOSITORY

sys.path[:0] = [str(REPOSITORY / "kernels/node"), str(REPOSITORY / "kernels")]
try:
    from cellbox_node.marks import MarkReader
    from cellbox_node.memory import heap_mib
finally:
    del sys.path[:2]

MIB = 2**20
GROUPS = {
    # /proc/self/cgroup, files under /sys/fs/cgroup: the heap
    "0::/": ({"memory.max": 1024 * MIB}, 768),
    "0::/a/b": ({"a/b/memory.max": "max", "a/memory.max": 512 * MIB, "memory.max": "max"}, 384),
    "0::/a": ({"a/memory.max": 1024 * MIB, "memory.max": 256 * MIB}, 192),
    "5:memory:/box\n4:cpu,cpuacct:/box": ({"memory/box/memory.limit_in_bytes": 400 * MIB}, 300),
    "5:memory:/box\n0::/": ({"memory/memory.limit_in_bytes": 2**63 - 4096}, None),
    "0::/c": ({"c/memory.max": 10 * MIB}, 64),
    "0::/d": ({"d/memory.max": "junk"}, None),
    "": ({}, None),
}


@pytest.mark.parametrize("groups", GROUPS)
def test_the_heap_is_three_quarters_of_the_tightest_limit(tmp_path: Path, groups: str) -> None:
    files, expected = GROUPS[groups]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups + "\n" if groups else "")
    for name, content in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    assert heap_mib(tmp_path, {}) == expected


@pytest.mark.parametrize(("told", "expected"), [("512", 384), ("", None), ("-1", None), ("9" * 30, None), ("x", None)])
def test_without_control_groups_the_variable_counts(tmp_path: Path, told: str, expected: int | None) -> None:
    assert heap_mib(tmp_path, {"CELLBOX_MEMORY_MIB": told}) == expected


SECRET = "5" * 32
HEAD = f"\x1b]cellbox;{SECRET};".encode()
STREAM = (
    b"raw"
    + HEAD
    + b"t;3;1;5\ahello"
    + HEAD
    + b"t;4;2;2\a"
    + b"\x1b]"
    + HEAD
    + b"d;7\a"
    + b"\x1b]cellbox;"  # no secret
    + HEAD
    + b"t;3;9;5\a"  # no such stream
    + HEAD
    + b"t;3;1;0\a"
    + HEAD
    + b"d;8\aend\x1b]cellb"
)
HEARD = [
    ("raw", b"raw"),
    ("text", 3, 1, b"hello"),
    ("text", 4, 2, b"\x1b]"),
    ("shown", 7),
    ("raw", b"\x1b]cellbox;" + HEAD + b"t;3;9;5\a"),
    ("text", 3, 1, b""),
    ("shown", 8),
    ("raw", b"end\x1b]cellb"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_marks_are_read_however_they_are_cut(size: int) -> None:
    heard: list[tuple] = []

    def raw(data: bytes) -> None:
        if heard and heard[-1][0] == "raw":
            heard[-1] = ("raw", heard[-1][1] + data)
        else:
            heard.append(("raw", data))

    reader = MarkReader(SECRET, lambda *text: heard.append(("text", *text)), raw, lambda n: heard.append(("shown", n)))
    for start in range(0, len(STREAM), size):
        reader.feed(STREAM[start : start + size])
    reader.settle()
    assert heard == HEARD
