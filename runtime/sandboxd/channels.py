"""Speaking Jupyter's protocol with one kernel of others, over tcp, straight from the loop.

Owns the sockets that executions need: shell and iopub, and control for kernels that are interrupted by a message. Signs and
checks as every Jupyter client does.

Promises: sending never blocks; what waits here is bounded; a reply is never dropped. What iopub brings while its queue is full
the kernel drops.
Leaves to its users: what the messages mean.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import zmq
from msgspec import Struct

from . import ports
from .messages import Channel, Header, Parent, Received, header

_log = logging.getLogger(__name__)

_DELIMITER = b"<IDS|MSG>"
_MESSAGES_AT_ONCE = 200
_BYTES_AT_ONCE = 2**20
"""So that a flood of displays, or of large ones, leaves the loop to others in between."""

_WAITING = 16_384
"""Messages that wait here; a kernel would drop them, and may send one for each print: with 1,000 a fifth of 40,000 was lost, and
these are 20 MB.
Long ones do not pile up: a kernel signs as fast as we check. A bound of bytes would have to change while connected, and then
the library waits for ever for a reader that has nothing to read."""

_RECONNECT_MS = 10
"""The kernel's sockets appear some time after we connect; the library's own 100 ms would be most of a start."""

_AGAIN_S = 0.2


_header = msgspec.json.Decoder(Header)
_parent: msgspec.json.Decoder[Parent | None] = msgspec.json.Decoder(Parent | None)

_PORTS: dict[Channel, int] = {"shell": 0, "iopub": 1, "stdin": 2, "control": 3}
_NAMES = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


class Connection(Struct, frozen=True):
    """Where a kernel listens, written as its connection file. folder: private, there already. ports: on the loopback."""

    folder: Path
    key: str
    ports: tuple[int, ...]

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Return a new one, with a key of its own and with free ports. Raises OSError."""
        return cls(folder, secrets.token_hex(16), ports.free(len(_NAMES)))

    @property
    def file(self) -> Path:
        """The connection file."""
        return self.folder / "c.json"

    def address(self, channel: Channel) -> str:
        """Return the address of a channel."""
        return f"tcp://{ports.LOOPBACK}:{self.ports[_PORTS[channel]]}"

    def write(self) -> None:
        """Make the file."""
        place = {"transport": "tcp", "ip": ports.LOOPBACK, "key": self.key, "signature_scheme": "hmac-sha256"}
        self.file.write_text(json.dumps(place | dict(zip(_NAMES, self.ports, strict=True))))


class Channels:
    """The channels to one kernel, from before it listens until ``close``.

    receive: called in the loop with each message and its channel. control: whether that channel will be needed. Raises
    zmq.ZMQError, with nothing left open, where there are no descriptors.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        connection: Connection,
        receive: Callable[[Channel, Received], None],
        *,
        control: bool = False,
    ) -> None:
        self._key = connection.key.encode()
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._receive = receive
        self._sockets: dict[Channel, zmq.Socket[bytes]] = {}
        channels: list[tuple[Channel, zmq.SocketType]] = [("shell", zmq.DEALER), ("iopub", zmq.SUB)]
        try:
            for channel, kind in channels + ([("control", zmq.DEALER)] if control else []):
                self._connect(context, connection, channel, kind)
        except BaseException:
            self.close()
            raise

    def _connect(
        self, context: zmq.Context[zmq.Socket[bytes]], connection: Connection, channel: Channel, kind: zmq.SocketType
    ) -> None:
        socket = self._sockets[channel] = context.socket(kind)
        socket.linger = 0
        socket.rcvhwm = socket.sndhwm = 0
        socket.reconnect_ivl = _RECONNECT_MS
        if channel == "iopub":
            socket.rcvhwm = _WAITING
            socket.subscribe(b"")
        socket.connect(connection.address(channel))
        self._loop.add_reader(socket.FD, self._take, channel)
        self._loop.call_soon(self._take, channel)

    async def ready(self) -> None:
        """Return once the kernel has shown that it is there and that we hear it. The caller limits the time.

        It is asked for its information until both channels answer; never twice at once, since some give the output of an
        execution to whatever request came after it.
        """
        while not self._ready.done():
            self._answered = self._loop.create_future()
            self.send("kernel_info_request", {})
            await asyncio.wait([self._answered])
            await asyncio.wait([self._ready], timeout=_AGAIN_S)

    def send(
        self, kind: str, content: dict[str, Any], metadata: dict[str, Any] | None = None, *, channel: Channel = "shell"
    ) -> str:
        """Send a request; return its id, which answers name as their parent."""
        head = header(kind)
        parts = [msgspec.json.encode(part) for part in (head, {}, metadata or {}, content)]
        self._sockets[channel].send_multipart([_DELIMITER, self._sign(parts), *parts], zmq.DONTWAIT)
        self._loop.call_soon(self._take, channel)  # sending may have used up the edge that announced a message
        return head["msg_id"]

    def close(self) -> None:
        """Let go of the sockets. May be called twice."""
        for socket in self._sockets.values():
            if not socket.closed:
                self._loop.remove_reader(socket.FD)
                socket.close()

    def _sign(self, parts: list[bytes]) -> bytes:
        return hmac.new(self._key, b"".join(parts), hashlib.sha256).hexdigest().encode()

    def _take(self, channel: Channel) -> None:
        """Take what is there. The descriptor only says that something changed, so read until nothing is left."""
        socket, size = self._sockets[channel], 0
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
                self._note(channel, message)
                try:
                    self._receive(channel, message)
                except Exception:  # noqa: BLE001 - what comes after it is announced once only, so read on
                    _log.exception("a message of a kernel could not be taken")
        self._loop.call_soon(self._take, channel)

    def _checked(self, parts: list[bytes]) -> Received | None:
        try:
            start = parts.index(_DELIMITER)
            signature, head, parent, metadata, content = parts[start + 1 : start + 6]
            if not hmac.compare_digest(signature, self._sign([head, parent, metadata, content])):
                return None
            belongs_to = _parent.decode(parent or b"null")
            kind = _header.decode(head).msg_type
            return Received(kind, belongs_to.msg_id if belongs_to else "", content)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return None

    def _note(self, channel: Channel, message: Received) -> None:
        """See whether this shows that the kernel is there and heard."""
        if channel == "shell" and not self._answered.done():
            self._answered.set_result(None)
        if channel == "iopub" and message.type in ("iopub_welcome", "status") and not self._ready.done():
            self._ready.set_result(None)
