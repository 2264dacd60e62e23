"""Bytes from one socket to another at the pace of the slower one."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from egress.bodies import Chunked, Sized, UntilClose
from egress.connection import Connection
from egress.heads import Malformed
from egress.relay import SinkBroken, relay
from tests.egress.conftest import LIMIT_S


class Ends:
    """A relay between two pairs of sockets: what is written to ``near`` arrives at ``far``."""

    def __init__(self) -> None:
        self.near, source = socket.socketpair()
        sink, self.far = socket.socketpair()
        self.source, self.sink = Connection(source), Connection(sink)
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.moved = 0

    def count(self, moved: int) -> None:
        self.moved += moved

    def close(self) -> None:
        for end in (self.near, self.far, self.source, self.sink):
            end.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


async def received(far: socket.socket, size: int) -> bytes:
    out = b""
    while len(out) < size:
        out += await asyncio.get_running_loop().sock_recv(far, 100_000)
    return out


async def test_what_was_read_with_the_head_goes_first_and_what_follows_stays(ends: Ends) -> None:
    ends.source.unread += b"abc"
    ends.near.send(b"defghi")
    await relay(ends.source, ends.sink, Sized(7), ends.count)
    assert await received(ends.far, 7) == b"abcdefg"
    assert (ends.source.unread, ends.moved) == (b"hi", 7)


async def test_a_body_that_is_there_already_needs_no_reading(ends: Ends) -> None:
    ends.source.unread += b"0\r\n\r\nnext"
    await relay(ends.source, ends.sink, Chunked(), ends.count)
    assert ends.source.unread == b"next"


async def test_a_slow_reader_holds_the_writer_up(ends: Ends) -> None:
    """More than all the buffers on the way: what is not read is not taken."""
    data = os.urandom(8 * 2**20)
    loop = asyncio.get_running_loop()
    writing = asyncio.gather(loop.sock_sendall(ends.near, data))
    relaying = asyncio.gather(relay(ends.source, ends.sink, Sized(len(data)), ends.count))
    before = -1
    while before != ends.moved:
        before = ends.moved
        await asyncio.sleep(0.1)  # that nothing moves is told by nobody
    assert not writing.done()
    assert ends.moved < 2**21
    assert await received(ends.far, len(data)) == data
    await writing
    await relaying


async def test_a_source_that_closes_too_early_is_malformed(ends: Ends) -> None:
    ends.near.send(b"abc")
    ends.near.close()
    with pytest.raises(Malformed):
        await relay(ends.source, ends.sink, Sized(4), ends.count)


async def test_a_sink_that_is_gone_ends_it(ends: Ends) -> None:
    ends.far.close()
    ends.near.send(b"abc")
    with pytest.raises(SinkBroken):
        await relay(ends.source, ends.sink, UntilClose(), ends.count)


async def test_a_relay_that_is_cancelled_leaves_the_sockets_alone(ends: Ends) -> None:
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await relay(ends.source, ends.sink, UntilClose(), ends.count)
    loop = asyncio.get_running_loop()
    assert not loop.remove_reader(ends.source.socket)
    assert not loop.remove_writer(ends.sink.socket)


async def test_who_has_more_and_more_does_not_keep_others_waiting(ends: Ends) -> None:
    endless, poured = Ends(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def pour() -> None:
        while True:
            await loop.sock_sendall(endless.near, bytes(2**18))
            await asyncio.sleep(0)

    async def drain() -> None:
        while await loop.sock_recv(endless.far, 2**18):
            poured.set()
            await asyncio.sleep(0)

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        busy = [
            group.create_task(pour()),
            group.create_task(drain()),
            group.create_task(relay(endless.source, endless.sink, UntilClose(), endless.count)),
        ]
        await poured.wait()
        ends.near.send(b"quick")
        await relay(ends.source, ends.sink, Sized(5), ends.count)
        assert await received(ends.far, 5) == b"quick"
        for task in busy:
            task.cancel()
    endless.close()
