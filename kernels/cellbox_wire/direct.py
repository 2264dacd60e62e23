"""The one socket to the one client of a kernel that was given a secret, there from the start as descriptor 3.

It carries all channels, so everything comes in the order in which it was sent. A frame is four bytes of length and that many of
JSON: ``channel``, the parts of the message by their names, and ``place`` where it has one. Descriptor 4 is an eventfd: that an
execution begins is noted there, and wakes nobody.

Promises: children of this process inherit neither. Sending blocks while the client does not read.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from .messages import Request, loaded, message, packed

SOCKET = 3
BEGUN = 4
_LENGTH = struct.Struct(">I")
_CHUNK = 256 * 1024
_LAST = ("execute_result", "error")
"""What is followed at once by the reply: both go out together, and wake the client once."""

_ABOVE = 100
"""Cells close low descriptors, some all of them up to here."""


class Direct:
    """Our end, from now until ``close``. receive: called in the loop with the channel, and each request. Raises OSError."""

    def __init__(self, receive: Callable[[str, Request], None]) -> None:
        self._receive_request = receive
        self._loop = asyncio.get_running_loop()
        self._unread = bytearray()
        self._held = b""  # to go with the next
        self._begun = _taken(BEGUN)
        self._socket = socket.socket(fileno=_taken(SOCKET))
        self._loop.add_reader(self._socket, self._readable)
        self.publish("iopub_welcome", {"subscription": ""}, {})

    def reply(self, channel: str, request: Request, content: dict[str, Any]) -> None:
        """Answer ``request``, which came on ``channel``."""
        self._send(channel, message(request.kind.replace("_request", "_reply"), content, request.header))

    def ask(self, request: Request, content: dict[str, Any]) -> None:
        """Ask whoever sent ``request`` for input."""
        self._send("stdin", message("input_request", content, request.header))

    def publish(
        self, kind: str, content: dict[str, Any], parent: dict[str, Any], place: Callable[[], int | None] | None = None
    ) -> None:
        """Tell the client. See ``Sockets``."""
        body = packed({"channel": "iopub"} | message(kind, content, parent))
        if place is not None and (at := place()) is not None:
            body = b'{"place":%d,%s' % (at, body[1:])
        self._held += _framed(body)
        if kind not in _LAST:
            self._write(b"")

    def begun(self) -> None:
        """An execution begins: from here on it can be interrupted."""
        os.eventfd_write(self._begun, 1)

    def close(self) -> None:
        """Let go of both. May be called twice."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            os.close(self._begun)

    def _send(self, channel: str, parts: dict[str, Any]) -> None:
        self._write(_framed(packed({"channel": channel} | parts)))

    def _write(self, frame: bytes) -> None:
        held, self._held = self._held, b""
        if self._socket.fileno() >= 0:
            self._socket.sendall(held + frame)

    def _readable(self) -> None:
        data = self._socket.recv(_CHUNK)
        if not data:
            self._loop.remove_reader(self._socket)  # nobody asks any more; who started us ends us
            return
        self._unread += data
        while len(self._unread) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread)
            if len(self._unread) < _LENGTH.size + length:
                return
            body = bytes(self._unread[_LENGTH.size : _LENGTH.size + length])
            del self._unread[: _LENGTH.size + length]
            parts = loaded(body)
            if (request := Request.of([], parts)) is not None:
                self._receive_request(str(parts.get("channel")), request)


def _framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def _taken(descriptor: int) -> int:
    """Return what children do not inherit and cells do not close in place of ``descriptor``."""
    own: int = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    os.close(descriptor)
    return own
