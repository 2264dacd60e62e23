"""Rows of the way out: bodies, small requests and many connections through it, beside no proxy and beside squid or tinyproxy.

The same client fetches the same answers from the same origin, so that the way is all that differs. Without squid (Debian:
squid) tinyproxy stands in for it; without both, the rows that are beside it are left out, and that is said.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import apart
from tests.bench import measure
from tests.bench.rows import Caller
from tests.e2e.conftest import Cellbox
from tests.egress.proxy import ROOT, running

MIB = 2**20
LARGE = 1024 * MIB
SIDE_BY_SIDE = 200
EACH = MIB
NAME = "origin.example"

_SQUID = """
http_port 127.0.0.1:{port}
http_access allow all
cache deny all
access_log none
cache_log /dev/null
pid_filename none
coredump_dir {root}
shutdown_lifetime 0 seconds
"""
_TINYPROXY = """
Port {port}
Listen 127.0.0.1
MaxClients 500
LogLevel Critical
"""


@dataclass(frozen=True, slots=True)
class Way:
    """How a client gets to the origin. address: to connect to. prefix: of the target of a request."""

    address: tuple[str, int] | str
    prefix: bytes
    host: bytes

    def connect(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET)
        connected.settimeout(120)
        connected.connect(self.address)
        return connected

    def fetch(self, size: int, connected: socket.socket | None = None) -> None:
        """Get an answer of ``size`` bytes, on a connection of its own or on one that is there."""
        with contextlib.nullcontext(connected) if connected is not None else self.connect() as client:
            client.sendall(b"GET %s/%d HTTP/1.1\r\nHost: %s\r\n\r\n" % (self.prefix, size, self.host))
            head, buffer = b"", bytearray(MIB)
            while b"\r\n\r\n" not in head:
                head += self._some(client, buffer)
            left = size - len(head.partition(b"\r\n\r\n")[2])
            assert b" 200 " in head[:20], head
            while left > 0:
                left -= len(self._some(client, buffer))

    @staticmethod
    def _some(client: socket.socket, buffer: bytearray) -> memoryview:
        count = client.recv_into(buffer)
        assert count, "the answer was cut"
        return memoryview(buffer)[:count]


def large(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """A body of 1 GiB."""
    with _ways() as (direct, ours, others):
        beside = {"no proxy": (direct, 8.0)} | {name: (way, 1 / 0.7) for name, way in others.items()}
        return [
            measure.against(
                "1 GiB through egress",
                lambda: ours.fetch(LARGE),
                name,
                lambda way=way: way.fetch(LARGE),
                n=5,
                warm_up=1,
                limit=limit,
            )
            for name, (way, limit) in beside.items()
        ]


def small(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """What a small request takes longer than without a proxy, on a kept connection and on a new one."""
    with _ways() as (direct, ours, _), direct.connect() as to_origin, ours.connect() as to_proxy:

        def kept() -> float:
            with_proxy = measure.elapsed_ms(lambda: ours.fetch(200, to_proxy))
            return with_proxy - measure.elapsed_ms(lambda: direct.fetch(200, to_origin))

        def new() -> float:
            return measure.elapsed_ms(lambda: ours.fetch(200)) - measure.elapsed_ms(lambda: direct.fetch(200))

        return [
            measure.alone(f"added to a small request, {name}", step, n=300, warm_up=20, limit=3)
            for name, step in (("kept connection", kept), ("new connection", new))
        ]


def many(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """200 connections of one sandbox side by side, each with an answer of 1 MiB."""
    with _ways() as (direct, ours, others):
        beside = {"no proxy": (direct, 8.0)} | {name: (way, 1.5) for name, way in others.items()}
        return [
            measure.against(
                f"{SIDE_BY_SIDE} x 1 MiB through egress",
                lambda: _all_at_once(ours),
                name,
                lambda way=way: _all_at_once(way),
                n=5,
                warm_up=1,
                limit=limit,
            )
            for name, (way, limit) in beside.items()
        ]


def _all_at_once(way: Way) -> None:
    done: list[int] = []
    clients = [threading.Thread(target=lambda: done.append(way.fetch(EACH) or 1)) for _ in range(SIDE_BY_SIDE)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert len(done) == SIDE_BY_SIDE, f"{SIDE_BY_SIDE - len(done)} of them failed"


@contextmanager
def _ways() -> Iterator[tuple[Way, Way, dict[str, Way]]]:
    """To the same origin: without a proxy, through ours, and through each other one that is there."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="cellbox-bench-") as directory:
        folder = Path(directory)
        port = stack.enter_context(_origin())
        proxy = stack.enter_context(running(folder, {NAME: "127.0.0.1"}))
        path = proxy.open("bench", allow=(f"{NAME}:{port}",), private_cidrs=("127.0.0.0/8",))
        host, address = b"%s:%d" % (NAME.encode(), port), b"127.0.0.1:%d" % port
        others = {}
        for name, start in (("squid", _squid), ("tinyproxy", _tinyproxy)):
            if shutil.which(name) is not None:
                others[name] = Way(("127.0.0.1", stack.enter_context(start(folder))), b"http://" + address, address)
                break
        else:
            print("what is beside another proxy is left out: there is no squid and no tinyproxy", file=sys.stderr)
        yield Way(("127.0.0.1", port), b"", address), Way(str(path), b"http://" + host, host), others


@contextmanager
def _origin() -> Iterator[int]:
    """A process that answers ``/N`` with N bytes; returns its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listening:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.egress", str(listening.fileno())],
            pass_fds=[listening.fileno()],
            cwd=ROOT,
        )
        try:
            yield listening.getsockname()[1]
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def _squid(root: Path) -> Iterator[int]:
    with _started(root, "squid.conf", _SQUID, lambda config: ["squid", "-N", "-f", config]) as port:
        yield port


@contextmanager
def _tinyproxy(root: Path) -> Iterator[int]:
    with _started(root, "tinyproxy.conf", _TINYPROXY, lambda config: ["tinyproxy", "-d", "-c", config]) as port:
        yield port


@contextmanager
def _started(root: Path, name: str, content: str, command: Callable[[str], list[str]]) -> Iterator[int]:
    """The port of a proxy that takes connections."""
    with apart.port() as free:
        port = free
    config = root / name
    config.write_text(content.format(port=port, root=root))
    config.chmod(0o644)
    root.chmod(0o755)
    process = subprocess.Popen(command(str(config)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, f"{command(name)[0]} has ended"
            assert time.monotonic() < deadline, f"{command(name)[0]} does not start"
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(20)


ROWS = {"egress-large": large, "egress-small": small, "egress-many": many}


def _answer(connected: socket.socket, zeros: int) -> None:
    with connected, contextlib.suppress(OSError):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = b""
        while data := connected.recv(65536):
            head += data
            if not head.endswith(b"\r\n\r\n"):
                continue
            size, head, sent = int(head.split()[1][1:]), b"", 0
            connected.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, socket.MSG_MORE)
            while sent < size:
                sent += os.sendfile(connected.fileno(), zeros, sent, size - sent)


def _serve(number: int) -> None:
    zeros = os.memfd_create("zeros")
    os.ftruncate(zeros, LARGE)
    with socket.socket(fileno=number) as listening:
        while True:
            connected, _ = listening.accept()
            threading.Thread(target=_answer, args=(connected, zeros), daemon=True).start()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
