"""Speaking Jupyter's protocol with one kernel, over ipc sockets or tcp, straight from the loop.

Owns the sockets that executions need: shell and iopub, and control for kernels that are interrupted by a message. Signs and
checks as every Jupyter client does. All that comes from a kernel may be forged by the code in it: a message that is not as
it should be is as if it had not come.

Promises: sending never blocks; what waits here is bounded; a reply is never dropped. What iopub brings while
its queue is full stays with a kernel of ours; others drop it.
Leaves to its users: what the messages mean.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import math
import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import msgspec
import zmq
from msgspec import Struct

from . import ports

_log = logging.getLogger(__name__)

_DELIMITER = b"<IDS|MSG>"
_PLACE = b"place:"
"""What a frame before the delimiter begins with that says where the message belongs in what the kernel writes."""

_MESSAGES_AT_ONCE = 200
_BYTES_AT_ONCE = 2**20
"""So that a flood of displays, or of large ones, leaves the loop to others in between."""

_WAITING = 16
"""Messages that wait here; more stay with a kernel that keeps any number, as ours do."""

_WAITING_FOREIGN = 16_384
"""Of a kernel that would drop them, and may send one for each print: with 1,000 a fifth of 40,000 was lost, and these are 20 MB.
Long ones do not pile up: a kernel signs as fast as we check. A bound of bytes would have to change while connected, and then
the library waits for ever for a reader that has nothing to read."""

_RECONNECT_MS = 2
_RECONNECT_TCP_MS = 10
"""The kernel's sockets appear some time after we connect; the library's own 100 ms would be most of a start."""

_WELCOME_AGAIN_S = 0.2
_MOST_DIGITS = 15


class Header(Struct):
    """The part of a header that is used."""

    msg_id: str
    msg_type: str


class Parent(Struct):
    """The request that a message belongs to; empty for none."""

    msg_id: str = ""


class Received(Struct, frozen=True):
    """A message of the kernel. content: JSON, decoded with ``decode``. place: as in ``marks``; 0: none."""

    type: str
    parent: str
    content: bytes
    place: int = 0


_header = msgspec.json.Decoder(Header)
_parent: msgspec.json.Decoder[Parent | None] = msgspec.json.Decoder(Parent | None)

SHELL, IOPUB, STDIN, CONTROL = 1, 2, 3, 4
"""Channels, by the numbers that stand for their ports with ipc."""

_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


class Connection(Struct, frozen=True):
    """Where a kernel listens, written as its connection file. folder: private, short absolute path, made for it.

    ports: on the loopback; none for ipc sockets in the folder.
    """

    folder: Path
    key: str
    ports: tuple[int, ...] = ()

    @classmethod
    def make(cls, folder: Path, *, tcp: bool) -> Self:
        """Return a new one, with a key of its own and with free ports if it is to be ``tcp``. Raises OSError."""
        return cls(folder, secrets.token_hex(16), ports.free(len(_PORTS)) if tcp else ())

    @property
    def file(self) -> Path:
        """The connection file."""
        return self.folder / "c.json"

    def address(self, channel: int) -> str:
        """Return the address of a channel."""
        return f"tcp://{ports.LOOPBACK}:{self.ports[channel - 1]}" if self.ports else f"ipc://{self.folder}/s-{channel}"

    def write(self) -> None:
        """Make the folder and the file."""
        self.folder.mkdir(mode=0o700)
        place = (
            {"transport": "tcp", "ip": ports.LOOPBACK} if self.ports else {"transport": "ipc", "ip": f"{self.folder}/s"}
        )
        numbers = dict(zip(_PORTS, self.ports or range(1, len(_PORTS) + 1), strict=True))
        self.file.write_text(json.dumps({**place, **numbers, "key": self.key, "signature_scheme": "hmac-sha256"}))


class Channels:
    """The channels to one kernel, from before it listens until ``close``.

    on_shell, on_iopub, on_stdin: called in the loop with each message; without the last one nobody is asked for input. ours: the
    kernel greets subscribers and never drops a message. control: whether that channel will be needed. Raises zmq.ZMQError, with
    nothing left open, where there are no descriptors.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        connection: Connection,
        on_shell: Callable[[Received], None],
        on_iopub: Callable[[Received], None],
        on_stdin: Callable[[Received], None] | None = None,
        *,
        ours: bool,
        control: bool = False,
    ) -> None:
        self._ours = ours
        self._key = connection.key.encode()
        self._session = uuid.uuid4().hex
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._information = ""
        self._on = {SHELL: on_shell, IOPUB: on_iopub, STDIN: on_stdin or _ignore, CONTROL: _ignore}
        self._identity = secrets.token_bytes(16)  # a kernel asks for input whoever sent the request
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        channels = [(SHELL, zmq.DEALER), (IOPUB, zmq.SUB)]
        channels += [(channel, zmq.DEALER) for channel, wanted in ((STDIN, on_stdin), (CONTROL, control)) if wanted]
        try:
            for channel, kind in channels:
                self._connect(context, connection, channel, kind)
        except BaseException:
            self.close()
            raise

    def _connect(
        self, context: zmq.Context[zmq.Socket[bytes]], connection: Connection, channel: int, kind: zmq.SocketType
    ) -> None:
        socket = self._sockets[channel] = context.socket(kind)
        socket.linger = 0
        socket.rcvhwm = socket.sndhwm = 0
        socket.reconnect_ivl = _RECONNECT_TCP_MS if connection.ports else _RECONNECT_MS
        if channel in (SHELL, STDIN):
            socket.identity = self._identity
        if channel == IOPUB:
            socket.rcvhwm = _WAITING if self._ours else _WAITING_FOREIGN
            socket.subscribe(b"")
        socket.connect(connection.address(channel))
        self._loop.add_reader(socket.FD, self._receive, channel)
        self._loop.call_soon(self._receive, channel)

    async def ready(self) -> None:
        """Return once the kernel has shown that it is there and that we hear it. The caller limits the time.

        One that greets nobody is asked for its information until both channels answer; never twice at once, since some give
        the output of an execution to whatever request came after it.
        """
        if self._ours:
            await asyncio.wait([self._ready])
        while not self._ready.done():
            self._answered = self._loop.create_future()
            self._information = self.send("kernel_info_request", {})
            await asyncio.wait([self._answered])
            await asyncio.wait([self._ready], timeout=_WELCOME_AGAIN_S)

    def send(
        self, kind: str, content: dict[str, Any], metadata: dict[str, Any] | None = None, *, channel: int = SHELL
    ) -> str:
        """Send a request; return its id, which answers name as their parent."""
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
        self._sockets[channel].send_multipart([_DELIMITER, self._sign(parts), *parts], zmq.DONTWAIT)
        self._loop.call_soon(self._receive, channel)  # sending may have used up the edge that announced a message
        return identity

    def close(self) -> None:
        """Let go of the sockets. May be called twice."""
        for socket in self._sockets.values():
            if not socket.closed:
                self._loop.remove_reader(socket.FD)
                socket.close()

    def _sign(self, parts: list[bytes]) -> bytes:
        return hmac.new(self._key, b"".join(parts), hashlib.sha256).hexdigest().encode()

    def _receive(self, channel: int) -> None:
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
                    self._on[channel](message)
                except Exception:  # noqa: BLE001 - what comes after it is announced once only, so read on
                    _log.exception("a message of a kernel could not be taken")
        self._loop.call_soon(self._receive, channel)

    def _checked(self, parts: list[bytes]) -> Received | None:
        try:
            start = parts.index(_DELIMITER)
            signature, header, parent, metadata, content = parts[start + 1 : start + 6]
            if not hmac.compare_digest(signature, self._sign([header, parent, metadata, content])):
                return None
            belongs_to = _parent.decode(parent or b"null")
            kind = _header.decode(header).msg_type
            return Received(kind, belongs_to.msg_id if belongs_to else "", content, _place(parts[:start]))
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return None

    def _note(self, channel: int, message: Received) -> None:
        """See whether this shows that the kernel is there and heard."""
        if channel == SHELL and not self._answered.done():
            self._answered.set_result(None)
        heard = message.type == "iopub_welcome" or (self._information and message.type == "status")
        if channel == IOPUB and heard and not self._ready.done():
            self._ready.set_result(None)


def _place(routing: list[bytes]) -> int:
    """Return the place that the last frame before the delimiter says."""
    digits = routing[-1].removeprefix(_PLACE) if routing and routing[-1].startswith(_PLACE) else b""
    return int(digits) if digits.isdigit() and len(digits) <= _MOST_DIGITS else 0


def _ignore(message: Received) -> None:
    """Answers on control say nothing that is needed."""


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
