"""The conversation with the service, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from egress import protocol
from egress.limits import Limits
from egress.process import run
from egress.protocol import Policy
from tests.egress.conftest import LIMIT_S, Names

CONNECT = b"CONNECT other.example:443 HTTP/1.1\r\n\r\n"


class Service:
    """The service, as the egress process sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, folder: Path) -> None:
        self.reader, self.writer, self.folder = reader, writer, folder

    def say(self, *messages: protocol.Message) -> None:
        for message in messages:
            self.writer.write(protocol.encode(message))

    def open(self, sandbox: str, *allow: str) -> None:
        self.say(protocol.Open(sandbox, str(self.folder / sandbox), Policy(allow=allow)))

    async def hear(self) -> protocol.FromEgress:
        async with asyncio.timeout(LIMIT_S):
            return protocol.from_egress(await self.reader.readline())

    async def aclose(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[Path]:
    """Where the egress process listens for its service."""
    path, stop = tmp_path / "control", asyncio.Event()
    running = asyncio.gather(run(path, Names(), limits=Limits(), stop=stop))
    while not path.exists():  # noqa: ASYNC110 -- it tells nobody that it listens
        await asyncio.sleep(0.01)
    yield path
    stop.set()
    await asyncio.wait_for(running, LIMIT_S)
    assert sockets(tmp_path) == []


def sockets(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.is_socket())


async def dial(control: Path) -> Service:
    return Service(*await asyncio.open_unix_connection(control, limit=protocol.MAX_LINE), control.parent)


async def ask(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(CONNECT)
    answer = await asyncio.wait_for(reader.read(), LIMIT_S)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_sandbox_is_opened_and_closed(control: Path) -> None:
    service = await dial(control)
    service.open("one")
    assert await service.hear() == protocol.Opened("one")
    assert (control.parent / "one").is_socket()
    service.say(protocol.Close("one"), protocol.Close("never there"))
    service.open("two")
    assert await service.hear() == protocol.Opened("two")
    assert not (control.parent / "one").exists()
    await service.aclose()


async def test_what_cannot_be_opened_is_told_with_its_reason(control: Path) -> None:
    service = await dial(control)
    service.open("one", "no entry")
    assert await service.hear() == protocol.Failed(
        "one", "egress entry 'no entry': a host is ASCII letters, digits, hyphens and dots"
    )
    service.say(protocol.Open("one", str(control.parent / "nowhere" / "x"), Policy()))
    assert await service.hear() == protocol.Failed("one", "No such file or directory")
    await service.aclose()


async def test_a_refusal_is_told_before_its_client_and_waits_to_be_noted(control: Path) -> None:
    service = await dial(control)
    service.open("one")
    await service.hear()
    reader, writer = await asyncio.open_unix_connection(control.parent / "one")
    writer.write(CONNECT)
    sentence = "sandbox egress denied: host other.example is not in allowlist"
    assert await service.hear() == protocol.Denied(1, "one", "other.example", 443, "not_allowed", sentence)
    answering = asyncio.gather(reader.readline())
    await asyncio.sleep(0)
    assert not answering.done()
    service.say(protocol.Noted(99), protocol.Noted(1), protocol.Noted(1))
    assert (await asyncio.wait_for(answering, LIMIT_S))[0] == f"HTTP/1.1 403 {sentence}\r\n".encode()
    writer.close()
    await service.aclose()


async def test_a_service_that_does_not_note_holds_nobody_up(control: Path) -> None:
    service = await dial(control)
    service.open("one")
    await service.hear()
    assert (await ask(control.parent / "one")).startswith(b"HTTP/1.1 403 ")
    await service.aclose()


async def test_without_a_service_the_sandboxes_go_on_and_the_next_one_says_which(control: Path) -> None:
    first = await dial(control)
    first.open("one")
    first.open("two")
    assert [await first.hear(), await first.hear()] == [protocol.Opened("one"), protocol.Opened("two")]
    await first.aclose()
    for name in ("one", "two"):
        assert (await ask(control.parent / name)).startswith(b"HTTP/1.1 403 ")
    second = await dial(control)
    second.open("two")
    second.say(protocol.Synced())
    second.open("three")
    assert [await second.hear(), await second.hear()] == [protocol.Opened("two"), protocol.Opened("three")]
    assert sockets(control.parent) == ["control", "three", "two"]
    await second.aclose()


async def test_the_newest_service_takes_the_place_of_the_one_before(control: Path) -> None:
    first = await dial(control)
    first.open("one")
    await first.hear()
    second = await dial(control)
    second.open("one")
    assert await second.hear() == protocol.Opened("one")
    assert await asyncio.wait_for(first.reader.read(), LIMIT_S) == b""
    first.open("three")
    second.open("two")
    assert await second.hear() == protocol.Opened("two")
    assert not (control.parent / "three").exists()
    await first.aclose()
    await second.aclose()


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b'{"kind":"Opened","sandbox":"x"}\n',
        b"x" * (protocol.MAX_LINE + 100) + b"\n",
        protocol.encode(protocol.Own(("a name",), ())),
    ],
)
async def test_a_service_that_is_not_understood_is_left_and_changes_nothing(control: Path, line: bytes) -> None:
    service = await dial(control)
    service.open("one")
    await service.hear()
    service.writer.write(line)
    with contextlib.suppress(OSError):
        assert await asyncio.wait_for(service.reader.read(), LIMIT_S) == b""
    await service.aclose()
    assert (await ask(control.parent / "one")).startswith(b"HTTP/1.1 403 ")


async def test_what_happened_is_counted_every_few_seconds(control: Path) -> None:
    service = await dial(control)
    service.open("one")
    await service.hear()
    await ask(control.parent / "one")
    assert isinstance(await service.hear(), protocol.Denied)
    counted = await service.hear()
    assert isinstance(counted, protocol.Counted)
    assert (counted.sandbox, counted.denied) == ("one", 1)
    await service.aclose()
