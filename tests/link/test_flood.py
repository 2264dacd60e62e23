"""C5: a sandbox that sends without end costs neither memory nor the loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from sandboxd.protocol import (
    Execute,
    Finished,
    FromSandbox,
    KernelGone,
    Outcome,
    OutputLimits,
    Progress,
    Result,
    encode,
)

from interpreter.link.connection import Connection, LinkLimits
from tests.attempts import in_time

FLOODS: dict[str, FromSandbox] = {
    "output so far": Progress(id="a", stream="stdout", text="x" * 2**20),
    "short output": Progress(id="a", stream="stderr", text="x"),
    "kernels that end": KernelGone(language="python", context="c", reason="exit"),
    "answers for nobody": Finished(
        id="foreign",
        outcome=Outcome(
            status="ok",
            exit_code=0,
            run_ms=1,
            stdout="x" * 2**20,
            results=[Result("display", {f"{n}": "x" for n in range(20)})] * 2000,
        ),
    ),
}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _flood(message: FromSandbox, seconds: float) -> tuple[float, int]:
    """The longest the loop was held up, in seconds of the processor's work for it, and the growth in bytes.

    By the clock it would be held up by whatever else the host does.
    """
    ours, theirs = socket.socketpair()
    connection = await Connection.open(ours, limits=LinkLimits.of(output_bytes=2**20, result_bytes=16 * 2**20))
    limits = OutputLimits(text=2**20, results=16 * 2**20, spill=0)
    await connection.execute(Execute(id="a", language="python", code="x", timeout_s=1, grace_s=1, limits=limits))
    frame = encode(message)

    def write() -> None:
        with contextlib.suppress(OSError):
            while True:
                theirs.sendall(frame)

    writer = threading.Thread(target=write)
    loop = asyncio.get_running_loop()
    running = loop.create_task(connection.run())
    before, worst, most, began = resident(), 0.0, 0, loop.time()
    writer.start()
    while loop.time() - began < seconds:
        at = time.thread_time()
        await asyncio.sleep(0.01)
        worst = max(worst, time.thread_time() - at - 0.01)
        most = max(most, resident() - before)
    await connection.wait_closed()
    running.cancel()
    await asyncio.wait([running])
    theirs.close()
    await asyncio.to_thread(writer.join)
    return worst, most


@pytest.mark.alone
@pytest.mark.parametrize("message", FLOODS.values(), ids=FLOODS.keys())
async def test_a_flood(message: FromSandbox) -> None:
    lag_s, grown = await _flood(message, 1.0)
    assert grown < 100 * 2**20
    in_time(lag_s, 0.2)


@pytest.mark.alone
@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("message", FLOODS.values(), ids=FLOODS.keys())
async def test_a_flood_of_a_minute(message: FromSandbox) -> None:
    lag_s, grown = await _flood(message, 60.0)
    assert grown < 100 * 2**20
    in_time(lag_s, 0.2)
