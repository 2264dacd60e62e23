"""Everything at once, in an order that a seed decides: nothing fails for a fault of ours, and the tables are empty after."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from sandboxd.protocol import Execute, Finished

from interpreter.errors import SandboxStartFailed, ServiceError
from tests.fakes.sandboxd import Peer, never, until_cancelled
from tests.service.conftest import House

MakeHouse = Callable[..., Awaitable[House]]
ANSWERS = {"ok", "died", "timeout", "interrupted", "cancelled"}
REFUSALS = {"queue_timeout", "too_many_executions", "too_many_sessions", "session_busy", "kernel_not_found"}


class Storm:
    """Callers that run, cancel, delete, purge, restart and list, all on a few sandboxes of two scopes."""

    def __init__(self, house: House, seed: int) -> None:
        self.house = house
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        house.sandboxd.script.update(
            dies=self._dies, slow=self._slow, wait=until_cancelled, never=never, unsafe=self._unsafe
        )

    async def _dies(self, peer: Peer, message: Execute) -> None:
        peer.writer.transport.abort()

    async def _slow(self, peer: Peer, message: Execute) -> None:
        await asyncio.sleep(self.random.random() * 0.03)
        peer.finish(message)

    async def _unsafe(self, peer: Peer, message: Execute) -> None:
        peer.send(Finished(id=message.id, outcome=peer.outcome(message), sandbox_unsafe=True))

    async def runs(self, times: int) -> None:
        choice, chance = self.random.choice, self.random.random
        for _ in range(times):
            code = choice(["a", "a", "a", "slow", "slow", "dies", "wait", "unsafe", "never"])
            try:
                execution = self.house.submit(
                    code,
                    scope=choice("ab"),
                    session=choice(["1", "2", None]),
                    context=choice("pq"),
                    timeout_s=0.1,
                    queue_timeout_s=choice([0.01, 10.0]),
                    stateful=chance() < 0.8,
                )
                if chance() < 0.2:
                    await asyncio.sleep(chance() * 0.02)
                    self.house.service.cancel(execution)
                self.seen[(await self.house.service.settle(execution)).status] += 1
            except ServiceError as error:
                self.seen[error.code] += 1
                await asyncio.sleep(0.01)

    async def operates(self, times: int) -> None:
        service, chance = self.house.service, self.random.random
        for _ in range(times):
            await asyncio.sleep(chance() * 0.05)
            scope, session = self.random.choice("ab"), self.random.choice("12")
            purge, force = chance() < 0.5, chance() < 0.7
            operation: Callable[[], Awaitable[object]] = self.random.choice(
                [
                    lambda: service.remove_session(scope, session, purge=purge, force=force),  # noqa: B023 - called at once
                    lambda: service.remove_scope(scope, purge=purge, force=force),  # noqa: B023
                    lambda: service.restart_kernel(scope, session, "python", "p"),  # noqa: B023
                    lambda: service.delete_kernel(scope, session, "python", "p"),  # noqa: B023
                    lambda: service.interrupt_kernel(scope, session, "python", "q"),  # noqa: B023
                ]
            )
            try:
                await operation()
            except ServiceError as error:
                self.seen[error.code] += 1
            await service.sessions(scope)
            service.kernels(scope, session)
            await service.scopes()


async def _blow(make_house: MakeHouse, seed: int, times: int) -> None:
    house = await make_house(max_sessions=6, max_concurrent=60, idle_ttl_s=0.2, drain_timeout_s=30.0)
    storm = Storm(house, seed)
    await asyncio.gather(*(storm.runs(times) for _ in range(10)), *(storm.operates(times) for _ in range(3)))
    await house.service.drain()
    assert set(storm.seen) <= ANSWERS | REFUSALS
    assert storm.seen["ok"]
    service = house.service
    assert (service._table._leases, service._runner._works, service._runner._turns) == ({}, {}, {})
    assert not [kernel for kernel in service._kernels._kernels.values() if kernel.wanted]
    assert service._store.active_count() == 0
    await service.aclose()
    assert (house.backend.running, service._table.rows(), service._manager._leaving) == ({}, [], set())


@pytest.mark.parametrize("seed", range(2))
async def test_a_storm(make_house: MakeHouse, seed: int) -> None:
    await _blow(make_house, seed, 25)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10, 20))
async def test_a_long_storm(make_house: MakeHouse, seed: int) -> None:
    await _blow(make_house, seed, 300)


async def test_who_waits_too_long_for_a_start_is_told_so_and_nothing_runs(house: House) -> None:
    starter = house.service._manager._starter
    starter._starts, starter._config = asyncio.Semaphore(1), dataclasses.replace(starter._config, turn_s=0.05)
    house.backend.hold.clear()
    first = house.submit("a", session="first")
    while not starter._starts.locked():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.001)
    with pytest.raises(SandboxStartFailed, match="turn") as refused:
        await house.exec("b", session="second")
    assert refused.value.retry_after_s
    house.backend.hold.set()
    assert (await house.service.settle(first)).stdout == "a"
    assert (await house.exec("b", session="second")).stdout == "b"
    assert house.sandboxd.began.count("b") == 1
