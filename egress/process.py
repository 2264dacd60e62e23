"""The egress process put together: the service's connection, the sandboxes, and the clock.

Promises: when ``run`` returns, no socket of a sandbox is left and every connection is closed.
Leaves to __main__.py: arguments and signals.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from pathlib import Path

from egress import protocol
from egress.control import Control
from egress.limits import Limits
from egress.listeners import Sandboxes
from egress.resolve import Resolver
from egress.unix import listen, remove

log = logging.getLogger("egress")

_TICK_S = 1.0
_COUNTED_EVERY = 2
"""Ticks."""

_DESCRIPTORS_EACH = 2
_DESCRIPTORS_SPARE = 4_096
"""For connections that wait for their turn, listeners, lookups."""


async def run(control: Path | socket.socket, resolver: Resolver, *, limits: Limits, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set; where ``control`` is a connected socket, until the service closes it.

    control: the connection of the one service, or where to listen for one after the other. Raises OSError if it cannot.
    """
    listening = control if isinstance(control, socket.socket) else listen(control, mode=0o600)
    serve = _one_service if listening is control else _any_service
    talk = Control()
    sandboxes = Sandboxes(resolver, talk.report, limits)
    try:
        async with asyncio.TaskGroup() as group:
            clock = group.create_task(_clock(talk, sandboxes), name="clock")
            serving = group.create_task(serve(listening, talk, sandboxes), name="control")
            stopping = group.create_task(stop.wait(), name="stop")
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (clock, serving, stopping):
                task.cancel()
    finally:
        await sandboxes.aclose()
        if isinstance(control, Path):
            remove(control)


async def _one_service(connected: socket.socket, talk: Control, sandboxes: Sandboxes) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connected, limit=protocol.MAX_LINE)
    await talk.converse(reader, writer, sandboxes)


async def _any_service(listening: socket.socket, talk: Control, sandboxes: Sandboxes) -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await talk.converse(reader, writer, sandboxes)

    async with await asyncio.start_unix_server(converse, sock=listening, limit=protocol.MAX_LINE) as server:
        await server.serve_forever()


async def _clock(talk: Control, sandboxes: Sandboxes) -> None:
    ticks = 0
    while True:
        await asyncio.sleep(_TICK_S)
        ticks += 1
        sandboxes.expire()
        if ticks % _COUNTED_EVERY == 0:
            talk.tell_counts(sandboxes)


def raise_descriptors(limits: Limits) -> None:
    """Have as many descriptors as the connections may need, or say that there are fewer."""
    wanted = _DESCRIPTORS_EACH * limits.in_all + _DESCRIPTORS_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        log.warning("egress has few descriptors", extra={"wanted": wanted, "limit": most})
