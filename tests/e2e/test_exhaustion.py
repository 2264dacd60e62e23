"""Something that the host has too little of: who asks is told what it is, and it goes on by itself once there is more."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import KEY, Cellbox, running

Serve = Callable[..., Cellbox]
GET = f"GET /v1/scopes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n\r\n".encode()


TAKE_60 = 'for n in {10..69}; do eval "exec $n</dev/null"; done; exec "$@"'
"""Holds descriptors, so that fewer sandboxes take the rest."""


def test_descriptors_run_out_and_come_back(serve: Serve, scope: str) -> None:
    service = serve(within=["prlimit", "--nofile=104:104", "bash", "-c", TAKE_60, "-"], max_sessions="60")
    said = (service.root.parent / "service.log").read_text()
    assert "only 104 files may be open here" in said
    refused = None
    for number in range(60):
        reply = service.post(scope=scope, session=f"s{number}", language="bash", code="echo 1")
        if reply.status_code != 200:
            refused = reply
            break
    assert refused is not None
    assert number > 2
    body = refused.json()
    assert (refused.status_code, body["retryable"]) == (503, True)
    assert body["code"] in ("sandbox_start_failed", "runtime_unavailable")
    assert "descriptors" in body["message"]
    assert int(refused.headers["retry-after"]) >= 1
    # What is there works: calls in running sandboxes, listings, and connections that are kept.
    for session in ("s0", f"s{number - 1}"):
        assert service.exec("echo 2", language="bash", scope=scope, session=session)["stdout"] == "2\n"
    assert len(service.client.get(f"/v1/scopes/{scope}/sessions").json()["sessions"]) == number
    _many_connections(service)
    for gone in range(2):
        service.client.delete(f"/v1/scopes/{scope}/sessions/s{gone}")
    assert service.client.get("/v1/scopes").status_code == 200
    assert service.exec("echo 3", language="bash", scope=scope, session="after")["stdout"] == "3\n"


def _many_connections(service: Cellbox) -> None:
    """More callers than there are descriptors: each is served or told, and the next one is served again."""
    address = (service.client.base_url.host, service.client.base_url.port or 80)
    connections = [socket.create_connection(address, timeout=10) for _ in range(60)]
    told = []
    for connection in connections:
        try:
            connection.sendall(GET)
            told.append(connection.recv(4096))
        except ConnectionError:
            told.append(b"")  # It was told before it asked, and reset by what it asked after that.
        connection.close()
    for answer in told:
        status = answer[9:12]
        assert status in (b"", b"200", b"429", b"503"), answer
        assert status != b"503" or b"out of descriptors" in answer, answer
    assert len([answer for answer in told if answer[9:12] in (b"", b"429")]) > 30


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 8 MiB."""
    place = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=755", "cellbox-test", place], check=False)
    if mounted.returncode:
        pytest.skip("cannot mount here")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def _fill(root: Path) -> Path:
    """Take all there is."""
    filler = root / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 2**16
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    return filler


def test_the_disk_of_the_data_fills_and_has_room_again(small_disk: Path, scope: str) -> None:
    with running(small_disk) as service:
        service.cell("x = 1", scope=scope, session="here")
        filler = _fill(small_disk)
        # Code is told by the kernel, and nothing of the service is in its way.
        wrote = service.cell("open('big', 'w').write('y' * 100000)", scope=scope, session="here")
        assert (wrote["status"], wrote["error"]["name"]) == ("error", "OSError")
        assert "No space left" in wrote["error"]["value"]
        for _ in range(50):
            answer = service.cell("x += 1; x", scope=scope, session="here")
            assert answer["status"] == "ok"
        assert service.exec("print(1)", scope=scope, session="here")["stdout"] == "1\n"
        for fields in ({"scope": scope, "session": "new"}, {"scope": f"{scope}other", "session": "new"}):
            refused = service.post(language="bash", code="echo 1", **fields)
            body = refused.json()
            assert refused.status_code in (503, 507)
            assert body["retryable"]
            assert "disk" in body["message"]
            assert int(refused.headers["retry-after"]) >= 1
        filler.unlink()
        assert service.cell("x", scope=scope, session="here")["results"][0]["data"]["text/plain"] == "51"
        for fields in ({"scope": scope, "session": "new"}, {"scope": f"{scope}other", "session": "new"}):
            assert service.exec("echo 1 > f; cat f", language="bash", **fields)["stdout"] == "1\n"


# --- the clock jumps ---------------------------------------------------------------------------------------------------

CLOCK = """
import datetime, os, time
_time, _file = time.time, os.environ["CLOCK_OFFSET"]

def offset():
    with open(_file) as file:
        return float(file.read() or 0)

class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(time.time(), tz)

time.time = lambda: _time() + offset()
time.time_ns = lambda: int(time.time() * 1e9)
datetime.datetime = Jumping
"""
DAYS = 86_400 * 10


@pytest.mark.alone
def test_the_clock_jumps_and_nothing_ends_sooner_or_later(tmp_path_factory: pytest.TempPathFactory, scope: str) -> None:
    folder = tmp_path_factory.mktemp("clock")
    offset = folder / "offset"
    offset.write_text("0")
    (folder / "sitecustomize.py").write_text(CLOCK)
    python_path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    within = ["env", f"PYTHONPATH={python_path}", f"CLOCK_OFFSET={offset}"]

    def jump(seconds: int) -> None:
        later = folder / "later"
        later.write_text(str(seconds))
        later.replace(offset)

    def seen(service: Cellbox) -> str:
        (row,) = service.client.get(f"/v1/scopes/{scope}/sessions").json()["sessions"]
        return str(row["last_used_at"])

    with running(tmp_path_factory.mktemp("cellbox"), within=within, idle_ttl="3", result_ttl="4") as service:
        service.cell("x = 1", scope=scope, session="s", execution_id="first")
        today = seen(service)
        jump(DAYS)
        assert seen(service) > today, "the service does see the other clock"
        assert seen(service)[:10] != today[:10]
        for seconds in (DAYS, -DAYS, 0):
            # Running, waiting and kept: each meets a jump, and goes by the time that has really passed.
            with ThreadPoolExecutor(2) as pool:
                began = time.monotonic()
                late = pool.submit(service.cell, "import time; time.sleep(9)", scope=scope, session="s", timeout=0.6)
                service.wait_for(lambda: _busy(service, scope), within_s=20)
                waits = pool.submit(service.cell, "x", scope=scope, session="s")
                jump(seconds)
                assert late.result()["status"] == "timeout"
                assert 0.6 <= time.monotonic() - began < 4
                answer = waits.result()
            assert (answer["results"][0]["data"]["text/plain"], answer["state"]) == ("1", "kept")
        kept = service.exec("print(7)", scope=scope, session="s", execution_id="kept")
        jump(DAYS)
        found = service.client.get(f"/v1/executions/kept?scope={scope}").json()
        assert (found["phase"], found["stdout"]) == ("finished", kept["stdout"])
        # Back before its last use: it is idle for no time at all by that clock, and goes all the same.
        jump(-DAYS)
        service.wait_for(lambda: not service.client.get(f"/v1/scopes/{scope}/sessions").json()["sessions"], within_s=20)
        service.wait_for(
            lambda: service.client.get(f"/v1/executions/kept?scope={scope}").status_code == 404, within_s=20
        )


def _busy(service: Cellbox, scope: str) -> bool:
    rows = service.client.get(f"/v1/scopes/{scope}/sessions").json()["sessions"]
    return any(row["state"] == "busy" for row in rows)
