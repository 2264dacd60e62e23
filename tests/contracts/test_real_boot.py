"""The real boot process in each real backend: it dials the link, greets, and ends with its sandbox."""

from __future__ import annotations

import asyncio
import os

import pytest
from sandboxd import protocol

from interpreter.backends.bubblewrap.backend import BubblewrapBackend
from interpreter.backends.process.backend import ProcessBackend
from tests.contracts.conftest import BUBBLEWRAP, PROBE_UID, PROCESS, House


@pytest.mark.parametrize("kind", [PROCESS, BUBBLEWRAP])
async def test_the_boot_process_dials_and_greets(house: House) -> None:
    backend = (
        BubblewrapBackend(root=house.root, lock=house.lock, idle_s=60, probe_uid=PROBE_UID)
        if house.kind == "bubblewrap"
        else ProcessBackend(root=house.root)
    )
    await backend.check()
    spec = house.spec()
    greeted: asyncio.Future[protocol.Hello] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await protocol.read_frame(reader, limit=2**16)
        assert body is not None
        hello = protocol.decode_from_sandbox(body)
        assert isinstance(hello, protocol.Hello)
        greeted.set_result(hello)
        await reader.read()
        writer.close()
        await writer.wait_closed()

    path = spec.link_dir / protocol.LINK_SOCKET
    server = await asyncio.start_unix_server(serve, path)
    os.chown(path, house.uid, house.uid)
    sandbox = await backend.start(spec)
    try:
        hello = await asyncio.wait_for(greeted, 30)
        assert "python" in hello.kernels
        assert {"python", "node", "bash"} <= set(hello.stateless)
        assert (sandbox.stats().processes or 0) >= 2
    finally:
        await sandbox.stop()
        server.close()
        await server.wait_closed()
        await backend.aclose()
    assert (await sandbox.wait()).status == 137
