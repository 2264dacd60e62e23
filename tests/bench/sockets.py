"""The cheapest WebSocket client there is, and a session of ours behind one."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from tests.e2e.conftest import KEY, Cellbox

_READ = 2**20


class WebSocket:
    """One connection that blocks, with neither compression nor a thread."""

    def __init__(self, url: str, headers: Mapping[str, str], protocols: Sequence[str] = (), *, within_s: float) -> None:
        """within_s: how long an answer may be waited for. Raises TimeoutError or OSError, as all of its methods do."""
        address = parse_uri(url)
        offered = [Subprotocol(name) for name in protocols]
        self._protocol = ClientProtocol(address, subprotocols=offered or None, max_size=None)
        self._socket = socket.create_connection((address.host, address.port), timeout=within_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._messages: deque[bytes] = deque()
        self._message = bytearray()
        self._open = False
        request = self._protocol.connect()
        request.headers.update(headers)
        self._protocol.send_request(request)
        self._flush()
        while not self._open:
            self._read()

    def send(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self._protocol.send_text(message.encode())
        else:
            self._protocol.send_binary(message)
        self._flush()

    def receive(self) -> bytes:
        """Return the next message."""
        while not self._messages:
            self._read()
        return self._messages.popleft()

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        data = self._socket.recv(_READ)
        if not data:
            raise ConnectionResetError("the other side has closed the socket")
        self._protocol.receive_data(data)
        if self._protocol.handshake_exc is not None:
            raise ConnectionRefusedError(str(self._protocol.handshake_exc))
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._open = True
                continue
            frame = cast("Frame", event)
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._message += frame.data
                if frame.fin:
                    self._messages.append(bytes(self._message))
                    self._message.clear()
        self._flush()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            self._socket.sendall(data)


@dataclass(slots=True)
class Heard:
    """What came of one cell. lines, size: of its stdout. result: of its value."""

    lines: int = 0
    size: int = 0
    result: str | None = None

    def text(self, text: str) -> None:
        self.lines += text.count("\n")
        self.size += len(text.encode())


class Session:
    """The stateful Python kernel of a session of ours, over our WebSocket."""

    def __init__(self, service: Cellbox, scope: str) -> None:
        url = f"{service.url.replace('http', 'ws')}/v1/ws?scope={scope}"
        self._socket = WebSocket(url, {"X-API-Key": KEY}, within_s=60)

    def cell(self, code: str) -> Heard:
        """Run it to its end, and return all that came."""
        self._execute(code)
        heard = Heard()
        while (event := self._next())["type"] != "finished":
            if event["type"] == "stdout":
                heard.text(event["text"])
            elif event["type"] == "result":
                heard.result = event["data"]["text/plain"]
        if event["status"] != "ok":
            raise AssertionError(f"{event}")
        return heard

    def until_output(self, code: str) -> None:
        """Run it up to its first output."""
        self._execute(code)
        while self._next()["type"] != "stdout":
            pass

    def until_finished(self) -> None:
        """Hear out what runs."""
        while self._next()["type"] != "finished":
            pass

    def close(self) -> None:
        self._socket.close()

    def _execute(self, code: str) -> None:
        message = {"type": "execute", "id": "1", "language": "python", "stateful": True, "code": code}
        self._socket.send(json.dumps(message))

    def _next(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self._socket.receive())
        if event["type"] == "refused":
            raise AssertionError(f"{event}")
        return event
