"""The one socket to the one client of a kernel that was given a secret, there from the start as descriptor 3.

It carries all channels, so everything comes in the order in which it was sent. A frame is four bytes of length and that many of
JSON: ``channel``, the parts of the message by their names, and ``place`` where it has one. Descriptor 4 is an eventfd: that an
execution begins is noted there, and wakes nobody.

Who sends does so at once, in whatever thread, one at a time; an interrupt that comes meanwhile waits until the message is out,
since half a message would spoil the next. Sending blocks while the client does not read.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from jupyter_client.session import DELIM

from . import wire

SOCKET = 3
BEGUN = 4
_LENGTH = struct.Struct(">I")
_CHUNK = 256 * 1024
_ABOVE = 100
"""Cells close low descriptors, some all of them up to here."""

_LOOK_S = 0.1
"""For a thread that waits for input, which the loop in the main thread may have read for it."""


class Direct:
    """Our end. Made in the main thread. place: called before a message of iopub is sent, one at a time; its place, or 0."""

    def __init__(self, place: Callable[[], int]) -> None:
        self._place = place
        self._begun = _taken(BEGUN)
        self._socket = socket.socket(fileno=_taken(SOCKET))
        self._pid = os.getpid()
        self._sends = threading.Lock()
        self._reads = threading.Lock()
        self._unread = bytearray()
        self._sending = False
        self._interrupted = False
        self._inputs: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop
        self._serve: Callable[[dict[str, Any]], None]

    def listen(self, loop: asyncio.AbstractEventLoop, serve: Callable[[dict[str, Any]], None]) -> None:
        """Have ``serve`` called in ``loop``, of this thread, with each request on shell; greet the client."""
        self._loop, self._serve = loop, serve
        loop.add_reader(self._socket, self._readable)
        self._send({"channel": "iopub", "header": {"msg_id": "", "msg_type": "iopub_welcome"}, "content": {}})

    def begun(self) -> None:
        """An execution begins: from here on it can be interrupted."""
        os.eventfd_write(self._begun, 1)

    def reply(self, request: dict[str, Any], content: dict[str, Any]) -> None:
        """Answer a request on shell."""
        self._answer("shell", request, content)

    def ask(self, request: dict[str, Any], content: dict[str, Any]) -> str:
        """Ask whoever sent ``request`` for input, and return it."""
        while not self._inputs.empty():
            self._inputs.get()  # of somebody who was interrupted
        self._answer("stdin", request, content)
        main = threading.current_thread() is threading.main_thread()
        while self._inputs.empty():
            select.select([self._socket], [], [], None if main else _LOOK_S)
            if not self._take():
                raise EOFError("nobody is there any more")
        return self._inputs.get()

    def defers_interrupt(self) -> bool:
        """Return whether the main thread is sending now; then it will interrupt itself after that."""
        self._interrupted = self._interrupted or self._sending
        return self._sending

    # --- what ipykernel takes for a thread and a socket -----------------------------------------------------------------

    def send_multipart(self, parts: list[Any], *_options: Any, **_named: Any) -> None:
        """Publish a message."""
        at = parts.index(DELIM) + 2
        names = ("header", "parent_header", "metadata", "content")
        body = b",".join(b'"%s":%s' % (name.encode(), part) for name, part in zip(names, parts[at:], strict=False))
        self._write(lambda place: b'{"channel":"iopub","place":%d,%s}' % (place, body), placed=True)

    def stop(self) -> None:
        """Without effect."""

    close = stop

    # --------------------------------------------------------------------------------------------------------------------

    def _answer(self, channel: str, request: dict[str, Any], content: dict[str, Any]) -> None:
        kind = "input_request" if channel == "stdin" else request["header"]["msg_type"].replace("_request", "_reply")
        header = {"msg_id": "", "msg_type": kind}
        self._send({"channel": channel, "header": header, "parent_header": request["header"], "content": content})

    def _send(self, message: dict[str, Any]) -> None:
        body = wire.pack(message)
        self._write(lambda _place: body, placed=False)

    def _write(self, body: Callable[[int], bytes], *, placed: bool) -> None:
        """Send it. In a forked process nothing happens: the socket is its parent's."""
        if os.getpid() != self._pid:
            return
        with self._sends:
            data = body(self._place() if placed else 0)  # its place may wait for a reader, so it can be interrupted
            main = threading.current_thread() is threading.main_thread()
            self._sending = main
            try:
                self._socket.sendall(_LENGTH.pack(len(data)) + data)
            finally:
                if main:
                    self._sending = False
        if main and self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def _readable(self) -> None:
        if not self._take():
            self._loop.remove_reader(self._socket)

    def _take(self) -> bool:
        """Take what has come; return whether more may come."""
        with self._reads:
            try:
                data = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            self._unread += data
            while len(self._unread) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._unread)
                if len(self._unread) < _LENGTH.size + length:
                    break
                message = wire.unpack(bytes(self._unread[_LENGTH.size : _LENGTH.size + length]))
                del self._unread[: _LENGTH.size + length]
                if message["channel"] == "stdin":
                    self._inputs.put(str(message["content"]["value"]))
                elif threading.current_thread() is threading.main_thread():
                    self._serve(message)
                else:
                    self._loop.call_soon_threadsafe(self._serve, message)
            return data != b""


def _taken(descriptor: int) -> int:
    """Return what children do not inherit and cells do not close in place of ``descriptor``."""
    own: int = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    os.close(descriptor)
    return own
