"""A container engine that answers as it is told: HTTP on a Unix socket, no containers.

``answers`` maps ``"METHOD /path"`` (without version and query) to a status and a body; what is not there is a 404. ``asked``
lists what was asked for, in order, with the bodies that came. What is in ``held`` is answered once its event is set.
"""

from __future__ import annotations

import contextlib
import json
import re
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

VERSION = {
    "Version": "28.5.2",
    "ApiVersion": "1.51",
    "KernelVersion": "6.12.0",
    "Components": [
        {"Name": "Engine", "Version": "28.5.2", "Details": {}},
        {"Name": "containerd", "Version": "2.1.5", "Details": {"GitCommit": "abcdef"}},
        {"Name": "runc", "Version": "1.3.3", "Details": {"GitCommit": "v1.3.3-0-gd842d771"}},
    ],
}
INFO = {
    "OSType": "linux",
    "MemoryLimit": True,
    "SwapLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
    "Runtimes": {"runc": {"path": "runc"}},
    "DefaultRuntime": "runc",
}


class FakeEngine:
    """What it answers, and what it was asked."""

    def __init__(self, socket: Path) -> None:
        self.address = f"unix://{socket}"
        self.answers: dict[str, tuple[int, Any]] = {
            "GET /version": (200, VERSION),
            "GET /info": (200, INFO),
            "GET /_ping": (200, "OK"),
            "GET /images/there:latest/json": (200, {"Id": "sha256:0"}),
            "GET /events": (200, ""),
            "GET /containers/json": (200, []),
        }
        self.asked: list[tuple[str, Any]] = []
        self.held: dict[str, threading.Event] = {}


@contextlib.contextmanager
def running(socket: Path) -> Iterator[FakeEngine]:
    engine = FakeEngine(socket)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            what = f"{self.command} {re.sub('^/v[0-9.]+', '', self.path).partition('?')[0]}"
            engine.asked.append((what, body))
            if what in engine.held:
                engine.held[what].wait()
            status, said = engine.answers.get(what, (404, {"message": f"no such thing: {what}"}))
            text = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the library's names

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: Any) -> None:
            pass

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            pass

    with Server(str(socket), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield engine
        finally:
            for event in engine.held.values():
                event.set()
            server.shutdown()
            thread.join()
