"""The real boot process in each real backend: it dials the link, greets, and ends with its sandbox, or is adopted."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from sandboxd import protocol

from interpreter.backends.base import Backend, SandboxSpec
from interpreter.backends.bubblewrap.backend import BubblewrapBackend
from interpreter.backends.docker.backend import DockerBackend
from interpreter.backends.process.backend import ProcessBackend
from tests import engines
from tests.contracts.conftest import BUBBLEWRAP, PROBE_UID, PROCESS, House

DOCKER_IMAGE = pytest.param("docker", marks=engines.image_needed)
GVISOR_IMAGE = pytest.param("runsc", marks=[engines.image_needed, engines.gvisor_needed])


@contextlib.asynccontextmanager
async def greeting(house: House, spec: SandboxSpec) -> AsyncIterator[Callable[[], Awaitable[protocol.Hello]]]:
    """Listen for the sandbox; the link ends on leaving. Yields what waits for its hello."""
    greeted: asyncio.Future[protocol.Hello] = asyncio.get_running_loop().create_future()
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await protocol.read_frame(reader, limit=2**16)
        assert body is not None
        hello = protocol.decode_from_sandbox(body)
        assert isinstance(hello, protocol.Hello)
        greeted.set_result(hello)
        await gone.wait()
        writer.close()
        await writer.wait_closed()

    path = spec.link_dir / protocol.LINK_SOCKET
    server = await asyncio.start_unix_server(serve, path)
    os.chown(path, house.uid, house.uid)
    try:
        yield lambda: asyncio.wait_for(greeted, 30)
    finally:
        gone.set()
        server.close()
        await server.wait_closed()
        path.unlink(missing_ok=True)


def real(house: House) -> Backend:
    if house.kind == "bubblewrap":
        return BubblewrapBackend(root=house.root, lock=house.lock, idle_s=60, probe_uid=PROBE_UID)
    if house.kind == "docker":
        return DockerBackend(
            root=house.root,
            idle_s=60,
            probe_uid=PROBE_UID,
            image=engines.IMAGE,
            runtime=house.runtime,
            address=engines.ADDRESS,
        )
    return ProcessBackend(root=house.root)


@pytest.mark.parametrize("kind", [PROCESS, BUBBLEWRAP, DOCKER_IMAGE, GVISOR_IMAGE])
async def test_the_boot_process_dials_and_greets(house: House) -> None:
    backend = real(house)
    await backend.check()
    spec = house.spec()
    async with greeting(house, spec) as hello:
        sandbox = await backend.start(spec)
        greeted = await hello()
        assert "python" in greeted.kernels
        assert {"python", "node", "bash"} <= set(greeted.stateless)
        assert (sandbox.stats().processes or 0) >= 2
        await sandbox.stop()
    await backend.aclose()
    assert (await sandbox.wait()).status == 137


@pytest.mark.parametrize("kind", [BUBBLEWRAP, DOCKER_IMAGE, GVISOR_IMAGE])
async def test_an_adopted_boot_process_dials_again_and_again(house: House) -> None:
    backend = real(house)
    await backend.check()
    spec = house.spec()
    async with greeting(house, spec) as hello:
        await backend.start(spec)
        assert (await hello()).known == []
    for _ in range(3):
        await backend.aclose()
        backend = real(house)
        await backend.check()
        (sandbox,) = await backend.adoptable()
        async with greeting(house, spec) as hello:
            assert (await hello()).alive == []
    await sandbox.stop()
    await backend.aclose()


@pytest.mark.parametrize("kind", [PROCESS])
async def test_a_link_that_ends_ends_a_sandbox_that_nobody_could_adopt(house: House) -> None:
    backend = real(house)
    await backend.check()
    spec = house.spec()
    async with greeting(house, spec) as hello:
        sandbox = await backend.start(spec)
        await hello()
    await asyncio.wait_for(sandbox.wait(), 20)
    await backend.aclose()
