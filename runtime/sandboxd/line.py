"""The way to one kernel: one socket to one of ours, ZeroMQ's channels to one of others.

Owns what either takes: descriptors, ports, the connection file. Leaves to its user: when the kernel is started, and what comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from . import ports
from .channels import Channels, Connection
from .direct import Direct
from .kernelspecs import Kernelspec
from .messages import Channel, Received


class Line:
    """Open from the start, before there is a kernel, until ``close``. folder: of the kernel.

    hear: called in the loop with each message and its channel. deaf: called once when one of ours can be told nothing any more.
    context: asked where there are kernels of others only. Raises OSError, zmq.ZMQError, with nothing left open.
    """

    def __init__(
        self,
        spec: Kernelspec,
        folder: Path,
        context: Callable[[], zmq.Context[zmq.Socket[bytes]]],
        hear: Callable[[Channel, Received], None],
        deaf: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = -1
        self._theirs: socket.socket | None = None
        self._ports: tuple[int, ...] = ()
        self._channels: Channels | Direct
        if spec.marks:
            self._begun = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            try:
                ours, self._theirs = socket.socketpair()
            except OSError:
                os.close(self._begun)
                raise
            self._channels = Direct(ours, hear, deaf)
        else:
            connection = Connection.make(folder)
            connection.write()
            self._ports = connection.ports
            self._channels = Channels(context(), connection, hear, control=spec.interrupted_by_message)

    @property
    def given(self) -> list[int]:
        """Descriptors that the kernel is to have as 3, 4, …"""
        return [] if self._theirs is None else [self._theirs.fileno(), self._begun]

    def handed_over(self) -> None:
        """The kernel has what was ``given``, or never will. May be called twice."""
        if self._theirs is not None:
            self._theirs.close()

    @property
    def taken(self) -> bool:
        """Whether somebody else has a port that was meant for the kernel."""
        return ports.taken(self._ports)

    async def ready(self) -> None:
        """Return once the kernel has shown that it is there. The caller limits the time."""
        await self._channels.ready()

    def execute(self, content: dict[str, Any], metadata: dict[str, Any]) -> str:
        """Send an execution; return the id that answers name as their parent. metadata: for kernels of ours."""
        if self._begun < 0:
            return self._channels.send("execute_request", content)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._begun)
        return self._channels.send("execute_request", content, metadata)

    def give(self, text: str) -> None:
        """Send what an execution reads."""
        self._channels.send("input_reply", {"value": text, "status": "ok"}, channel="stdin")

    def interrupt(self) -> None:
        """Ask a kernel that wants that as a message to interrupt what runs."""
        self._channels.send("interrupt_request", {}, channel="control")

    async def begun(self, over: asyncio.Future[None], *, within_s: float) -> None:
        """Return once a kernel of ours has begun with the execution: before that it would hear no interrupt; or it is over."""
        if self._begun < 0 or over.done():
            return
        begun: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._begun, _done, begun)
        try:
            await asyncio.wait([over, begun], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._begun >= 0:
                self._loop.remove_reader(self._begun)

    def drain(self) -> bool:
        """Take all that the kernel has sent, and return True, where that can be done at once."""
        if isinstance(self._channels, Direct):
            self._channels.drain()
        return self._begun >= 0

    def close(self) -> None:
        """Let go of everything. May be called twice."""
        self.handed_over()
        self._channels.close()
        if self._begun >= 0:
            self._loop.remove_reader(self._begun)
            os.close(self._begun)
            self._begun = -1


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
