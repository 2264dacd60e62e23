"""The process itself: how it begins and ends, and what it costs while others do their worst."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from egress import protocol
from egress.protocol import Policy
from tests.attempts import in_time
from tests.egress.proxy import LIMIT_S, ROOT, Proxy, running

PLAIN = b"GET http://origin.example:%d/%s HTTP/1.1\r\nConnection: close\r\n\r\n"


class Origin:
    """A server in threads: ``/N`` is answered with N bytes."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listening.accept()
                thread = threading.Thread(target=self._serve, args=(connected,))
                thread.start()
                self._threads.append(thread)

    def _serve(self, connected: socket.socket) -> None:
        piece = memoryview(bytes(2**20))
        with connected, contextlib.suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                if not (data := connected.recv(65536)):
                    return
                head += data
            left = int(head.split()[1][1:])
            connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
            while left:
                left -= connected.send(piece[:left])

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(LIMIT_S)


@pytest.fixture
def origin() -> Iterator[Origin]:
    made = Origin()
    yield made
    made.close()


@pytest.fixture
def proxy(tmp_path: Path, origin: Origin) -> Iterator[Proxy]:
    with running(tmp_path, {"origin.example": "127.0.0.1"}, log=tmp_path / "log") as made:
        yield made


def opened(proxy: Proxy, origin: Origin, sandbox: str) -> Path:
    return proxy.open(sandbox, allow=(f"origin.example:{origin.port}",), private_cidrs=("127.0.0.0/8",))


def connected(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(LIMIT_S)
        made.connect(str(path))
    except BaseException:
        made.close()
        raise
    return made


def fetch(path: Path, origin: Origin, size: int) -> int:
    """The number of bytes that came for ``size``, the head included."""
    buffer, count = bytearray(2**20), 0
    with connected(path) as client:
        client.sendall(PLAIN % (origin.port, b"%d" % size))
        while got := client.recv_into(buffer):
            count += got
    return count


def test_help_teaches() -> None:
    told = subprocess.run([sys.executable, "-m", "egress", "--help"], cwd=ROOT, capture_output=True, check=True).stdout
    assert b"CONNECT host:port" in told
    assert b"--control-fd" in told


@pytest.mark.parametrize("arguments", [[], ["--control", "a", "--control-fd", "3"], ["--control-fd", "x"]])
def test_arguments_that_are_none_are_told(arguments: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-m", "egress", *arguments], cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == 2
    assert b"usage:" in ended.stderr


def test_a_path_that_cannot_be_listened_at_is_told(tmp_path: Path) -> None:
    where = tmp_path / "nowhere" / "control"
    ended = subprocess.run(
        [sys.executable, "-m", "egress", "--control", where], cwd=ROOT, capture_output=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"egress: ")


def test_it_ends_when_its_service_does_and_leaves_no_socket(tmp_path: Path) -> None:
    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "egress", "--control-fd", str(its.fileno())],
            pass_fds=[its.fileno()],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
    with ours, ours.makefile("rb") as lines:
        ours.sendall(protocol.encode(protocol.Open("one", str(tmp_path / "one"), Policy())))
        assert protocol.from_egress(lines.readline()) == protocol.Opened("one")
        assert (tmp_path / "one").is_socket()
    assert process.wait(LIMIT_S) == 0
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_by_a_signal_and_leaves_no_socket(tmp_path: Path, number: signal.Signals) -> None:
    control = tmp_path / "control"
    process = subprocess.Popen(
        [sys.executable, "-m", "egress", "--control", control], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + LIMIT_S
    while not control.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with socket.socket(socket.AF_UNIX) as service:
        service.connect(str(control))
        service.sendall(protocol.encode(protocol.Open("one", str(tmp_path / "one"), Policy())))
        with service.makefile("rb") as lines:
            assert protocol.from_egress(lines.readline()) == protocol.Opened("one")
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0
    assert list(tmp_path.iterdir()) == []


def test_names_are_resolved_by_the_resolver_of_the_host(tmp_path: Path, origin: Origin) -> None:
    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "egress", "--control-fd", str(its.fileno())],
            pass_fds=[its.fileno()],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
    proxy = Proxy(process, ours, tmp_path)
    path = proxy.open("one", allow=(f"localhost:{origin.port}",), private_cidrs=("127.0.0.0/8",))
    with connected(path) as client:
        client.sendall(b"GET http://localhost:%d/5 HTTP/1.1\r\nConnection: close\r\n\r\n" % origin.port)
        answer = b""
        while data := client.recv(1000):
            answer += data
    assert answer.endswith(bytes(5))
    proxy.close()
    assert process.wait(LIMIT_S) == 0


def test_lines_of_the_log_are_of_one_form(tmp_path: Path, proxy: Proxy, origin: Origin) -> None:
    path = opened(proxy, origin, "one")
    fetch(path, origin, 1)
    with connected(path) as client:
        client.sendall(b"CONNECT other.example:443 HTTP/1.1\r\n\r\n")
        assert b"403" in client.recv(1000)
    log = (tmp_path / "log").read_text()
    allowed = f"host=origin.example left_out=0 port={origin.port} reason=None sandbox=one\n"
    assert f" INFO egress egress allowed {allowed}" in log
    assert " INFO egress egress denied host=other.example left_out=0 port=443 reason=not_allowed sandbox=one\n" in log


def memory_kib(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


@pytest.mark.parametrize("mib", [64, pytest.param(1024, marks=pytest.mark.soak)])
def test_a_large_body_goes_through_in_little_memory(proxy: Proxy, origin: Origin, mib: int) -> None:
    path = opened(proxy, origin, "one")
    fetch(path, origin, 2**20)
    before = memory_kib(proxy.process)
    with connected(path) as slow:
        slow.sendall(PLAIN % (origin.port, b"%d" % (mib * 2**20)))
        assert fetch(path, origin, mib * 2**20) > mib * 2**20
        assert memory_kib(proxy.process) - before < 4 * 1024


@pytest.mark.alone
def test_many_slow_clients_of_one_sandbox_do_not_slow_another(proxy: Proxy, origin: Origin) -> None:
    """Half of them never end their head, a quarter have a tunnel without a hello, a quarter read nothing."""
    slow, quick = opened(proxy, origin, "slow"), opened(proxy, origin, "quick")
    endless = PLAIN % (origin.port, b"1000000000")
    kinds = itertools.cycle(
        [b"GET http://origin.example", b"", b"CONNECT origin.example:%d HTTP/1.1\r\n\r\n" % origin.port, endless]
    )
    with contextlib.ExitStack() as held:
        for kind in itertools.islice(kinds, 500):
            client = held.enter_context(connected(slow))
            client.settimeout(0.2)
            with contextlib.suppress(OSError):
                client.sendall(kind)
        for _ in range(20):
            started = time.monotonic()
            assert fetch(quick, origin, 1000) > 1000
            in_time(time.monotonic() - started, 2)


@pytest.mark.alone
def test_a_policy_takes_effect_within_a_second_under_load_and_cuts_nothing_that_it_allows(
    proxy: Proxy, origin: Origin
) -> None:
    path = opened(proxy, origin, "one")
    sizes: list[int] = []
    loads = [threading.Thread(target=lambda: sizes.append(fetch(path, origin, 2**28))) for _ in range(8)]
    for load in loads:
        load.start()
    for round_ in range(5):
        with connected(path) as client:
            client.sendall(b"CONNECT name%d.example:443 HTTP/1.1\r\n\r\n" % round_)
            assert client.recv(1000).startswith(b"HTTP/1.1 403 ")
            proxy.say(protocol.Noted(round_))
        assert isinstance(proxy.hear(), protocol.Denied)
        started = time.monotonic()
        proxy.open(
            "one",
            allow=(f"origin.example:{origin.port}", f"name{round_}.example"),
            private_cidrs=("127.0.0.0/8",),
        )
        with connected(path) as client:
            client.sendall(b"CONNECT name%d.example:443 HTTP/1.1\r\n\r\n" % round_)
            assert client.recv(1000).startswith(b"HTTP/1.1 502 ")  # let through, and there is no such host
        in_time(time.monotonic() - started, 1)
    for load in loads:
        load.join(60)
    assert [size > 2**28 for size in sizes] == [True] * 8
