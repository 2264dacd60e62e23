"""The iopub channel without a thread of its own: who publishes sends, one at a time.

ipykernel hands each message to another thread, which costs more than the sending. Here any thread sends under a lock, and an
interrupt that comes meanwhile waits until the message is out, since half a message would spoil the next.

New subscribers are greeted with ``iopub_welcome``, so a client knows when it hears everything.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import zmq
from jupyter_client.session import DELIM, Session
from tornado.ioloop import IOLoop


class Publisher:
    """Takes the place of ipykernel's iopub thread and of the socket that stands for it. Made in the main thread.

    place: called before a message is sent, one at a time; returns the frames that go before its delimiter.
    """

    def __init__(self, socket: zmq.Socket[bytes], session: Session, place: Callable[[], list[bytes]]) -> None:
        self.socket = socket
        self._place = place
        self.published = 0
        """Messages since the last greeting, so that a client knows when it has heard all of them."""
        self._session = session
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._sending = False
        self._interrupted = False
        IOLoop.current().add_handler(socket, lambda *_: self._welcome(), IOLoop.READ)

    def send_multipart(self, parts: list[Any], *_options: Any, **_named: Any) -> None:
        """Publish a message. In a forked process nothing happens: the socket is its parent's."""
        if os.getpid() != self._pid or self.socket.closed:
            return
        with self._lock:
            at = parts.index(DELIM)
            parts[at:at] = self._place()  # may wait for a reader, so it can be interrupted
            main = threading.current_thread() is threading.main_thread()
            self._sending = main
            try:
                self.published += 1
                self.socket.send_multipart(parts)
            finally:
                if main:
                    self._sending = False
        if main:
            self._welcome()  # sending may have used up the event that announced a subscriber
            if self._interrupted:
                self._interrupted = False
                raise KeyboardInterrupt

    def defers_interrupt(self) -> bool:
        """Return whether the main thread is sending now; then it will interrupt itself after that."""
        self._interrupted = self._interrupted or self._sending
        return self._sending

    def stop(self) -> None:
        """Without effect; part of what ipykernel expects."""

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _welcome(self) -> None:
        with self._lock:
            while not self.socket.closed and int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN:
                event = self.socket.recv(zmq.DONTWAIT)
                if event[:1] != b"\x01":
                    continue
                self.published = 0
                topic = event[1:]
                message = self._session.msg("iopub_welcome", {"subscription": topic.decode("utf-8", "replace")})
                self.socket.send_multipart(([topic] if topic else []) + self._session.serialize(message))
