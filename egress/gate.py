"""What one sandbox may do, for the connections that it has: its rules, its lookups, its counts, what is told of it.

Promises: an address that ``way`` returns has been judged by the rules in force when it returns; a refused name is not looked
up; a refusal is told before ``refuse`` returns, and how often is bounded.
Leaves to policy.py: the judgement. Leaves to listeners.py: sockets and slots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from egress import policy
from egress.addresses import classify
from egress.connection import is_of_this_host
from egress.limits import Limits
from egress.names import Host
from egress.policy import Denial, Own, Rules
from egress.resolve import Resolver, Unresolved

log = logging.getLogger("egress")

_LINES_A_SECOND = 20
_LINES_AT_ONCE = 200

Report = Callable[[str, Denial], Awaitable[None]]
"""Told which sandbox was refused and why; returns when that is on record, or when it has taken too long."""


class Refused(Exception):
    """The policy says no."""

    def __init__(self, denial: Denial) -> None:
        super().__init__(denial.sentence)
        self.denial = denial


class Unreachable(Exception):
    """The policy says yes, the network no. Text: for the sandbox. status: 502, or 504 for what took too long."""

    def __init__(self, sentence: str, status: int = 502) -> None:
        super().__init__(f"sandbox egress failed: {sentence}")
        self.status = status


@dataclass(slots=True)
class Counts:
    """Since they were told before."""

    allowed: int = 0
    denied: int = 0
    malformed: int = 0
    failed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Gate:
    """The way out of one sandbox."""

    def __init__(
        self, sandbox: str, rules: Rules, own: Own, *, resolver: Resolver, report: Report, limits: Limits
    ) -> None:
        self.sandbox = sandbox
        self.rules, self.own = rules, own
        self.limits = limits
        self.counts = Counts()
        self._resolver, self._report = resolver, report
        self._lookups = asyncio.Semaphore(limits.lookups)
        self._looking: set[asyncio.Task[list[bytes]]] = set()
        self._lines = float(_LINES_AT_ONCE)
        self._lines_at = 0.0
        self._left_out = 0

    def judge(self, host: Host, port: int, packed: bytes) -> Denial | None:
        """Return why the host may not be reached at this address now, or None."""
        if denial := policy.decide(self.rules, self.own, host, port, packed):
            return denial
        if classify(packed) != "loopback" and is_of_this_host(packed):
            return Denial("own_address", host.text, port)
        return None

    async def way(self, host: Host, port: int) -> list[bytes]:
        """Return the addresses at which the host may be reached, at least one. Raises Refused, Unreachable."""
        if denial := self.rules.judge_name(host, port):
            raise Refused(denial)
        found = [host.packed] if host.packed is not None else await self._lookup(host)
        judged = [(packed, self.judge(host, port, packed)) for packed in found]
        if allowed := [packed for packed, denial in judged if denial is None]:
            return allowed
        raise Refused(next(denial for _, denial in judged if denial is not None))

    async def refuse(self, denial: Denial) -> None:
        """Put on record that the sandbox was refused."""
        self.counts.denied += 1
        self._line("egress denied", host=denial.host, port=denial.port, reason=denial.reason)
        await self._report(self.sandbox, denial)

    def allow(self, host: Host, port: int) -> None:
        """Put on record that the sandbox goes its way."""
        self.counts.allowed += 1
        self._line("egress allowed", host=host.text, port=port, reason=None)

    def malformed(self, sentence: str) -> None:
        """Put on record that the sandbox sent what is not taken. sentence: of ours, quoting nothing."""
        self.counts.malformed += 1
        self._line("egress denied", host=None, port=None, reason=f"malformed: {sentence}")

    def failed(self, sentence: str) -> None:
        """Put on record that the sandbox was not served, through no fault of its own."""
        self.counts.failed += 1
        self._line("egress failed", host=None, port=None, reason=sentence)

    def take_counts(self) -> dict[str, int]:
        """Return what has happened since this was asked before, by name."""
        taken, self.counts = asdict(self.counts), Counts()
        return taken

    async def aclose(self) -> None:
        """Give up lookups."""
        for task in self._looking:
            task.cancel()
        if self._looking:
            await asyncio.wait(self._looking)

    async def _lookup(self, host: Host) -> list[bytes]:
        try:
            async with asyncio.timeout(self.limits.connect_s):
                await self._lookups.acquire()
                task = asyncio.get_running_loop().create_task(self._resolver.resolve(host), name="lookup")
                self._looking.add(task)
                task.add_done_callback(self._looked)
                return await asyncio.shield(
                    task
                )  # given up, its thread is busy all the same: the slot is free when it ends
        except TimeoutError as error:
            raise Unreachable(f"host {host.text} was not resolved in time", 504) from error
        except Unresolved as error:
            raise Unreachable(f"host {host.text} cannot be resolved") from error

    def _looked(self, task: asyncio.Task[list[bytes]]) -> None:
        self._looking.discard(task)
        self._lookups.release()
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, Unresolved):
            log.error("a lookup failed", extra={"sandbox": self.sandbox}, exc_info=error)

    def _line(self, event: str, *, host: str | None, port: int | None, reason: str | None) -> None:
        """One line of the log, unless there have been too many of this sandbox: then the next one says how many."""
        now = asyncio.get_running_loop().time()
        self._lines = min(self._lines + (now - self._lines_at) * _LINES_A_SECOND, _LINES_AT_ONCE)
        self._lines_at = now
        if self._lines < 1:
            self._left_out += 1
            return
        self._lines -= 1
        fields = {"sandbox": self.sandbox, "host": host, "port": port, "reason": reason, "left_out": self._left_out}
        self._left_out = 0
        log.info(event, extra=fields)
