"""Where there are no child subreapers, as with gVisor before 2023: with those of this host taken away, in a pid namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.box import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="needs root for a pid namespace")

_WITHOUT = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT / "runtime")!r})
from sandboxd import orphans, osproc
osproc.has_subreapers = lambda: False
orphans.keep_apart()
assert os.getppid() == 1, "init is a process of its own"

def daemon():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        pid = os.fork()
        if pid:
            os.write(writer, str(pid).encode())
            os._exit(0)
        time.sleep(60)
    os.waitpid(child, 0)
    return int(os.read(reader, 20))

def lives(pid):
    return (entry := osproc.find(pid)) is not None and entry.state not in "ZX"

def supervisor():
    kin = orphans.Kin()
    before = daemon()
    time.sleep(0.05)
    kin.begin()
    print(kin.orphaned())
    own = daemon()
    print(kin.orphaned(), osproc.find(own).parent)
    while kin.orphaned():
        kin.kill()
        time.sleep(0.01)
    print(lives(own), lives(before))
    sys.stdout.flush()
    os._exit(0)
"""


def _said(code: str) -> tuple[str, int]:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _WITHOUT + code]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stdout, ended.returncode


def test_what_a_program_leaves_behind_goes_to_init_and_is_found_by_when_it_began() -> None:
    """And what was there before, as the daemon of a kernel, is left alone."""
    said, _ = _said("if os.fork() == 0: supervisor()\nos.wait()")
    assert said.split() == ["False", "True", "1", "False", "True"]


@pytest.mark.parametrize(("end", "status"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_init_ends_as_the_zygote_does_and_all_with_it(end: str, status: int, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert _said(f"kept = os.open({str(pipe)!r}, os.O_WRONLY)\ndaemon()\n{end}") == ("", status)
        assert os.read(reader, 1) == b"", "who held it open has ended"
    finally:
        os.close(reader)
