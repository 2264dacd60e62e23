"""The conversation with the egress process, with one that is played here."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from egress.protocol import (
    MAX_LINE,
    Close,
    Counted,
    Denied,
    Failed,
    Noted,
    Open,
    Opened,
    Own,
    Policy,
    Synced,
    encode,
    from_service,
)
from interpreter.egress.control import Control
from interpreter.egress.process import Beside, Elsewhere

OWN = Own(("192.0.2.7",), (8090,))


class Played:
    """An egress process that says and hears what a test wants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.put_nowait((reader, writer))

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        self.path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._taken, self.path, limit=MAX_LINE)
        try:
            yield
        finally:
            server.close()

    async def next(self) -> Played:
        async with asyncio.timeout(5):
            self.reader, self.writer = await self.connections.get()
        return self

    async def hears(self, *messages: object) -> None:
        for message in messages:
            async with asyncio.timeout(5):
                assert from_service(await self.reader.readline()) == message

    def says(self, message: object) -> None:
        self.writer.write(encode(message))  # type: ignore[arg-type]  # a table of a test

    def hangs_up(self) -> None:
        self.writer.transport.abort()


class House:
    def __init__(self, path: Path) -> None:
        self.played = Played(path)
        self.denied: list[Denied] = []
        self.counted: list[Counted] = []
        self.control = Control(Elsewhere(path), OWN, on_denied=self.denied.append, on_counted=self.counted.append)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path / "control")
    yield house
    await house.control.aclose()
    await house.control.aclose()


def opening(name: str, *allow: str) -> Open:
    return Open(name, f"/run/{name}/egress", Policy(allow))


async def test_all_that_there_is_is_said_first_on_each_connection(house):
    for each in (opening("a", "one.example"), opening("b"), opening("a", "two.example")):
        house.control.put(each)
    house.control.put(opening("c"))
    house.control.close("c")
    async with house.played.listening():
        house.control.start()
        for _ in range(3):
            await house.played.next()
            await house.played.hears(OWN, opening("a", "two.example"), opening("b"), Synced())
            house.played.hangs_up()
        await house.played.next()
        await house.played.hears(OWN, opening("a", "two.example"), opening("b"), Synced())
        assert house.control.up
        house.control.put(opening("b", "three.example"))
        house.control.close("a")
        house.control.close("a")
        await house.played.hears(opening("b", "three.example"), Close("a"))
        house.played.hangs_up()


async def test_who_opens_waits_for_the_answer_whichever_it_is_and_a_moment_at_most(house, caplog):
    async with house.played.listening():
        house.control.start()
        await house.played.next()
        await house.played.hears(OWN, Synced())
        for answer in (Opened("a"), Failed("a", "no such directory")):
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(house.control.open(opening("a"), within_s=30))
                await house.played.hears(opening("a"))
                assert not waiting.done()
                house.played.says(answer)
        assert "a sandbox has no way out" in caplog.text
        await house.control.open(opening("b"), within_s=0.05)
        house.played.hangs_up()
    caplog.clear()


async def test_a_refusal_is_on_record_before_it_is_noted(house):
    async with house.played.listening():
        house.control.start()
        await house.played.next()
        await house.played.hears(OWN, Synced())
        denied = Denied(7, "a", "data.example", 443, "not_allowed", "sandbox egress denied: host …")
        house.played.says(denied)
        await house.played.hears(Noted(7))
        assert house.denied == [denied]
        counted = Counted("a", 1, 2, 3, 4, 5, 6, 7)
        house.played.says(counted)
        house.played.says(Denied(8, "a", "data.example", 443, "not_allowed", ""))
        await house.played.hears(Noted(8))
        assert house.counted == [counted]
        house.played.hangs_up()


async def test_one_that_makes_no_sense_is_left_and_that_is_said_once(house, caplog):
    async with house.played.listening():
        house.control.start()
        for junk in (b"{}\n", b'{"kind": "Open"}\n', b"x" * 2**21):
            await house.played.next()
            await house.played.hears(OWN, Synced())
            house.played.writer.write(junk)
            with contextlib.suppress(ConnectionResetError):
                assert await house.played.reader.read() == b""
            house.played.hangs_up()
        await house.played.next()
        await house.played.hears(OWN, Synced())
        assert caplog.text.count("the proxy is gone") == 1
        house.played.says(Opened("a"))
        house.played.says(Denied(1, "a", "data.example", 443, "port", ""))
        await house.played.hears(Noted(1))
        assert "the proxy is there again" in caplog.text
        house.played.hangs_up()
    caplog.clear()


async def test_a_policy_that_is_too_long_to_be_said_harms_no_other(house, caplog):
    long = opening("a", *(f"{number:05}.{'x' * 280}" for number in range(2000)))
    house.control.put(Open("a", "/run/a/egress", Policy(long.policy.allow, long.policy.allow)))
    house.control.put(opening("b"))
    async with house.played.listening():
        house.control.start()
        await house.played.next()
        await house.played.hears(OWN, opening("b"), Synced())
        assert "left out" in caplog.text
        house.played.hangs_up()
    caplog.clear()


async def test_without_a_proxy_nothing_waits_long(house):
    house.control.start()
    async with asyncio.timeout(5):
        await house.control.open(opening("a"), within_s=0.05)
    assert not house.control.up


async def test_a_process_of_ours_gets_no_key_and_ends_with_its_connection(monkeypatch):
    monkeypatch.setenv("SANDBOX_API_KEY", "a-key-that-nobody-may-see")
    beside = Beside()
    _, writer = await beside.connect()
    first = beside.pid
    assert first is not None
    writer.write(encode(OWN))
    assert b"SANDBOX_API_KEY" not in await asyncio.to_thread(Path(f"/proc/{first}/environ").read_bytes)
    writer.close()
    _, writer = await beside.connect()
    assert beside.pid not in (first, None)
    assert str(first) not in await asyncio.to_thread(os.listdir, "/proc")
    writer.close()
    await beside.aclose()
    await beside.aclose()
    assert beside.pid is None
