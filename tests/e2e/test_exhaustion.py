"""Something that the host has too little of: who asks is told what it is, and it goes on by itself once there is more."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from interpreter import descriptors as table
from interpreter.http.server import FEWEST_CONNECTIONS
from tests.e2e.conftest import KEY, Cellbox, running
from tests.e2e.test_soak import descriptors

Serve = Callable[..., Cellbox]
GET = f"GET /v1/scopes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n\r\n".encode()


def limited(*, sandboxes: int, connections: int) -> list[str]:
    """What a service is started within for it to have descriptors for just so many."""
    files = table.needed(sandboxes=sandboxes, connections=connections, backend="bubblewrap")
    return ["prlimit", f"--nofile={files}:{files}"]


def test_where_few_files_may_be_open_there_are_fewer_sandboxes_and_connections_and_it_is_said(
    serve: Serve, scope: str
) -> None:
    service = serve(within=limited(sandboxes=3, connections=FEWEST_CONNECTIONS), max_sessions="60")
    assert "3 sandboxes instead of SANDBOX_MAX_SESSIONS=60 and 16 connections instead of 4096" in service.log
    for number in range(3):
        assert service.exec("echo 1", language="bash", scope=scope, session=f"s{number}")["stdout"] == "1\n"
    refused = service.post(scope=scope, session="s3", language="bash", code="echo 1")
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_sessions")
    assert int(refused.headers["retry-after"]) >= 1
    told = _many_connections(service, 60)
    assert set(told) <= {b"", b"200", b"429"}
    assert FEWEST_CONNECTIONS - 5 < told.count(b"200") <= FEWEST_CONNECTIONS
    service.client.delete(f"/v1/scopes/{scope}/sessions/s0")
    assert service.exec("echo 3", language="bash", scope=scope, session="s3")["stdout"] == "3\n"


def test_so_few_that_nothing_can_be_served_end_the_start_with_the_number_that_is_needed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    done = subprocess.run(
        ["prlimit", "--nofile=100:100", sys.executable, "-m", "interpreter", "serve"],
        env=os.environ
        | {"SANDBOX_DATA_ROOT": str(tmp_path_factory.mktemp("data")), "SANDBOX_RUNTIME_BACKEND": "bubblewrap"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "Only 100 files may be open here, and the least to serve with is " in done.stderr


def test_descriptors_are_taken_away_and_come_back(serve: Serve, scope: str) -> None:
    """Of a service that runs, so that none of its shares holds: then a start and a caller are told what is missing."""
    service = serve(max_sessions="60")
    service.exec("echo 1", language="bash", scope=scope, session="first")
    pid = service.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(service) + 24, limits[1]))
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
    assert len(service.client.get(f"/v1/scopes/{scope}/sessions").json()["sessions"]) == number + 1
    told = _many_connections(service, 60)
    assert set(told) <= {b"", b"200", b"429", b"503"}
    assert len([status for status in told if status in (b"", b"429")]) > 30
    for gone in range(2):
        service.client.delete(f"/v1/scopes/{scope}/sessions/s{gone}")
    assert service.client.get("/v1/scopes").status_code == 200
    assert service.exec("echo 3", language="bash", scope=scope, session="after")["stdout"] == "3\n"
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    for number in range(5):
        assert service.exec("echo 4", language="bash", scope=scope, session=f"more{number}")["stdout"] == "4\n"


def _many_connections(service: Cellbox, count: int) -> list[bytes]:
    """More callers than there are descriptors: each is served or told. Return their statuses; b"" for one that was told before it
    asked, and reset by what it asked after that."""
    connections = [_dial(service) for _ in range(count)]
    told = []
    for connection in connections:
        try:
            connection.sendall(GET)
            told.append(connection.recv(4096))
        except ConnectionError:
            told.append(b"")
    for connection in connections:
        connection.close()
    for answer in told:
        assert answer[9:12] != b"503" or b"out of descriptors" in answer, answer
    return [answer[9:12] for answer in told]


def _dial(service: Cellbox) -> socket.socket:
    address = (service.client.base_url.host, service.client.base_url.port or 80)
    return socket.create_connection(address, timeout=20)


CONNECTIONS = 150
LONG = 200_000
"""Bytes of an output that lies in a file: more than what is kept in memory."""
WRITES_AND_WAITS = f"head -c {LONG} /dev/zero | tr '\\0' x; read < go || true"
SESSIONS = [f"s{number}" for number in range(4)]
RUNS = [f"run{number}" for number in range(200)]


@pytest.mark.timeout(300)
def test_two_hundred_long_outputs_and_a_hundred_readers_take_no_more_files_than_are_counted(
    serve: Serve, scope: str
) -> None:
    few = limited(sandboxes=len(SESSIONS) + 1, connections=CONNECTIONS)
    service = serve(within=few, max_sessions=str(len(SESSIONS) + 1), max_concurrent="201", max_output_kb="1")
    for session in SESSIONS:
        service.exec("mkfifo go", language="bash", scope=scope, session=session)
    service.cell("x = 1", scope=scope, session="neighbour")
    before = descriptors(service)
    for number, name in enumerate(RUNS):
        fields = {"scope": scope, "session": SESSIONS[number % 4], "execution_id": name, "detach": True, "timeout": 250}
        reply = service.post(language="bash", code=WRITES_AND_WAITS, **fields)
        assert reply.status_code == 202, reply.text
    for name in RUNS:
        _wait_for_output(service, scope, name)
    assert len(list((service.root / ".outputs").iterdir())) == len(RUNS)
    service.wait_for(lambda: descriptors(service) <= before, within_s=20)
    readers = _followers(service, scope, CONNECTIONS + 20)
    assert descriptors(service) <= before + CONNECTIONS
    # Nobody else notices: neither a caller in another sandbox nor one who wants the whole of an output.
    assert service.cell("x + 1", scope=scope, session="neighbour")["results"][0]["data"]["text/plain"] == "2"
    for name in RUNS[::20]:
        assert service.client.get(f"/v1/executions/{name}/stdout?scope={scope}").text == "x" * LONG
    for reader in readers:
        reader.close()
    for session in SESSIONS:
        service.exec("exec 3> go; sleep 1", language="bash", scope=scope, session=session)
    for name in RUNS:
        service.wait_for(lambda name=name: _phase(service, scope, name) == "finished", within_s=60)  # type: ignore[misc]  # called without
        answer = service.client.get(f"/v1/executions/{name}?scope={scope}").json()
        assert (answer["status"], answer["output_bytes"]["stdout"]) == ("ok", LONG)
    assert service.client.get(f"/v1/executions/{RUNS[7]}/stdout?scope={scope}").text == "x" * LONG
    service.wait_for(lambda: descriptors(service) <= before, within_s=20)
    service.client.delete(f"/v1/scopes/{scope}?purge=true")
    service.wait_for(lambda: descriptors(service) <= before - table.SANDBOX * len(SESSIONS), within_s=20)
    assert list((service.root / ".outputs").iterdir()) == []
    assert "out of descriptors" not in service.log
    assert "could not be kept" not in service.log


def _wait_for_output(service: Cellbox, scope: str, name: str) -> None:
    path = f"/v1/executions/{name}/stdout?scope={scope}"
    service.wait_for(lambda: service.client.head(path).headers["content-length"] == str(LONG), within_s=120)
    assert service.client.get(path).text == "x" * LONG


def _followers(service: Cellbox, scope: str, count: int) -> list[socket.socket]:
    """More readers than there are connections: those that are there have their streams, and who comes last is told."""
    readers, statuses = [], []
    for name in RUNS[:count]:
        reader = _dial(service)
        readers.append(reader)
        asked = f"GET /v1/executions/{name}/events?scope={scope} HTTP/1.1"
        with suppress(ConnectionError):
            reader.sendall(f"{asked}\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n\r\n".encode())
    for reader in readers:
        with suppress(ConnectionError):
            statuses.append(reader.recv(12)[9:12])
    assert set(statuses) <= {b"200", b"429", b""}
    assert statuses.count(b"200") > 100
    assert statuses.count(b"200") < count
    return readers


def _phase(service: Cellbox, scope: str, name: str) -> str:
    phase: str = service.client.get(f"/v1/executions/{name}?scope={scope}").json()["phase"]
    return phase


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
