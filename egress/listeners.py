"""The sandboxes there are: a listening socket for each, whose accepting decides whose rules are in force.

Promises: what has connected to the socket of one sandbox is never judged as another's; a sandbox has no more connections than it
may, however many it makes, and what it makes costs others nothing but their share of the time; a policy is in force when ``open``
returns, and what it does not allow is cut.
Leaves to visit.py: the connections. Leaves to control.py: what the service says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from egress import protocol
from egress.connection import Connection
from egress.gate import Gate, Report
from egress.heads import own_response
from egress.limits import Limits
from egress.policy import Own, Rules
from egress.resolve import Resolver
from egress.unix import identity, listen, remove
from egress.visit import Visit

log = logging.getLogger("egress")

_ACCEPTS = 32
"""In one tick of the loop, so that who connects in a row does not keep others waiting."""

_PAUSE_S = 0.2
_TOO_MANY = "sandbox egress failed: the sandbox has too many connections"
_TOO_MANY_IN_ALL = "sandbox egress failed: there are too many connections"


class Sandboxes:
    """All of them, by id."""

    def __init__(self, resolver: Resolver, report: Report, limits: Limits) -> None:
        self._resolver, self._report, self._limits = resolver, report, limits
        self._own = Own()
        self._open: dict[str, Sandbox] = {}
        self._serving = Slots(limits.in_all)

    def own(self, told: protocol.Own) -> None:
        """Refuse these to everybody from now on. Raises PolicyError."""
        self._own = Own.of(told)
        for sandbox in self._open.values():
            sandbox.gate.own = self._own
            sandbox.judge_again()

    def open(self, told: protocol.Open) -> None:
        """Listen for a sandbox, or replace its policy. Raises PolicyError, OSError; then nothing has changed."""
        rules, path = Rules(told.policy), Path(told.path)
        sandbox = self._open.get(told.sandbox)
        if sandbox is not None and sandbox.listens_at(path):
            sandbox.gate.rules = rules
            sandbox.judge_again()
            return
        listening = listen(path, mode=0o666)
        if sandbox is None:
            gate = Gate(
                told.sandbox, rules, self._own, resolver=self._resolver, report=self._report, limits=self._limits
            )
            self._open[told.sandbox] = Sandbox(gate, self._serving, listening, path)
        else:
            sandbox.gate.rules = rules
            sandbox.listen(listening, path)
            sandbox.judge_again()

    async def close(self, sandbox: str) -> None:
        """Cut what the sandbox has open and remove its socket."""
        if (closed := self._open.pop(sandbox, None)) is not None:
            await closed.aclose()

    async def keep_only(self, sandboxes: set[str]) -> None:
        """Close all others."""
        for sandbox in self._open.keys() - sandboxes:
            await self.close(sandbox)

    def expire(self) -> None:
        """End what has been idle for too long."""
        for sandbox in self._open.values():
            sandbox.expire()

    def counted(self) -> Iterator[protocol.Counted]:
        """What has happened since it was asked before, for each sandbox where something has."""
        for sandbox in self._open.values():
            if (message := sandbox.counted()) is not None:
                yield message

    async def aclose(self) -> None:
        """Close all."""
        await self.keep_only(set())


class Slots:
    """How many there may be, and are."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self) -> bool:
        """Take one, if one is left."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give(self) -> None:
        """Give one back."""
        self._left += 1


class Sandbox:
    """One of them: its socket and its connections."""

    def __init__(self, gate: Gate, in_all: Slots, listening: socket.socket, path: Path) -> None:
        self.gate = gate
        self._limits = gate.limits
        self._in_all = in_all
        self._slots = asyncio.Semaphore(gate.limits.per_sandbox)
        self._tasks: set[asyncio.Task[None]] = set()
        self._visits: set[Visit] = set()
        self._told_connections = 0
        self._loop = asyncio.get_running_loop()
        self._listening: socket.socket | None = None
        self._paused: asyncio.TimerHandle | None = None
        self.listen(listening, path)

    def listen(self, listening: socket.socket, path: Path) -> None:
        """Accept at this socket, which it owns from now on, and at no other."""
        self._stop_listening(for_good=False)
        self._listening, self._path = listening, path
        self._identity = identity(path)
        self._loop.add_reader(listening, self._accept)

    def listens_at(self, path: Path) -> bool:
        """Whether who connects to ``path`` comes here."""
        return path == self._path and self._identity is not None and identity(path) == self._identity

    def judge_again(self) -> None:
        """Cut what the rules do not allow any longer, and tell."""
        for visit in list(self._visits):
            if (denial := visit.judge_again()) is not None:
                self._start(self.gate.refuse(denial), name="cut")

    def expire(self) -> None:
        """End what has been idle for too long."""
        before = self._loop.time() - self._limits.idle_s
        for visit in list(self._visits):
            if visit.moved_at < before:
                visit.expire()

    def counted(self) -> protocol.Counted | None:
        """What has happened since it was asked before, if something has."""
        counts, connections = self.gate.take_counts(), len(self._visits)
        if connections == self._told_connections and not any(counts.values()):
            return None
        self._told_connections = connections
        return protocol.Counted(self.gate.sandbox, connections, **counts)

    async def aclose(self) -> None:
        """Cut all connections and remove the socket. May be called twice."""
        self._stop_listening(for_good=True)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.gate.aclose()

    def _stop_listening(self, *, for_good: bool) -> None:
        if self._listening is None:
            return
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._listening)
        if for_good and self.listens_at(self._path):
            remove(self._path)
        self._listening.close()
        self._listening = None

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            if self._listening is None:
                return
            try:
                connected, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors: some that are there have to end first
                log.warning("egress cannot accept", extra={"sandbox": self.gate.sandbox}, exc_info=error)
                self._loop.remove_reader(self._listening)
                self._paused = self._loop.call_later(_PAUSE_S, self._loop.add_reader, self._listening, self._accept)
                return
            if len(self._tasks) < self._limits.per_sandbox + self._limits.waiting:
                self._start(self._serve(Connection(connected)), name="visit")
            else:
                self._turn_away(connected)

    def _start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("egress failed", extra={"sandbox": self.gate.sandbox}, exc_info=error)

    def _turn_away(self, connected: socket.socket) -> None:
        """Without a task: it is what remains for those who make connections without end."""
        self.gate.failed(_TOO_MANY)
        with connected, contextlib.suppress(OSError):
            connected.setblocking(False)
            connected.send(own_response(503, _TOO_MANY))

    async def _serve(self, client: Connection) -> None:
        try:
            try:
                async with asyncio.timeout(self._limits.waiting_s):
                    await self._slots.acquire()
            except TimeoutError:
                return await self._busy(client, _TOO_MANY)
            try:
                if not self._in_all.take():
                    return await self._busy(client, _TOO_MANY_IN_ALL)
                try:
                    await self._visit(client)
                finally:
                    self._in_all.give()
            finally:
                self._slots.release()
        finally:
            client.close()

    async def _visit(self, client: Connection) -> None:
        visit = Visit(client, self.gate)
        self._visits.add(visit)
        try:
            await visit.serve()
        finally:
            self._visits.discard(visit)

    async def _busy(self, client: Connection, sentence: str) -> None:
        self.gate.failed(sentence)
        await client.finish(own_response(503, sentence))
