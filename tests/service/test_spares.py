"""Sandboxes that are there before anybody asks: given away, kept within bounds, and never in anybody's way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from interpreter.backends.base import BackendError, SandboxId
from interpreter.errors import TooManySessions
from interpreter.keys import Key
from interpreter.sandboxes import reaper, spares
from interpreter.scopes.root import DataRoot
from interpreter.tasks import Tasks
from tests.service.conftest import House

MakeHouse = Callable[..., Awaitable[House]]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "PAUSE_S", 0.001)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what a table holds has no event
        await asyncio.sleep(0.001)


async def ready(house: House, number: int) -> None:
    """Wait until there are so many spares, all of which work."""
    table = house.service._table
    await until(lambda: [row.phase for row in table.spares()] == ["ready"] * number)


async def pooled(make_house: MakeHouse, pool: int = 1, **config: object) -> House:
    house = await make_house(pool=pool, **config)
    await ready(house, pool)
    return house


async def test_a_new_session_of_a_new_scope_gets_one_and_another_is_made(make_house: MakeHouse) -> None:
    house = await pooled(make_house)
    (spare,) = house.backend.started
    answer = await house.exec("a")
    assert (answer.stdout, answer.state, answer.generation) == ("a", "new", 1)
    (session,) = await house.service.sessions("u1")
    assert (session["session"], session["state"]) == ("chat", "idle")
    (live,) = house.service._manager._lives.values()
    assert live.row.id == spare.id
    await ready(house, 1)
    assert house.service._table.spares()[0].key.scope == "u1", "for the scope that came last"
    assert house.service.spares() == {"there": 1, "taken": 1, "missed": 0}


async def test_one_of_a_scope_is_for_its_next_new_session_and_for_no_other_scope(make_house: MakeHouse) -> None:
    house = await pooled(make_house)
    await house.exec("a")
    await ready(house, 1)
    await house.exec("b", scope="u2")
    assert house.service.spares()["missed"] == 1
    await house.exec("c", session="next")
    assert house.service.spares()["taken"] == 2
    lives = house.service._manager._lives.values()
    assert {live.row.key.session for live in lives if live.spare is not None} == {"chat", "next"}


async def test_a_session_that_has_a_directory_or_no_name_gets_none(make_house: MakeHouse) -> None:
    house = await pooled(make_house)
    await house.exec("a", session=None)
    await house.service.remove_scope("u1")
    (house.root / "u1" / "sessions" / "old").mkdir()
    await house.exec("a", session="old")
    assert house.service.spares() == {"there": 1, "taken": 0, "missed": 0}


async def test_where_the_directory_comes_in_that_moment_the_session_gets_another_sandbox(
    make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await pooled(make_house)
    give = DataRoot.give_spare

    def late(root: DataRoot, sandbox: SandboxId, key: Key, *, unseen: bool) -> None:
        root.prepare(key)
        give(root, sandbox, key, unseen=unseen)

    monkeypatch.setattr(DataRoot, "give_spare", late)
    assert (await house.exec("a")).stdout == "a"
    (live,) = house.service._manager._lives.values()
    assert live.spare is None
    await until(lambda: not house.service._manager._leaving)
    there = {row.id for row in house.service._table.spares()}
    assert {entry.name for entry in (house.root / ".spares").iterdir()} <= there


async def test_one_that_ends_while_it_is_given_away_leaves_no_record(
    make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next service would look for it, and find none."""
    house = await pooled(make_house)
    loop, give, given, goes_on = asyncio.get_running_loop(), DataRoot.give_spare, asyncio.Event(), threading.Event()

    def slow(root: DataRoot, sandbox: SandboxId, key: Key, *, unseen: bool) -> None:
        give(root, sandbox, key, unseen=unseen)
        loop.call_soon_threadsafe(given.set)
        assert goes_on.wait(20)

    monkeypatch.setattr(DataRoot, "give_spare", slow)
    execution = house.submit("a")
    await given.wait()
    (spare,) = house.service._manager._lives.values()
    house.backend.running[spare.row.id].die(137)
    await spare.over.wait()
    goes_on.set()
    assert (await house.service.settle(execution)).stdout == "a"
    (live,) = house.service._manager._lives.values()
    assert [record.id for record in house.service._data.records.sandboxes()] == [live.row.id]
    assert live is not spare


async def test_sessions_are_never_refused_for_spares(make_house: MakeHouse) -> None:
    house = await make_house(pool=2, max_sessions=2)
    await ready(house, 2)
    await house.exec("a", session=None)
    assert (len(house.backend.running), len(house.service._table.spares())) == (2, 1)
    await house.exec("a", scope="u2", session=None)
    assert (len(house.backend.running), len(house.service._table.spares())) == (2, 0)
    with pytest.raises(TooManySessions):
        await house.exec("a", scope="u3")


async def test_one_that_nobody_wants_goes_and_is_made_again_when_somebody_comes(make_house: MakeHouse) -> None:
    house = await pooled(make_house, idle_ttl_s=60)
    house.clock.ahead += 60
    assert reaper.reap(house.service._table, house.service._manager, house.clock()) == 1
    await until(lambda: not house.backend.running)
    assert house.service._table.spares() == []
    await house.exec("a")
    await ready(house, 1)


async def test_one_for_newcomers_becomes_one_for_the_only_scope_that_comes(make_house: MakeHouse) -> None:
    house = await pooled(make_house, idle_ttl_s=60)
    await house.exec("a", session=None)
    await house.exec("a", session="missed")
    await house.exec("a", scope="u2", session=None)
    assert house.service.spares()["there"] == 1
    house.clock.ahead += 6
    await house.exec("a", session="missed2")
    await until(lambda: [row.key.scope for row in house.service._table.spares()] == ["u1"])
    await ready(house, 1)
    await house.exec("a", session="third")
    assert house.service.spares()["taken"] == 1


async def test_one_is_made_once_a_lease_has_ended_without_a_sandbox(
    make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "LOOK_S", 0.005)
    house = await pooled(make_house, max_sessions=1)
    table, manager = house.service._table, house.service._manager
    table.enter(Key("u2", None), house.clock())
    for row in table.surplus():
        manager.stop(manager._spares[row.id], "idle")
    await until(lambda: not (manager._leaving or manager.changed.is_set()))
    assert table.spares() == []
    table.leave(Key("u2", None), house.clock())
    await ready(house, 1)


async def test_none_is_made_while_the_service_ends(make_house: MakeHouse) -> None:
    house = await pooled(make_house)
    (making,) = (task for task in asyncio.all_tasks() if task.get_name() == "spares")
    await house.service._manager.aclose()
    await asyncio.wait_for(making, 20)
    assert len(house.backend.started) == 1
    assert house.service._table.spares() == []


async def test_a_reset_or_purge_of_a_scope_ends_its_spares(make_house: MakeHouse) -> None:
    house = await pooled(make_house)
    await house.exec("a")
    await ready(house, 1)
    assert await house.service.remove_scope("u1", purge=True) == {"removed": 1, "purged": True}
    assert "u1" not in {row.key.scope for row in house.service._table.spares()}
    assert not (house.root / "u1").exists()
    assert (await house.exec("b")).stdout == "b"


async def test_one_that_dies_is_made_again(make_house: MakeHouse) -> None:
    house = await pooled(make_house)
    (first,) = house.backend.running.values()
    first.die(137)
    await until(lambda: first.id not in house.backend.running)
    await ready(house, 1)
    assert (await house.exec("a")).stdout == "a"


async def test_where_they_do_not_start_it_is_tried_less_and_less_and_sessions_are_served(
    make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "PAUSE_S", 0.02)
    house = await make_house()
    house.service._plan.limit = 1
    house.service._plan.begin(house.clock())
    house.backend.refuse = BackendError("no")
    tasks, service = Tasks(), house.service
    tasks.start(spares.run(service._plan, service._table, service._manager, house.clock), name="spares")
    house.service._manager.changed.set()
    await until(lambda: len(house.backend.started) == 3)
    began = house.clock()
    await until(lambda: len(house.backend.started) == 4)
    assert house.clock() - began >= 0.1
    house.backend.refuse = None
    assert (await house.exec("a")).stdout == "a"
    await tasks.aclose(within_s=20)


async def test_the_next_service_adopts_sessions_and_removes_spares(make_house: MakeHouse) -> None:
    """Killed, it could end none: they have no record, and no session is made of their directories."""
    house = await pooled(make_house, 2)
    house.sandboxd.redials = True
    await house.exec("a")
    await ready(house, 2)
    (session,) = (live.row.id for live in house.service._manager._lives.values())
    recorded = [record.id for record in house.service._data.records.sandboxes()]
    assert recorded == [session]
    await house.service.release()
    assert [*house.backend.running] == [session], "a service that stops ends its spares itself"
    after = await make_house(house)
    assert (await after.exec("b")).state == "kept"


async def test_warming_starts_what_the_first_execution_then_finds(make_house: MakeHouse) -> None:
    house = await make_house()
    house.service.warm("u1", "chat")
    house.service.warm("u1", "chat")
    await until(lambda: [row.phase for row in house.service._table.rows()] == ["ready"])
    assert await house.service.remove_session("u1", "chat") == {"removed": 1, "purged": False}, "nobody is busy there"
    house.service.warm("u1", "chat")
    await house.exec("a")
    assert len(house.backend.started) == 2


async def test_warming_is_silent_when_there_is_no_room_and_when_it_fails(make_house: MakeHouse) -> None:
    house = await make_house(max_sessions=1)
    house.backend.refuse = BackendError("no")
    house.service.warm("u1", "chat")
    await until(lambda: not house.service._table.rows() and not house.service._manager._leaving)
    house.backend.refuse = None
    await house.exec("a")
    house.service.warm("u2", "chat")
    assert len(house.service._table.rows()) == 1
    await house.service.drain()
    house.service.warm("u1", "late")
    assert len(house.service._table.rows()) == 1


async def test_a_warmed_new_session_gets_a_spare(make_house: MakeHouse) -> None:
    house = await pooled(make_house)
    house.service.warm("u1", "chat")
    await house.exec("a")
    assert house.service.spares()["taken"] == 1
