"""An engine that ends, fills up or is meddled with while sandboxes run: honest ends, and a working next start."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import docker
import pytest

from interpreter.backends.base import BackendError, BackendUnavailable, Sandbox
from interpreter.backends.docker.backend import DockerBackend
from interpreter.backends.docker.engine import Client
from interpreter.backends.docker.spec import INSTANCE
from tests.backends.docker import tiny
from tests.backends.docker.conftest import PrivateEngine
from tests.contracts.conftest import PROBE_UID, House, until


class PrivateHouse(House):
    """A house whose sandboxes are containers of the test's own engine."""

    def __init__(self, engine: PrivateEngine, root: Path) -> None:
        self.engine = engine
        super().__init__("docker", root)

    def make(self, idle_s: float = 60.0) -> DockerBackend:
        return DockerBackend(
            root=self.root,
            idle_s=idle_s,
            probe_uid=PROBE_UID,
            image=tiny.make(self.engine.address),
            address=self.engine.address,
            boot=self._boot("/usr/bin/python3"),
        )

    def containers(self) -> list[dict[str, Any]]:
        assert isinstance(self.backend, DockerBackend)
        client = Client(self.engine.address)
        try:
            return client.containers(f"{INSTANCE}={self.backend.instance}")
        finally:
            client.close()


@pytest.fixture
async def mine(private: PrivateEngine) -> AsyncIterator[PrivateHouse]:
    root = Path(tempfile.mkdtemp(prefix="cellbox-test-"))
    made = PrivateHouse(private, root)
    try:
        await made.backend.check()
        await made.backend.remove_leftovers()
        yield made
        await until(lambda: not made.containers())
        made.nothing_left()
    finally:
        await made.backend.aclose()
        made.let_go()
        shutil.rmtree(root)


def _numbers(pid: int) -> str:
    """The line that tells the process's number on the host and, last, in the container."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(line for line in status.splitlines(keepends=True) if line.startswith("NSpid:"))


async def starts_again(house: House) -> None:
    """A start works, at the latest a moment after the engine is back."""
    await house.backend.check()
    sandbox = await house.start("idle")
    await sandbox.stop()


async def ended(sandbox: Sandbox) -> int | None:
    return (await asyncio.wait_for(sandbox.wait(), 20)).status


async def test_a_killed_engine_is_said_and_its_sandboxes_go_on(mine: PrivateHouse) -> None:
    """They are ended without it, too; what is left of them in the engine goes when it is back."""
    one, two = await mine.start("idle"), await mine.start("daemons")
    mine.engine.end(signal.SIGKILL)
    with pytest.raises(BackendUnavailable, match="does not answer"):
        await mine.backend.check()
    with pytest.raises(BackendUnavailable, match="does not answer"):
        await mine.backend.start(mine.spec())
    for sandbox in (one, two):
        assert (sandbox.stats().processes or 0) >= 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.wait(), 0.1)
    await one.stop()
    assert await ended(one) == 128 + signal.SIGKILL
    mine.engine.start()  # it ends what ran under the one before
    assert await ended(two) is None or await ended(two) == 128 + signal.SIGKILL
    await until(lambda: not mine.containers())
    await starts_again(mine)


async def test_an_engine_that_hangs_keeps_no_process_alive_and_removes_the_rest_once_it_goes_on(
    mine: PrivateHouse,
) -> None:
    one, two = await mine.start("daemons"), await mine.start("deaf")
    assert mine.engine.process is not None
    mine.engine.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.wait_for(asyncio.gather(one.stop(), two.stop()), 20)
        assert mine.processes() == set()
        assert await ended(one) == await ended(two) == 128 + signal.SIGKILL
    finally:
        mine.engine.process.send_signal(signal.SIGCONT)
    await until(lambda: not mine.containers(), within_s=30)
    await starts_again(mine)


async def test_an_engine_that_is_restarted_ends_its_sandboxes_and_serves_again(mine: PrivateHouse) -> None:
    sandbox = await mine.start("deaf")
    mine.engine.end(signal.SIGTERM)
    assert await ended(sandbox) in (None, 128 + signal.SIGKILL)
    mine.engine.start()
    await starts_again(mine)


async def test_a_full_disk_of_the_engine_is_said_and_recovered_from(mine: PrivateHouse) -> None:
    running = await mine.start("idle")
    full = mine.engine.data / "full"
    with full.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(2**20)):
                pass
        except OSError:
            pass
        try:
            while file.write(bytes(512)):
                pass
        except OSError:
            pass
    with pytest.raises(BackendError, match="disk of the container engine is full"):
        await mine.backend.start(mine.spec())
    assert (running.stats().processes or 0) >= 1
    full.unlink()
    await starts_again(mine)
    await running.stop()


async def test_a_container_removed_behind_our_back_has_ended(mine: PrivateHouse) -> None:
    sandbox = await mine.start("daemons")
    api = docker.APIClient(mine.engine.address, version="auto")
    try:
        api.remove_container(mine.containers()[0]["Id"], force=True)
    finally:
        api.close()
    assert await ended(sandbox) in (None, 128 + signal.SIGKILL)
    await sandbox.stop()
    await starts_again(mine)


async def test_an_image_that_is_removed_is_said(mine: PrivateHouse) -> None:
    api = docker.APIClient(mine.engine.address, version="auto")
    try:
        api.remove_image(tiny.IMAGE, force=True)
    finally:
        api.close()
    with pytest.raises(BackendUnavailable, match="cellbox image build"):
        await mine.backend.start(mine.spec())
    with pytest.raises(BackendUnavailable, match="cellbox image build"):
        await mine.backend.check()
    tiny.make(mine.engine.address)
    await starts_again(mine)


async def test_two_services_on_one_engine_leave_each_other_alone(mine: PrivateHouse) -> None:
    other = PrivateHouse(mine.engine, Path(tempfile.mkdtemp(prefix="cellbox-test-")))
    try:
        await other.backend.check()
        ours, theirs = await mine.start("idle"), await other.start("idle")
        assert {each["Id"] for each in mine.containers()} & {each["Id"] for each in other.containers()} == set()
        assert [sandbox.id for sandbox in await other.backend.adoptable()] == [theirs.id]
        assert await other.backend.remove_leftovers() == 1
        assert (ours.stats().processes or 0) >= 1
        await ours.stop()
        await until(lambda: not other.containers())
    finally:
        await other.backend.aclose()
        other.let_go()
        shutil.rmtree(other.root)


async def test_a_sandbox_that_is_killed_from_inside_has_ended_and_the_next_one_starts(mine: PrivateHouse) -> None:
    """pid 1 cannot be killed by what is in its namespace; whoever is the host can."""
    sandbox = await mine.start("daemons")
    (first,) = (pid for pid in mine.processes() if "\t1\n" in _numbers(pid))
    os.kill(first, signal.SIGKILL)
    assert await ended(sandbox) == 128 + signal.SIGKILL
    await starts_again(mine)
