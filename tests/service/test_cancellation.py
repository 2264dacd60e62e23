"""Whatever is cancelled or stopped at whichever moment: others are served, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from interpreter.executions.model import Answer
from interpreter.sandboxes.manager import Manager
from tests.fakes.sandboxd import until_cancelled
from tests.service.conftest import House

MakeHouse = Callable[..., Awaitable[House]]
MOMENTS = [*range(12), *range(12, 60, 4)]
"""Steps of the loop after which something is cancelled. A start and an execution take some forty."""


async def steps(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def works(house: House) -> Answer:
    async with asyncio.timeout(20):
        answer = await house.exec("after")
    assert (answer.status, answer.stdout) == ("ok", "after")
    assert len(house.backend.running) == 1
    return answer


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_caller_that_goes_away_while_it_waits_changes_nothing(house: House, moment: int) -> None:
    execution = house.submit("a")
    leaving = asyncio.get_running_loop().create_task(house.service.settle(execution))
    await steps(moment)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert (await house.service.settle(execution)).stdout == "a"
    assert (await works(house)).state == "kept"


@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_execution_is_cancelled(house: House, moment: int) -> None:
    house.sandboxd.script["wait"] = until_cancelled
    other = house.submit("other", context="other")
    execution = house.submit("wait")
    await steps(moment)
    house.service.cancel(execution)
    answer = await house.service.settle(execution)
    assert answer.exit_code == 130
    assert answer.status == ("interrupted" if "wait" in house.sandboxd.began else "cancelled")
    assert (await house.service.settle(other)).status == "ok"
    await works(house)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_sandbox_is_deleted_by_force(house: House, moment: int) -> None:
    execution = house.submit("a")
    await steps(moment)
    await house.service.remove_session("u1", "chat", force=True, purge=moment % 2 == 0)
    assert (await house.service.settle(execution)).status in ("ok", "cancelled")
    assert not house.backend.running
    await works(house)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_delete_whose_caller_goes_away_is_done_all_the_same(house: House, moment: int) -> None:
    await house.exec("a")
    (house.root / "u1/sessions/chat/file").write_text("x")
    deleting = asyncio.get_running_loop().create_task(house.service.remove_session("u1", "chat", purge=True))
    await steps(moment + 1)
    deleting.cancel()
    await asyncio.wait([deleting])
    assert (await works(house)).generation == 1
    assert not (house.root / "u1/sessions/chat/file").exists()


@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_service_is_closed(house: House, moment: int) -> None:
    house.sandboxd.script["wait"] = until_cancelled
    executions = [house.submit("wait"), house.submit("a", session="other"), house.submit("b", stateful=False)]
    await steps(moment)
    async with asyncio.timeout(20):
        await house.service.aclose()
    assert all(execution.phase == "finished" for execution in executions)
    assert not house.backend.running


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_sandbox_dies(house: House, moment: int) -> None:
    house.sandboxd.script["wait"] = until_cancelled
    execution = house.submit("wait")
    await steps(moment)
    manager = house.service._manager
    lives = [live for live in manager._lives.values() if live.row.id in house.backend.running]
    for sandbox in list(house.backend.running.values()):
        sandbox.die(1)
    house.service.cancel(execution)
    async with asyncio.timeout(20):
        await asyncio.wait([asyncio.get_running_loop().create_task(house.service.settle(execution))])
    assert execution.phase == "finished"
    await manager.gone(lives)  # An execution sent to one whose end nobody has heard of yet dies with it, rightly.
    await works(house)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_kernel_is_restarted(house: House, moment: int) -> None:
    house.sandboxd.script["wait"] = until_cancelled
    await house.exec("a")
    running, waiting = house.submit("wait"), house.submit("never")
    await steps(moment)
    assert await house.service.restart_kernel("u1", "chat", "python", "default") == {"restarted": True}
    answers = [await house.service.settle(execution) for execution in (running, waiting)]
    assert [answer.status for answer in answers] == ["cancelled", "cancelled"]
    after = await works(house)
    assert (after.state, "never" in house.sandboxd.began) == ("new", False)


async def test_a_stop_is_decided_once(house: House) -> None:
    await house.exec("a")
    manager: Manager = house.service._manager
    (live,) = manager._lives.values()
    manager.stop(live, "idle")
    manager.stop(live, "killed")
    await manager.gone([live, live])
    assert live.reason == "idle"
