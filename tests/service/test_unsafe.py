"""A sandbox in which something of a kernel could not be ended is stopped from outside."""

from __future__ import annotations

import pytest
from sandboxd.protocol import KernelGone

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
