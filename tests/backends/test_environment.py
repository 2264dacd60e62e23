"""The furnished tree: what it holds, that it never changes, and that it follows its sources."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interpreter.backends import environment
from interpreter.backends.base import BackendUnavailable
from interpreter.backends.environment import find


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment with one package that brings a script."""
    made = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    (made / "bin" / "tool").write_text(f"#!{made}/bin/python\nprint('tool')\n")
    (made / "bin" / "long").write_text(f"#!/bin/sh\n'''exec' {made}/bin/python \"$0\" \"$@\"\n' '''\n")
    return made


def test_an_environment_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="make install"):
        find(tmp_path / "absent")


def test_no_file_of_the_tree_names_a_path_of_the_host(venv: Path) -> None:
    tree = find(venv).tree
    checkout = os.fsencode(Path(environment.__file__).parent.parent.parent)
    for path in tree.rglob("*"):
        if path.is_symlink():
            assert not os.readlink(path).startswith(str(venv)), path
        elif path.is_file():
            content = path.read_bytes()
            assert os.fsencode(venv) not in content, path
            assert checkout not in content, path
    assert (tree / "cellbox/venv/bin/tool").read_text().startswith("#!/opt/cellbox/venv/bin/python\n")
    assert "exec' /opt/cellbox/venv/bin/python " in (tree / "cellbox/venv/bin/long").read_text()


def test_our_modules_are_compiled_and_readable_by_everybody(venv: Path) -> None:
    tree = find(venv).tree
    assert list((tree / "cellbox/lib/sandboxd/__pycache__").glob("protocol.*.pyc"))
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            assert path.stat().st_mode & 0o444 == 0o444, path
            assert path.stat().st_mode & 0o022 == 0, path
            assert path.is_file() or path.stat().st_mode & 0o111 == 0o111, path


def test_a_user_site_is_allowed(venv: Path) -> None:
    assert "include-system-site-packages = true" in (find(venv).tree / "cellbox/venv/pyvenv.cfg").read_text()


def test_the_same_sources_give_the_same_tree_and_others_a_new_one(venv: Path) -> None:
    first = find(venv)
    inode = first.tree.stat().st_ino
    assert find(venv).tree.stat().st_ino == inode
    (venv / "bin" / "tool").chmod(0o755)
    (venv / "bin" / "other").write_text("#!/bin/sh\n")
    second = find(venv)
    assert second.tree != first.tree
    assert first.tree.is_dir(), "a running sandbox may still use it"


def test_old_trees_go_when_nobody_has_started_with_them_for_a_day(venv: Path) -> None:
    first = find(venv).tree
    (venv / "bin" / "other").write_text("#!/bin/sh\n")
    before = time.time() - 25 * 3600
    os.utime(first, (before, before))
    second = find(venv).tree
    assert not first.exists()
    assert second.is_dir()
    assert [entry.name for entry in second.parent.iterdir()] == [second.name]


def test_no_host_name_and_no_account_of_the_host(venv: Path) -> None:
    etc = find(venv).tree / "etc"
    assert not (etc / "hostname").exists()
    assert [line.split(":")[0] for line in (etc / "passwd").read_text().splitlines()] == ["root", "sandbox", "nobody"]
    assert not (etc / "shadow").exists()


def test_what_the_node_kernel_needs_is_beside_it_and_nothing_hidden_comes_along() -> None:
    if not environment.default_venv().is_dir():
        pytest.skip("the sandboxes' environment is not installed: make install")
    kernel = find().tree / "cellbox/kernels/node"
    assert (kernel / "node_modules/acorn/package.json").is_file()
    assert not [path for path in kernel.parent.rglob("*") if path.name.startswith(".")]


def test_an_environment_without_node_says_so(venv: Path) -> None:
    with pytest.raises(BackendUnavailable, match="has no Node"):
        environment.install_node_packages(venv)
