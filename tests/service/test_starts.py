"""How sandboxes start beside each other."""

from __future__ import annotations

import asyncio
import os

from tests.service.conftest import House


async def test_as_many_start_at_once_as_there_are_cores_and_one_more_and_the_others_in_turns(house: House) -> None:
    """A start waits for the engine as much as for a core; without a limit they would take each other's time."""
    at_once = 1 + (os.cpu_count() or 1)
    house.backend.hold.clear()
    calls = [house.submit("a", session=f"s{number}") for number in range(at_once + 2)]
    async with asyncio.timeout(20):
        while len(house.backend.started) < at_once:  # noqa: ASYNC110 - a fake's list has no event
            await asyncio.sleep(0.001)
    assert len(house.backend.started) == at_once
    house.backend.hold.set()
    assert [(await house.service.settle(call)).stdout for call in calls] == ["a"] * len(calls)
