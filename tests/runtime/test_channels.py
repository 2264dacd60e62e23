"""The sockets to one kernel."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
import zmq
from sandboxd import channels as channels_module
from sandboxd.channels import Channels, Connection
from sandboxd.messages import Channel, Received


class OneSocketOnly(zmq.Context[Any]):
    """As where there are no descriptors left."""

    made: Any = None

    def socket(self, *arguments: Any, **options: Any) -> Any:
        if self.made is not None:
            raise zmq.ZMQError(24)
        OneSocketOnly.made = super().socket(*arguments, **options)
        return self.made


async def test_channels_that_cannot_be_made_leave_nothing(tmp_path: Path) -> None:
    context = OneSocketOnly()
    connection = Connection.make(tmp_path)
    with pytest.raises(zmq.ZMQError):
        Channels(context, connection, lambda _channel, _message: None)
    assert context.made.closed
    context.term()


def message(connection: Connection, kind: str, text: str) -> list[bytes]:
    header = {"msg_id": "m", "msg_type": kind}
    parts = [json.dumps(part).encode() for part in (header, {}, {}, {"name": "stdout", "text": text})]
    signature = hmac.new(connection.key.encode(), b"".join(parts), hashlib.sha256).hexdigest().encode()
    return [b"<IDS|MSG>", signature, *parts]


class Heard:
    """Lengths of what came on iopub."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.came = asyncio.Event()

    def __call__(self, _channel: Channel, got: Received) -> None:
        self.lengths.append(len(got.content))
        self.came.set()


async def test_what_waits_of_a_foreign_kernel_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody reads, as in a loop that is busy. The kernel's own queue holds one message, so it drops the rest."""
    monkeypatch.setattr(channels_module, "_WAITING", 64)
    context, length, heard = zmq.Context[Any](), 2**20, Heard()
    connection = Connection.make(tmp_path)
    with zmq.Context[Any]() as kernel_context, kernel_context.socket(zmq.XPUB) as kernel:
        kernel.sndhwm, kernel.linger = 1, 0
        kernel.bind(connection.address("iopub"))
        channels = Channels(context, connection, heard)
        assert kernel.poll(5000)
        assert kernel.recv() == b"\1"
        long, short = message(connection, "stream", "x" * length), message(connection, "stream", "")
        for _ in range(300):
            kernel.send_multipart(long)
            kernel.poll(2)  # nothing comes: time for the library's threads
        async with asyncio.timeout(20):
            while not heard.lengths or heard.lengths[-1] > length:
                heard.came.clear()
                kernel.send_multipart(short)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(heard.came.wait(), 0.05)
        waited = sum(each > length for each in heard.lengths)
        assert 64 <= waited < 120  # what the sockets of both ends hold is the rest
        channels.close()
    context.destroy(linger=0)
