"""A sandbox in which something of a kernel could not be ended is stopped from outside."""

from __future__ import annotations

import asyncio

import pytest
from sandboxd.protocol import KernelGone

from interpreter.backends.fake import FakeSandbox
from tests.service.conftest import House


@pytest.mark.parametrize("restart", [True, False])
async def test_a_kernel_that_stopped_in_part_costs_its_sandbox(house: House, restart: bool) -> None:
    await house.exec("a")
    (sandbox,) = house.backend.running.values()
    house.sandboxd.stops_in_part = True
    act = house.service.restart_kernel if restart else house.service.delete_kernel
    await act("u1", "chat", "python", "default")
    await sandbox.wait()
    assert (await house.exec("b")).stdout == "b"
    assert len(house.sandboxd.peers) == 2


async def test_a_kernel_that_went_in_part_costs_its_sandbox(house: House) -> None:
    await house.exec("a")
    (sandbox,) = house.backend.running.values()
    house.sandboxd.peers[0].send(KernelGone("python", "default", "exit", sandbox_unsafe=True))
    await sandbox.wait()
    answer = await house.exec("b")
    assert (answer.stdout, answer.state, answer.reason) == ("b", "lost", "exit")
    assert len(house.sandboxd.peers) == 2


async def test_the_way_out_of_a_sandbox_is_closed_before_it_is_stopped(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: an engine may be stuck with it."""
    done: list[str] = []
    stopped = asyncio.Event()
    stop = FakeSandbox.stop

    async def stopping(self: FakeSandbox) -> None:
        done.append("stop")
        await stop(self)
        stopped.set()

    monkeypatch.setattr(house.service._ways, "close", lambda _sandbox: done.append("close"))
    monkeypatch.setattr(FakeSandbox, "stop", stopping)
    await house.exec("a")
    house.sandboxd.peers[0].send(KernelGone("python", "default", "exit", sandbox_unsafe=True))
    await asyncio.wait_for(stopped.wait(), 5)
    assert done[:2] == ["close", "stop"]
