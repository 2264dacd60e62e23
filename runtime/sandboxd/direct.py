"""Speaking Jupyter's protocol with one of our kernels, over one socket that both ends have from the start.

What Jupyter has several sockets for goes through this one, so it comes in the order in which the kernel sent it: after the reply
to a request there is nothing more of it. A frame is four bytes of length and that many of JSON: ``channel``, ``header``,
``parent_header``, ``metadata``, ``content``, and ``place`` where the message has one. Nothing is signed, since nobody else can
write there.

Promises: sending never blocks. Leaves to its users: what the messages mean.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from .messages import Channel, Header, Parent, Received, header

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct(">I")
_LONGEST = 2**30
"""Bytes of a frame. What is shown may be as long as memory lasts: that it is too long is for ``results`` to say."""

_CHUNK = 256 * 1024
_LEFT = 16
"""Reads that take all that may still be in a socket when nobody writes there any more."""


class _Frame(Struct):
    channel: Channel
    header: Header
    content: Raw
    parent_header: Parent | None = None
    place: Annotated[int, Meta(ge=0, lt=10**15)] = 0


_frame = msgspec.json.Decoder(_Frame)


class Direct:
    """Our end of the socket, which it owns, until ``close``.

    receive: called in the loop with each message and its channel. ended: called once if no more can come.
    """

    def __init__(
        self, ours: socket.socket, receive: Callable[[Channel, Received], None], ended: Callable[[], None]
    ) -> None:
        self._socket = ours
        self._receive = receive
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._unread = bytearray()
        self._unsent = bytearray()
        ours.setblocking(False)
        self._loop.add_reader(ours, self._readable)

    async def ready(self) -> None:
        """Return once the kernel has shown that it is there. The caller limits the time."""
        await asyncio.wait([self._ready])

    def send(
        self, kind: str, content: dict[str, Any], metadata: dict[str, Any] | None = None, *, channel: Channel = "shell"
    ) -> str:
        """Send a request; return its id, which answers name as their parent."""
        head = header(kind)
        parts = {"header": head, "parent_header": {}, "metadata": metadata or {}, "content": content}
        body = msgspec.json.encode({"channel": channel} | parts)
        self._unsent += _LENGTH.pack(len(body)) + body
        self._write()
        return head["msg_id"]

    def drain(self) -> None:
        """Take what the kernel sent until now."""
        for _ in range(_LEFT):
            if self._socket.fileno() < 0 or not self._read():
                return

    def close(self) -> None:
        """Let go of the socket. May be called twice."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:  # it has ended, which is noticed otherwise
            sent = len(self._unsent)
        waited, self._unsent = sent < len(self._unsent), self._unsent[sent:]
        if waited:
            self._loop.add_writer(self._socket, self._write)
        elif self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Read some; return whether there may be more."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        self._unread += data
        at = 0
        while len(self._unread) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread, at)
            start = at + _LENGTH.size
            if length > _LONGEST:
                self._end()
                return False
            if len(self._unread) - start < length:
                break
            at = start + length
            self._take(bytes(memoryview(self._unread)[start:at]))
        del self._unread[:at]
        return True

    def _take(self, body: bytes) -> None:
        try:
            frame = _frame.decode(body)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return
        parent = frame.parent_header.msg_id if frame.parent_header else ""
        message = Received(frame.header.msg_type, parent, bytes(frame.content), frame.place)
        if message.type == "iopub_welcome" and not self._ready.done():
            self._ready.set_result(None)
        try:
            self._receive(frame.channel, message)
        except Exception:  # noqa: BLE001 - what comes after it is to be read all the same
            _log.exception("a message of a kernel could not be taken")

    def _end(self) -> None:
        if self._loop.remove_reader(self._socket):  # else it has been said
            self._ended()
