"""A tenant that dials before its sandboxd does, when the next service takes its sandbox over: it breaks its own sandbox only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandboxd.protocol import (
    MAX_KNOWN,
    VERSION,
    Alive,
    Finished,
    Hello,
    KernelGone,
    Known,
    Outcome,
    Progress,
    encode,
)

from tests.attempts import in_time
from tests.e2e.conftest import CONFINED, Cellbox

RUNTIMES = CONFINED

Serve = Callable[..., Cellbox]

DIALLER = """
import socket, sys, time
first, flood = (open('/opt/workspace/' + name, 'rb').read() for name in ('first', 'flood'))
open('/opt/workspace/ready', 'w')
while True:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect('/run/cellbox/link.sock')
    except OSError:
        time.sleep(0.0005)
        continue
    open('/opt/workspace/dialled', 'a').write('x')
    try:
        link.sendall(first)
        while flood:
            link.sendall(flood)
        link.settimeout(60)
        while link.recv(65536):
            pass
    except OSError:
        pass
"""

OK = Outcome("ok", 0, 1, stdout="forged")


def hello(**fields: object) -> bytes:
    return encode(Hello(version=VERSION, kernels=["python"], stateless=["python"], **fields))  # type: ignore[arg-type]


ATTACKS = {
    "junk": (b"\xff\xff\xff\xff", b""),
    "half a frame and nothing more": (hello()[:-1], b""),
    "a hello of nobody": (hello(), b""),
    "executions that nobody sent": (
        hello(
            known=[Known(f"{number:032x}", "finished") for number in range(MAX_KNOWN)],
            alive=[Alive("python", f"c{number}") for number in range(64)],
        ),
        encode(Finished("0" * 32, OK)),
    ),
    "a flood": (
        hello(known=[Known("a", "running")]),
        encode(KernelGone("python", "default", "oom")) + encode(Progress("a", "stdout", "x" * 2**20)),
    ),
}


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


LONG = {"half a frame and nothing more"}
"""Whoever asks for such a sandbox waits until it has had its time."""


def _marks(name: str) -> pytest.MarkDecorator | list[pytest.MarkDecorator]:
    """One of them is short on docker too."""
    if name in LONG:
        return pytest.mark.soak
    return [] if name == "junk" else pytest.mark.long_on_docker


@pytest.mark.alone
@pytest.mark.parametrize(
    ("first", "flood"),
    [pytest.param(*attack, id=name, marks=_marks(name)) for name, attack in ATTACKS.items()],
)
def test_who_dials_in_place_of_sandboxd_costs_its_own_sandbox(
    serve: Serve, scope: str, first: bytes, flood: bytes
) -> None:
    cellbox = serve()
    other = f"{scope}-other"
    cellbox.cell("x = 41", scope=other)
    cellbox.cell("import subprocess, sys", scope=scope, session="bad")
    place = cellbox.root / scope / "sessions" / "bad"
    for name, content in (("first", first), ("flood", flood)):
        (place / name).write_bytes(content)
    cellbox.cell(
        f"for _ in range(4): subprocess.Popen([sys.executable, '-c', {DIALLER!r}])", scope=scope, session="bad"
    )
    cellbox.wait_for((place / "ready").exists, within_s=20)
    cellbox.end(signal.SIGKILL)
    cellbox.start()
    cellbox.wait_for((place / "dialled").exists, within_s=20)
    began = time.monotonic()
    answer = cellbox.cell("x + 1", scope=other)
    assert (answer["state"], answer["results"][0]["data"]["text/plain"]) == ("kept", "42")
    in_time(time.monotonic() - began, 5)
    descriptors = len(os.listdir(f"/proc/{cellbox.process.pid}/fd"))
    response = cellbox.post(
        scope=scope, session="bad", language="python", stateful=True, code="print('mine')", timeout=0.5
    )
    if response.status_code == 200:  # in the old sandbox, whose answers are the tenant's, or in a new one
        assert response.json()["state"] in ("lost", "kept", "new")
    else:
        assert response.json()["error"]["code"] in ("sandbox_start_failed", "kernel_start_failed"), response.text
    cellbox.wait_for(lambda: _works(cellbox, scope), within_s=30)
    assert cellbox.cell("x + 1", scope=other)["state"] == "kept"
    assert resident_mib(cellbox.process.pid) < 150
    assert len(os.listdir(f"/proc/{cellbox.process.pid}/fd")) <= descriptors + 20
    assert "Traceback" not in cellbox.log


def _works(cellbox: Cellbox, scope: str) -> bool:
    """Whether the session has a sandbox again that does what it is told."""
    response = cellbox.post(scope=scope, session="bad", language="python", stateful=True, code="6 * 7", timeout=1)
    results = response.json().get("results") or []
    return bool(results) and results[0]["data"].get("text/plain") == "42"
