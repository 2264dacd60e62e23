"""What was deleted goes, also where somebody fills it for a while; and nobody else waits for that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from interpreter.files import disposing
from interpreter.files.disposing import Disposals
from interpreter.files.errors import NoSuchFile
from interpreter.keys import Key
from tests.http.scripted import until


@dataclass
class Refilled:
    """A directory of which something is left as long as its holder is in ``filled``."""

    filled: set[bytes] = field(default_factory=set)
    rounds: list[bytes] = field(default_factory=list)
    goes_on: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def dispose(self, holder: bytes, *, within_s: float) -> bool:
        assert within_s == disposing.ROUND_S
        self.goes_on.wait(20)
        self.rounds.append(holder)
        if self.error is not None:
            raise self.error
        return holder not in self.filled

    def close(self) -> None:
        pass


@pytest.fixture
def tree() -> Refilled:
    made = Refilled()
    made.goes_on.set()
    return made


@pytest.fixture
async def disposals(tree: Refilled, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disposals]:
    monkeypatch.setattr(disposing, "FIRST_PAUSE_S", 0.01)
    made = Disposals(lambda _key: tree)  # type: ignore[arg-type,return-value]  # it has what is asked of a Tree here
    yield made
    tree.goes_on.set()
    await made.aclose()


async def test_what_is_refilled_has_its_turn_again_after_others_until_it_is_empty(
    tree: Refilled, disposals: Disposals
) -> None:
    tree.filled.add(b"filled")
    await disposals.add("u1", b"filled")
    await disposals.add("u2", b"other")
    await until(lambda: tree.rounds.count(b"filled") > 2)
    assert tree.rounds[:2] == [b"filled", b"other"]
    tree.filled.clear()
    rounds = len(tree.rounds)
    await until(lambda: len(tree.rounds) > rounds and disposals.left == 0)
    assert tree.rounds.count(b"other") == 1


async def test_pauses_grow(tree: Refilled, disposals: Disposals, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    loop = asyncio.get_running_loop()
    call_later: Callable[..., asyncio.TimerHandle] = loop.call_later

    def noted(pause_s: float, callback: Callable[..., object], *rest: object) -> asyncio.TimerHandle:
        if callback.__module__ != disposing.__name__:
            return call_later(pause_s, callback, *rest)
        pauses.append(pause_s)
        return call_later(0, callback, *rest)

    tree.filled.add(b"filled")
    monkeypatch.setattr(loop, "call_later", noted)
    await disposals.add("u1", b"filled")
    await until(lambda: len(tree.rounds) > 20)
    assert pauses[:3] == [0.01, 0.02, 0.04]
    assert max(pauses) == disposing.LAST_PAUSE_S


async def test_what_cannot_be_removed_is_said_and_tried_again(
    tree: Refilled, disposals: Disposals, caplog: pytest.LogCaptureFixture
) -> None:
    tree.error = OSError(5, "the disk is broken")
    await disposals.add("u1", b"x")
    await until(lambda: bool(tree.rounds))
    tree.error = None
    await until(lambda: len(tree.rounds) > 1 and disposals.left == 0)
    assert "could not be removed" in caplog.text


async def test_of_many_the_next_waits_for_a_round_of_his(
    tree: Refilled, disposals: Disposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disposing, "MAX_WAITING", 2)
    tree.goes_on.clear()
    for name in (b"1", b"2"):
        await disposals.add("u1", name)
    third = asyncio.create_task(disposals.add("u1", b"3"))  # noqa: TID251 - awaited below
    await asyncio.sleep(0)
    assert not third.done()
    tree.goes_on.set()
    await third
    assert tree.rounds == [b"1", b"2", b"3"]


async def test_what_is_more_than_may_be_left_goes_with_the_next_start(
    tree: Refilled, disposals: Disposals, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disposing, "MAX_LEFT", 1)
    monkeypatch.setattr(disposing, "FIRST_PAUSE_S", 3600)
    tree.filled |= {b"1", b"2"}
    for name in (b"1", b"2"):
        await disposals.add("u1", name)
    await until(lambda: "left for the next start" in caplog.text)
    assert disposals.left == 1


async def test_what_was_purged_meanwhile_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_key: Key) -> Refilled:
        raise NoSuchFile("There is no such scope.")

    disposals = Disposals(gone)  # type: ignore[arg-type]  # it has what is asked of a Tree here
    await disposals.add("u1", b"x")
    await disposals.aclose()
    assert disposals.left == 0
