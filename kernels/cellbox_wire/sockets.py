"""The five sockets of a kernel, served from the loop.

Promises: sending never blocks and drops nothing; a subscriber is greeted with ``iopub_welcome``, so it knows from when on it
hears everything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from .messages import Messages, Request

_KINDS = {"shell": zmq.ROUTER, "control": zmq.ROUTER, "stdin": zmq.ROUTER, "iopub": zmq.XPUB, "hb": zmq.ROUTER}
_LINGER_MS = 1000


class Sockets:
    """What the connection file names, from now until ``close``.

    receive: called in the loop with the channel, shell, control or stdin, and each request. Raises OSError, ValueError, KeyError
    or zmq.ZMQError for a file that cannot be served.
    """

    def __init__(self, connection_file: Path, receive: Callable[[str, Request], None]) -> None:
        self._receive_request = receive
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        connection = json.loads(connection_file.read_bytes())
        self._messages = Messages(connection["key"])
        try:
            for channel, kind in _KINDS.items():
                self._open(channel, kind, connection)
        except BaseException:
            self.close()
            raise

    def reply(self, channel: str, request: Request, content: dict[str, Any]) -> None:
        """Answer ``request``, which came on ``channel``."""
        kind = request.kind.replace("_request", "_reply")
        self._send(channel, [*request.routing, *self._messages.pack(kind, content, request.header)])

    def ask(self, request: Request, content: dict[str, Any]) -> None:
        """Ask whoever sent ``request`` for input."""
        self._send("stdin", [*request.routing, *self._messages.pack("input_request", content, request.header)])

    def publish(
        self, kind: str, content: dict[str, Any], parent: dict[str, Any], place: Callable[[], int | None] | None = None
    ) -> None:
        """Tell all subscribers. parent: the header of its request. Raises RecursionError; then nothing is told.

        place: called once it is sure to be sent; returns its place among what is written, if it has one.
        """
        message = self._messages.pack(kind, content, parent)
        at = place() if place is not None else None
        self._send("iopub", [kind.encode(), *([] if at is None else [b"place:%d" % at]), *message])

    def begun(self) -> None:
        """An execution begins: clients are told by its status."""

    def close(self) -> None:
        """Let go of them, once what was sent is out. May be called twice."""
        for socket in self._sockets.values():
            if not socket.closed:
                self._loop.remove_reader(socket.FD)
                socket.close()
        self._context.term()

    def _open(self, channel: str, kind: int, connection: dict[str, Any]) -> None:
        socket = self._sockets[channel] = self._context.socket(kind)
        socket.linger = _LINGER_MS
        socket.sndhwm = socket.rcvhwm = 0
        if kind == zmq.XPUB:
            socket.xpub_verbose = 1  # each subscriber is greeted, and not only the first one
        between = "-" if connection["transport"] == "ipc" else ":"
        socket.bind(f"{connection['transport']}://{connection['ip']}{between}{connection[f'{channel}_port']}")
        self._loop.add_reader(socket.FD, self._take, channel)
        self._loop.call_soon(self._take, channel)

    def _send(self, channel: str, frames: list[bytes]) -> None:
        socket = self._sockets[channel]
        if not socket.closed:
            socket.send_multipart(frames)
            self._loop.call_soon(self._take, channel)  # sending may have used up the edge that announced a message

    def _take(self, channel: str) -> None:
        """Take what is there. The descriptor only says that something changed, so read until nothing is left."""
        socket = self._sockets[channel]
        while not socket.closed:
            try:
                frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            if channel == "hb":
                socket.send_multipart(frames)
            elif channel == "iopub":
                self._greet(frames[0])
            elif (request := self._messages.unpack(frames)) is not None:
                self._receive_request(channel, request)

    def _greet(self, event: bytes) -> None:
        if event[:1] != b"\x01":
            return
        topic = event[1:]
        message = self._messages.pack("iopub_welcome", {"subscription": topic.decode("utf-8", "replace")}, {})
        self._sockets["iopub"].send_multipart([topic, *message] if topic else message)
