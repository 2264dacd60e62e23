"""Answers that nobody reads wait in memory, so there is a limit for all of them together."""

import asyncio
import contextlib
from functools import partial

from interpreter.http.server import ConnectionLimits
from tests.http.scripted import serving, until
from tests.http.test_connections import EXEC, HEAD

MIB = 2**20


async def test_who_reads_nothing_makes_room_and_who_reads_is_served():
    async with serving(connections=ConnectionLimits(max_unread_bytes=62 * MIB)) as served:
        served.service.output = "x" * 30 * MIB
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(EXEC) + EXEC
        held = []

        def unread_are(wanted: list[bool]) -> bool:
            return [stream.unread_bytes > 10 * MIB for stream in served.server._streams] == wanted

        for number in range(1, 9):
            held.append(await served.connect())
            held[-1][1].write(request)
            wanted = [True] * min(number, 3)  # two fit, and the newest
            await until(partial(unread_are, wanted))
        reader, writer = await served.connect()
        held.append((reader, writer))
        writer.write(request)
        count = 0
        while count < 30 * MIB:
            chunk = await asyncio.wait_for(reader.read(MIB), 20)
            assert chunk, "the answer was cut off"
            count += len(chunk)
        for _, one in held:
            one.close()
            with contextlib.suppress(ConnectionError):
                await one.wait_closed()
