"""What the service counts, where it is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from interpreter.backends.base import BackendError
from interpreter.errors import SandboxStartFailed
from tests.fakes.sandboxd import until_cancelled
from tests.scraped import samples
from tests.service.conftest import House


def told(house: House) -> dict[tuple[str, ...], float]:
    return samples(house.service.metrics.text())


async def test_a_start_that_fails_is_counted_by_its_code_and_what_waited_for_it_as_refused(house: House) -> None:
    house.backend.refuse = BackendError("no")
    with pytest.raises(SandboxStartFailed):
        await house.exec("a")
    found = told(house)
    assert found["cellbox_sandbox_start_failures_total", "sandbox_start_failed"] == 1
    assert found["cellbox_executions_total", "python", "true", "refused"] == 1
    assert found["cellbox_sandbox_start_seconds_count", "session"] == 0
    house.backend.refuse = None
    await house.exec("a")
    found = told(house)
    assert found["cellbox_sandbox_start_seconds_count", "session"] == 1
    assert found["cellbox_sandboxes", "idle"] == found["cellbox_kernels", "python"] == 1


async def test_what_waits_and_what_runs_is_told_and_only_what_ran_has_times(house: House) -> None:
    house.sandboxd.script["held"] = until_cancelled
    first = house.submit("held")
    await house.sandboxd.wait_for("held")
    second = house.submit("held")
    found = told(house)
    assert [found["cellbox_executions_active", state] for state in ("queued", "running")] == [1, 1]
    assert found["cellbox_sandboxes", "busy"] == 1
    for execution in (second, first):
        house.service.cancel(execution)
        await house.service.settle(execution)
    found = told(house)
    assert [found["cellbox_executions_active", state] for state in ("queued", "running")] == [0, 0]
    assert found["cellbox_executions_total", "python", "true", "interrupted"] == 1
    assert found["cellbox_executions_total", "python", "true", "cancelled"] == 1
    assert (
        found["cellbox_execution_run_seconds_count", "python"] == found["cellbox_execution_queue_seconds_count",] == 1
    )


async def test_an_execution_that_outlives_its_service_is_counted_once_by_the_one_that_sees_its_end(
    make_house: Callable[..., Awaitable[House]],
) -> None:
    first = await make_house()
    first.sandboxd.redials = True
    first.sandboxd.script["held"] = until_cancelled
    first.submit("held", execution_id="held")
    await first.sandboxd.wait_for("held")
    await first.service.release()
    assert not [name for name in told(first) if name[0] == "cellbox_executions_total"]
    second = await make_house(first)
    execution = second.service.execution("held", "u1")
    async with asyncio.timeout(20):
        while not told(second)["cellbox_sandbox_start_seconds_count", "adopted"]:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    second.service.cancel(execution)
    await second.service.settle(execution)
    assert told(second)["cellbox_executions_total", "python", "true", "interrupted"] == 1
