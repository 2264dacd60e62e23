"""Jupyter's own servers, as they come, with our Python kernel behind them: what a cell over a WebSocket costs elsewhere."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import struct
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests import apart
from tests.bench import peers
from tests.bench.measure import NoAnswer
from tests.bench.sockets import Heard, WebSocket

_V1 = "v1.kernel.websocket.jupyter.org"
_START_S = 60
_PATIENCE_S = 20


@dataclass(frozen=True, slots=True)
class Server:
    """requirement: what it is installed by. command: of Python, with ``{port}``, ``{directory}`` and ``{token}``."""

    requirement: str
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.requirement.replace("==", " ")


KERNEL_GATEWAY = Server(
    "jupyter-kernel-gateway==3.0.1",
    (
        "-m",
        "kernel_gateway",
        "--KernelGatewayApp.ip=127.0.0.1",
        "--KernelGatewayApp.port={port}",
        "--KernelGatewayApp.auth_token={token}",
    ),
)
JUPYTER_SERVER = Server(
    "jupyter-server==2.21.1",
    (
        "-m",
        "jupyter_server",
        "--no-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port={port}",
        "--ServerApp.root_dir={directory}",
        "--IdentityProvider.token={token}",
    ),
)
_ALL = [KERNEL_GATEWAY.requirement, JUPYTER_SERVER.requirement]


class Channels:
    """The channels of one kernel over the WebSocket of a server, in the protocol that its own front ends speak."""

    def __init__(self, url: str, token: str) -> None:
        self._session = uuid.uuid4().hex
        self._socket = WebSocket(url, {"Authorization": f"token {token}"}, [_V1], within_s=_PATIENCE_S)

    def cell(self, code: str) -> Heard:
        """Run it to its reply and its idle. Raises NoAnswer: one of them did not come."""
        try:
            return self._cell(code)
        except OSError as error:
            raise NoAnswer from error

    def _cell(self, code: str) -> Heard:
        request = uuid.uuid4().hex
        header = {"msg_id": request, "msg_type": "execute_request", "session": self._session, "username": "",
                  "version": "5.3", "date": ""}  # fmt: skip
        content: dict[str, Any] = {"code": code, "silent": False, "store_history": True, "user_expressions": {},
                                   "allow_stdin": False, "stop_on_error": False}  # fmt: skip
        self._socket.send(_packed("shell", header, {}, {}, content))
        heard, left = Heard(), {"execute_reply", "idle"}
        while left:
            parts = _unpacked(self._socket.receive())
            if json.loads(parts[2]).get("msg_id") != request:
                continue
            kind = json.loads(parts[1])["msg_type"]
            if kind in ("stream", "execute_result", "status"):
                content = json.loads(parts[4])
            if kind == "stream" and content["name"] == "stdout":
                heard.text(str(content["text"]))
            elif kind == "execute_result":
                heard.result = content["data"]["text/plain"]
            left.discard(content["execution_state"] if kind == "status" else kind)
        return heard

    def close(self) -> None:
        self._socket.close()


def _packed(channel: str, *parts: dict[str, Any]) -> bytes:
    encoded = [channel.encode(), *(json.dumps(part).encode() for part in parts)]
    offsets = [8 * (len(encoded) + 2)]
    for part in encoded:
        offsets.append(offsets[-1] + len(part))
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(encoded)


def _unpacked(message: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("<Q", message)
    offsets = struct.unpack_from(f"<{count}Q", message, 8)
    return [message[start:end] for start, end in itertools.pairwise(offsets)]


@contextmanager
def kernel_of(server: Server, directory: Path) -> Iterator[Channels]:
    """A kernel of this server, which is started for it. Raises NotInstalled: it could not be, and why."""
    python = peers.environment("servers", _ALL)
    with apart.port() as port, ExitStack() as stack:
        token = secrets.token_hex(16)
        words = [word.format(port=port, directory=directory, token=token) for word in server.command]
        process = stack.enter_context(_started([str(python), *words], directory))
        client = stack.enter_context(
            httpx.Client(
                base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"token {token}"}, timeout=_START_S
            )
        )
        deadline = time.monotonic() + _START_S
        while True:
            with suppress(httpx.TransportError):
                if client.get("/api/kernelspecs").status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise peers.NotInstalled(f"{server.name} does not start: {_last_line(directory / 'log')}")
            time.sleep(0.1)
        started = client.post("/api/kernels", json={"name": "cellbox"})
        if started.status_code != 201:
            raise peers.NotInstalled(f"{server.name} starts no kernel: {started.text[:200]}")
        name = started.json()["id"]
        try:
            channels = Channels(f"ws://127.0.0.1:{port}/api/kernels/{name}/channels", token)
        except OSError as error:
            raise peers.NotInstalled(f"{server.name} opens no socket: {error}") from error
        stack.callback(channels.close)
        yield channels
        client.delete(f"/api/kernels/{name}")


@contextmanager
def _started(command: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    kernel = directory / "kernels" / "cellbox"
    kernel.mkdir(parents=True)
    peer = peers.our_kernel("python")
    (kernel / "kernel.json").write_text(json.dumps({"argv": peer.argv, "display_name": "same", "language": "python"}))
    own = {f"JUPYTER_{kind}_DIR": str(directory / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **own, "JUPYTER_PATH": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
