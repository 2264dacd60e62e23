"""Both ends of the second link of one sandbox; the inside is a scripted one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sandboxd.protocol import Alive, Cancel, Execute, Hello, Known, OutputLimits, Refused

from interpreter.backends.base import Limits, SandboxId, SandboxSpec
from interpreter.backends.fake import FakeBackend
from interpreter.link.connection import Connection, LinkLimits, Pending
from interpreter.link.errors import LinkClosed
from interpreter.link.listener import Listener
from tests.fakes.sandboxd import Sandboxd, until_cancelled

LIMITS = OutputLimits(text=1000, results=1000, spill=0)


class House:
    """A sandbox that outlives its services. ``connect`` is a service that begins, ``leave`` one that is killed."""

    def __init__(self, root: Path) -> None:
        self.sandboxd = Sandboxd()
        self.sandboxd.redials = True
        self.sandboxd.script["waits"] = until_cancelled
        self.backend = FakeBackend(self.sandboxd)
        limits = Limits(memory_mib=64, cpus=1, pids=16, tmp_mib=16)
        self.spec = SandboxSpec(
            id=SandboxId("s"), uid=None, gid=None, workspace=root, user=root, link_dir=root, limits=limits
        )
        self.connection: Connection
        self.running: asyncio.Task[None]

    async def connect(self) -> Hello:
        listener = Listener(self.spec.link_dir)
        if not self.backend.running:
            await self.backend.start(self.spec)
        accepted = await listener.accept(within_s=20)
        self.connection = await Connection.open(accepted, limits=LinkLimits(frame=100_000))
        return await self.connection.hello(within_s=20)

    def run(self) -> None:
        self.running = asyncio.get_running_loop().create_task(self.connection.run())

    async def leave(self) -> None:
        await self.connection.wait_closed()
        await self.running

    async def execute(self, name: str, code: str, *, stateful: bool = False) -> Pending:
        return await self.connection.execute(
            Execute(name, "python", code, timeout_s=1, grace_s=1, limits=LIMITS, stateful=stateful)
        )


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    opened = House(tmp_path)
    assert (await opened.connect()).known == []
    opened.run()
    yield opened
    await opened.leave()
    await opened.backend.host.power_off()


async def test_ten_services_one_after_the_other_and_each_answer_is_had_once(house: House) -> None:
    ended = await (await house.execute("ended", "1", stateful=True)).end
    waits = await house.execute("waits", "waits")
    for _ in range(10):
        await house.leave()
        with pytest.raises(LinkClosed):
            await waits.end
        hello = await house.connect()
        assert hello.known == [Known("waits", "running"), Known("ended", "finished")]
        assert hello.alive == [Alive("python", "default")]
        waits, again = house.connection.adopt("waits", 10), house.connection.adopt("ended", 10)
        house.run()
        assert await again.end == ended
    house.connection.settle(["ended"])
    await house.connection.cancel("waits")
    answer = await waits.end
    assert not isinstance(answer, Refused)
    assert answer.outcome.status == "cancelled"
    assert house.sandboxd.began == ["1", "waits"]
    assert house.connection.dropped == 0
    await house.leave()
    assert (await house.connect()).known == [Known("waits", "finished")]
    house.run()


async def test_what_the_next_service_does_not_know_is_ended_and_forgotten(house: House) -> None:
    await house.execute("unknown", "waits")
    await house.leave()
    assert (await house.connect()).known == [Known("unknown", "running")]
    house.run()
    house.connection.settle(["unknown"])
    await house.connection.send(Cancel(id="unknown"))
    assert (await (await house.execute("next", "1")).end).id == "next"
    await house.leave()
    assert (await house.connect()).known == [Known("next", "finished")]
    house.run()
    assert house.connection.dropped == 0


async def test_an_id_is_run_once_however_often_it_is_sent(house: House) -> None:
    first = await (await house.execute("same", "1")).end
    await house.leave()
    await house.connect()
    house.run()
    assert await (await house.execute("same", "1")).end == first
    assert house.sandboxd.began == ["1"]
