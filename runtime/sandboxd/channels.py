"""Speaking Jupyter's protocol with one kernel, over ipc sockets, straight from the loop.

Owns the two sockets that executions need, shell and iopub. Signs and checks as every Jupyter client does. All that comes
from a kernel may be forged by the code in it: a message that is not as it should be is as if it had not come.

Promises: sending never blocks; nothing is dropped by a full queue.
Leaves to its users: what the messages mean.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import zmq
from msgspec import Struct

_log = logging.getLogger(__name__)

_DELIMITER = b"<IDS|MSG>"
_MESSAGES_AT_ONCE = 200
_BYTES_AT_ONCE = 2**20
"""So that a flood of displays, or of large ones, leaves the loop to others in between."""

_WAITING = 16
"""Messages that wait here; more stay with a kernel that keeps any number, as ours does. Others would drop them."""

_RECONNECT_MS = 2
"""The kernel's sockets appear some time after we connect; the library's own 100 ms would be most of a start."""

_WELCOME_AGAIN_S = 0.2


class Header(Struct):
    """The part of a header that is used."""

    msg_id: str
    msg_type: str


class Parent(Struct):
    """The request that a message belongs to; empty for none."""

    msg_id: str = ""


class Received(Struct, frozen=True):
    """A message of the kernel. content: JSON, decoded with ``decode``."""

    type: str
    parent: str
    content: bytes


_header = msgspec.json.Decoder(Header)
_parent = msgspec.json.Decoder(Parent)


class Connection(Struct, frozen=True):
    """Where a kernel listens, written as its connection file. folder: private, short absolute path, made for it."""

    folder: Path
    key: str

    @property
    def file(self) -> Path:
        """The connection file."""
        return self.folder / "c.json"

    def address(self, port: int) -> str:
        """Return the address of a channel, by the numbers of ``write``."""
        return f"ipc://{self.folder}/s-{port}"

    def write(self) -> None:
        """Make the folder and the file."""
        self.folder.mkdir(mode=0o700)
        ports = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
        content = {"transport": "ipc", "ip": f"{self.folder}/s", "key": self.key, "signature_scheme": "hmac-sha256"}
        self.file.write_text(json.dumps(content | ports))


class Channels:
    """The shell and iopub channels to one kernel, from before it listens until ``close``.

    on_shell, on_iopub: called in the loop with each message. ours: the kernel greets subscribers and never drops a message.
    Raises zmq.ZMQError, with nothing left open, where there are no descriptors.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        connection: Connection,
        on_shell: Callable[[Received], None],
        on_iopub: Callable[[Received], None],
        *,
        ours: bool,
    ) -> None:
        self._ours = ours
        self._key = connection.key.encode()
        self._session = uuid.uuid4().hex
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._information = ""
        self._on = {1: on_shell, 2: on_iopub}
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        try:
            self._connect(context, connection)
        except BaseException:
            self.close()
            raise

    def _connect(self, context: zmq.Context[zmq.Socket[bytes]], connection: Connection) -> None:
        for number, kind in ((1, zmq.DEALER), (2, zmq.SUB)):
            socket = self._sockets[number] = context.socket(kind)
            socket.linger = 0
            socket.rcvhwm = socket.sndhwm = 0
            socket.reconnect_ivl = _RECONNECT_MS
            if number == 2:
                socket.rcvhwm = _WAITING if self._ours else 0
                socket.subscribe(b"")
            socket.connect(connection.address(number))
            self._loop.add_reader(socket.FD, self._receive, number)
            self._loop.call_soon(self._receive, number)

    async def ready(self) -> None:
        """Return once the kernel has shown that it is there and that we hear it. The caller limits the time.

        One that greets nobody is asked for its information until both channels answer.
        """
        while not self._ready.done():
            if not self._ours:
                self._information = self.send("kernel_info_request", {})
            await asyncio.wait([self._ready], timeout=None if self._ours else _WELCOME_AGAIN_S)

    def send(self, kind: str, content: dict[str, Any], metadata: dict[str, Any] | None = None) -> str:
        """Send a request on shell; return its id, which answers name as their parent."""
        identity = uuid.uuid4().hex
        header = {
            "msg_id": identity,
            "session": self._session,
            "username": "cellbox",
            "date": datetime.now(UTC).isoformat(),
            "msg_type": kind,
            "version": "5.4",
        }
        parts = [msgspec.json.encode(part) for part in (header, {}, metadata or {}, content)]
        self._sockets[1].send_multipart([_DELIMITER, self._sign(parts), *parts], zmq.DONTWAIT)
        self._loop.call_soon(self._receive, 1)  # sending may have used up the edge that announced a message
        return identity

    def close(self) -> None:
        """Let go of the sockets. May be called twice."""
        for socket in self._sockets.values():
            if not socket.closed:
                self._loop.remove_reader(socket.FD)
                socket.close()

    def _sign(self, parts: list[bytes]) -> bytes:
        return hmac.new(self._key, b"".join(parts), hashlib.sha256).hexdigest().encode()

    def _receive(self, number: int) -> None:
        """Take what is there. The descriptor only says that something changed, so read until nothing is left."""
        socket, size = self._sockets[number], 0
        for _ in range(_MESSAGES_AT_ONCE):
            if size > _BYTES_AT_ONCE:
                break
            if socket.closed:
                return
            try:
                parts = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            size += sum(map(len, parts))
            message = self._checked(parts)
            if message is not None:
                self._note(number, message)
                try:
                    self._on[number](message)
                except Exception:  # noqa: BLE001 - what comes after it is announced once only, so read on
                    _log.exception("a message of a kernel could not be taken")
        self._loop.call_soon(self._receive, number)

    def _checked(self, parts: list[bytes]) -> Received | None:
        try:
            start = parts.index(_DELIMITER)
            signature, header, parent, metadata, content = parts[start + 1 : start + 6]
            if not hmac.compare_digest(signature, self._sign([header, parent, metadata, content])):
                return None
            return Received(_header.decode(header).msg_type, _parent.decode(parent or b"{}").msg_id, content)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return None

    def _note(self, number: int, message: Received) -> None:
        """See whether this shows that the kernel is there and heard."""
        heard = message.type == "iopub_welcome" or (self._information and message.type == "status")
        if number == 2 and heard and not self._ready.done():
            self._ready.set_result(None)


def decode(message: Received, kind: msgspec.json.Decoder[Any]) -> Any:
    """Return the content as ``kind`` says, or None if it is not like that.

    JSON as Python's own encoder writes it is understood too: NaN and infinities are null, lone surrogates U+FFFD.
    """
    try:
        return kind.decode(message.content)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        pass
    try:
        return kind.decode(msgspec.json.encode(clean(json.loads(message.content.decode("utf-8", "replace")))))
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


def clean(value: Any) -> Any:
    """Return JSON ``value`` with null for NaN and infinities, and U+FFFD for lone surrogates."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {clean(key): clean(item) for key, item in value.items()}
        case list():
            return [clean(item) for item in value]
    return value
