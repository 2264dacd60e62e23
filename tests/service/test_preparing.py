"""What comes before a run: files and requirements, over a scripted sandboxd."""

from __future__ import annotations

import pytest
from sandboxd.protocol import Finished, Outcome

from interpreter.errors import ServiceError
from interpreter.executions import requirements
from interpreter.executions.model import ExecRequest
from interpreter.executions.run import Run
from interpreter.files.errors import FileExists
from interpreter.link.errors import LinkNotSent
from tests.fakes.sandboxd import until_cancelled
from tests.service.conftest import House

FILES = {"requirements.txt": b"x\n", "d/f": b"content"}


def pip_of(house: House) -> str:
    """What pip is run by."""
    return requirements.installing(ExecRequest("u1", "python", "a", 1.0), network=False).code


def workspace(house: House) -> dict[str, str]:
    root = house.root / "u1/sessions/chat"
    return {str(file.relative_to(root)): file.read_text() for file in root.rglob("*") if file.is_file()}


async def test_files_are_written_then_requirements_installed_then_the_code_runs(house: House) -> None:
    answer = await house.exec("a", files=FILES)
    assert (answer.status, answer.state) == ("ok", "new")
    assert house.sandboxd.began == [pip_of(house), "a"]
    assert workspace(house) == {"requirements.txt": "x\n", "d/f": "content"}
    assert house.sandboxd.peers[0].unsettled.keys() <= {house.sandboxd.peers[0].ids[-1]}


async def test_what_cannot_be_written_never_runs_and_its_id_is_free(house: House) -> None:
    await house.exec("a", files={"f": b""})
    with pytest.raises(FileExists, match="'f/in'"):
        await house.exec("b", files={"new/f": b"", "f/in": b""}, execution_id="e")
    assert house.sandboxd.began == ["a"]
    assert workspace(house) == {"f": ""}
    assert (await house.exec("b", execution_id="e")).stdout == "b"


async def test_a_cancel_while_requirements_are_installed_ends_pip_and_the_code_never_runs(house: House) -> None:
    house.sandboxd.script[pip_of(house)] = until_cancelled
    execution = house.submit("a", files=FILES)
    await house.sandboxd.wait_for(pip_of(house))
    house.service.cancel(execution)
    answer = await house.service.settle(execution)
    assert (answer.status, answer.exit_code, answer.state) == ("cancelled", 130, None)
    assert house.sandboxd.began == [pip_of(house)]
    assert (await house.exec("b")).state == "new"


async def test_a_sandbox_that_read_nothing_of_pip_is_replaced_and_pip_runs_in_the_next(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished, lost = Run.finished, [LinkNotSent("gone")]

    async def once_lost(run: Run) -> object:
        if lost:
            raise lost.pop()
        return await finished(run)

    monkeypatch.setattr(Run, "finished", once_lost)
    execution = house.submit("a", files=FILES)
    assert (await house.service.settle(execution)).status == "ok"
    assert house.sandboxd.began == [pip_of(house), "a"]
    assert [event.type for event in execution.events.after()].count("started") == 1


async def test_a_process_of_pip_that_cannot_be_ended_costs_the_sandbox(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = Run.finished

    async def unsafe(run: Run) -> object:
        end = await finished(run)
        assert isinstance(end, Finished)
        monkeypatch.setattr(Run, "finished", finished)
        return Finished(end.id, Outcome("timeout", 137, 1), sandbox_unsafe=True)

    monkeypatch.setattr(Run, "finished", unsafe)
    answer = await house.exec("a", files=FILES)
    assert answer.error is not None
    assert (answer.status, answer.error.name) == ("timeout", "RequirementsNotInstalled")
    assert (await house.exec("b")).stdout == "b"
    assert len(house.backend.started) == 2


async def test_the_next_service_writes_the_files_of_what_waited(make_house, house: House) -> None:
    house.sandboxd.redials = True
    house.sandboxd.script["wait"] = until_cancelled
    house.submit("wait")
    await house.sandboxd.wait_for("wait")
    waiting = house.submit("b", files={"f": b"1"}, execution_id="e")
    await house.service.release()
    with pytest.raises(ServiceError):
        await house.service.settle(waiting)
    after = await make_house(after=house)
    (running,) = [each for each in after.service._store.active() if each.id != "e"]
    after.service.cancel(running)
    answer = await after.service.settle(after.service.execution("e", "u1"))
    assert (answer.status, answer.stdout) == ("ok", "b")
    assert workspace(after) == {"f": "1"}
