from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandboxd import osproc


@pytest.mark.parametrize("name", ["plain", "a) R 1 (b", "x y", ")", "(("])
def test_a_name_that_looks_like_fields_is_read_as_a_name(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "60"]) as process:
        try:
            entry = osproc.find(process.pid)
            assert entry is not None
            assert (entry.pid, entry.parent) == (process.pid, os.getpid())
            assert entry.started > 0
        finally:
            process.kill()


def test_what_is_not_there_is_none() -> None:
    assert osproc.find(2**22 + 1) is None
    osproc.kill(2**22 + 1)


def test_below_finds_grandchildren_and_leaves_out_the_dead() -> None:
    code = "import os, time\nif os.fork():\n    time.sleep(60)\nelse:\n    os.setsid()\n    time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            while len(found := osproc.below(process.pid)) < 1:
                time.sleep(0.01)
            assert found[0].parent == process.pid
            assert {process.pid, found[0].pid} <= {entry.pid for entry in osproc.below(os.getpid())}
            assert osproc.kill_below(process.pid) == 1
            while osproc.below(process.pid):
                time.sleep(0.01)
            assert osproc.find(found[0].pid) is None or osproc.find(found[0].pid).state == "Z"
        finally:
            process.kill()


def test_a_refused_prctl_is_an_error() -> None:
    with pytest.raises(OSError, match="prctl"):
        osproc._prctl(-1, 0)


def test_received_descriptors_are_not_inherited() -> None:
    import socket

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(theirs, [b"two"], [0, 1])
        data, descriptors = osproc.receive_with_descriptors(ours, 16, 4)
        assert data == b"two"
        assert [os.get_inheritable(descriptor) for descriptor in descriptors] == [False, False]
        for descriptor in descriptors:
            os.close(descriptor)
        theirs.close()
        assert osproc.receive_with_descriptors(ours, 16, 4) == (b"", [])


def test_a_child_dies_with_its_parent() -> None:
    code = (
        "import os, sys, time\nfrom sandboxd import osproc\n"
        "if os.fork() == 0:\n    osproc.die_with_parent(); print(os.getpid(), flush=True); time.sleep(60)\ntime.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with process:
        child = int(process.stdout.readline())
        process.kill()
        while (entry := osproc.find(child)) is not None and entry.state not in "ZX":
            time.sleep(0.01)
    assert process.returncode == -signal.SIGKILL
