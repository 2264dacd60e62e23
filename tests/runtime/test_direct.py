"""The socket to one kernel of ours."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sandboxd import direct as direct_module
from sandboxd.direct import Direct
from sandboxd.messages import Channel, Received

PATIENCE_S = 10.0


def frame(channel: str = "iopub", **fields: Any) -> bytes:
    message = {"channel": channel, "header": {"msg_id": "m", "msg_type": "stream"}, "content": {"text": "x"}}
    body = json.dumps(message | fields).encode()
    return struct.pack(">I", len(body)) + body


class Ends:
    """Both ends, and what ours has heard."""

    def __init__(self) -> None:
        ours, self.kernel = socket.socketpair()
        self.heard: list[tuple[Channel, Received]] = []
        self.ended = 0
        self.came = asyncio.Event()
        self.direct = Direct(ours, self._hear, self._end)

    def _hear(self, channel: Channel, message: Received) -> None:
        self.heard.append((channel, message))
        self.came.set()

    def _end(self) -> None:
        self.ended += 1
        self.came.set()

    async def until(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.heard) < number and not self.ended:
                self.came.clear()
                await self.came.wait()


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    made.direct.close()
    made.direct.close()
    made.kernel.close()


async def test_messages_come_in_order_however_the_bytes_are_cut(ends: Ends) -> None:
    data = frame(place=3) + frame("shell", parent_header={"msg_id": "p"}) + frame("stdin", content={"a": [1.5, "ä"]})
    for byte in data:
        ends.kernel.send(bytes([byte]))
        await asyncio.sleep(0)
    await ends.until(3)
    (first, one), (second, two), (third, three) = ends.heard
    assert (first, one.place, one.parent) == ("iopub", 3, "")
    assert (second, two.parent, two.type) == ("shell", "p", "stream")
    assert (third, json.loads(three.content)) == ("stdin", {"a": [1.5, "ä"]})


JUNK = [
    b"",
    b"x",
    b"[]",
    b"[" * 100_000,
    b'{"channel": "nonsense", "header": {"msg_id": "", "msg_type": "x"}, "content": {}}',
    b'{"channel": "shell", "header": {}, "content": {}}',
    b'{"channel": "shell", "header": {"msg_id": "", "msg_type": 5}, "content": {}}',
    b'{"channel": "iopub", "place": -1, "header": {"msg_id": "", "msg_type": "x"}, "content": {}}',
    b'{"channel": "iopub", "place": 1e300, "header": {"msg_id": "", "msg_type": "x"}, "content": {}}',
    b'{"channel": "iopub", "header": {"msg_id": "", "msg_type": "x"}, "content": NaN}',
]


@pytest.mark.parametrize("body", JUNK)
async def test_what_is_no_message_is_as_if_it_had_not_come(ends: Ends, body: bytes) -> None:
    ends.kernel.sendall(struct.pack(">I", len(body)) + body + frame())
    await ends.until(1)
    assert [message.type for _, message in ends.heard] == ["stream"]
    assert not ends.ended


async def test_a_message_that_cannot_be_taken_keeps_none_after_it(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    taken = ends._hear

    def fail_once(channel: Channel, message: Received) -> None:
        ends.direct._receive = taken
        raise RuntimeError

    ends.direct._receive = fail_once
    ends.kernel.sendall(frame() + frame("shell"))
    await ends.until(1)
    assert [channel for channel, _ in ends.heard] == ["shell"]
    assert "could not be taken" in caplog.text


async def test_a_frame_that_is_too_long_ends_it(ends: Ends) -> None:
    ends.kernel.sendall(struct.pack(">I", direct_module._LONGEST + 1))
    await ends.until(1)
    assert (ends.heard, ends.ended) == ([], 1)


async def test_its_end_is_told_once_after_all_that_came(ends: Ends) -> None:
    ends.kernel.sendall(frame() + frame()[:-1])
    ends.kernel.close()
    ends.direct.drain()
    ends.direct.drain()
    await asyncio.sleep(0)
    assert (len(ends.heard), ends.ended) == (1, 1)


async def test_sending_never_waits_and_loses_nothing(ends: Ends) -> None:
    codes = [str(number) * 300_000 for number in range(10)]
    sent = [ends.direct.send("execute_request", {"code": code}, {"a": 1}) for code in codes]
    data = bytearray()
    ends.kernel.setblocking(False)
    async with asyncio.timeout(PATIENCE_S):
        while len(data) < 3_000_000 or ends.direct._unsent:
            try:
                data += ends.kernel.recv(2**20)
            except BlockingIOError:
                await asyncio.sleep(0.001)
    found = []
    while data:
        (length,) = struct.unpack_from(">I", data)
        found.append(json.loads(data[4 : 4 + length]))
        del data[: 4 + length]
    assert [message["content"]["code"] for message in found] == codes
    assert [message["header"]["msg_id"] for message in found] == sent
    assert {message["channel"] for message in found} == {"shell"}
    ends.kernel.close()
    ends.direct.send("execute_request", {"code": "x" * 1000})
