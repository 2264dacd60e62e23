"""Who may have a sandbox, and which may go: every race is a few plain calls."""

from __future__ import annotations

import pytest

from interpreter.backends.base import SandboxId
from interpreter.errors import SessionBusy, TooManySessions
from interpreter.keys import Key
from interpreter.sandboxes.table import Row, Table

A, B, C = Key("a", None), Key("b", "s"), Key("b", None)


def started(table: Table, key: Key, now: float = 0.0) -> Row:
    """A ready sandbox that nobody leases."""
    table.enter(key, now)
    row = table.begin(key, SandboxId(f"{key}"), now)
    table.ready(row, now)
    table.leave(key, now)
    return row


def test_a_leased_key_is_never_due_however_long() -> None:
    table = Table(limit=3, idle_s=10)
    row = started(table, A)
    table.enter(A, 5)
    table.enter(A, 6)
    table.leave(A, 7)
    assert table.due(1e9) == []
    table.leave(A, 1e9)
    assert table.due(1e9 + 9.9) == []
    assert table.due(1e9 + 10) == [row]


def test_longest_idle_is_due_first() -> None:
    table = Table(limit=3, idle_s=10)
    late, early = started(table, A, 5), started(table, B, 3)
    assert table.due(14) == [early]
    assert table.due(15) == [early, late]


def test_a_sandbox_that_starts_for_nobody_any_more_is_due_in_time() -> None:
    table = Table(limit=1, idle_s=10)
    table.enter(A, 0)
    row = table.begin(A, SandboxId("1"), 0)
    table.leave(A, 1)
    assert table.due(11) == [row]


def test_taken_by_the_reaper_means_fresh_for_whoever_comes() -> None:
    table = Table(limit=1, idle_s=10)
    old = started(table, A)
    assert table.take(old)
    assert not table.take(old)
    table.enter(A, 20)
    assert table.row(A) is None
    fresh = table.begin(A, SandboxId("2"), 20)
    table.gone(old)
    assert table.row(A) is fresh
    table.ready(old, 30)
    assert old.phase == "leaving"


@pytest.mark.parametrize("occupant", ["leased", "running", "leaving"])
def test_the_limit_counts_whatever_needs_room(occupant: str) -> None:
    table = Table(limit=1, idle_s=10)
    if occupant == "leased":
        table.enter(A, 0)
    else:
        row = started(table, A)
        if occupant == "leaving":
            table.take(row)
    with pytest.raises(TooManySessions) as raised:
        table.enter(B, 4)
    assert raised.value.retry_after_s == {"leased": 1.0, "running": 6.0, "leaving": 1.0}[occupant]
    table.enter(A, 4)


def test_a_leased_key_keeps_its_room_when_its_sandbox_dies() -> None:
    table = Table(limit=1, idle_s=10)
    table.enter(A, 0)
    row = table.begin(A, SandboxId("1"), 0)
    table.gone(row)
    with pytest.raises(TooManySessions):
        table.enter(B, 0)
    table.begin(A, SandboxId("2"), 0)


def test_a_refused_lease_leaves_nothing() -> None:
    table = Table(limit=0, idle_s=10)
    with pytest.raises(TooManySessions):
        table.enter(A, 0)
    assert table.keys("a") == []
    assert not table.leased(A)


def test_delete_is_refused_while_leased_unless_forced() -> None:
    table = Table(limit=3, idle_s=10)
    row = started(table, B)
    table.enter(C, 0)
    with pytest.raises(SessionBusy):
        table.removable(table.keys("b"), force=False)
    assert table.removable([B], force=False) == [row]
    assert table.removable(table.keys("b"), force=True) == [row]
    assert table.removable([A], force=False) == []
    assert table.keys("b") == [C, B]
    assert table.rows("b") == [row]


def test_a_sandbox_begins_once_and_for_somebody() -> None:
    table = Table(limit=3, idle_s=10)
    with pytest.raises(ValueError, match="once"):
        table.begin(A, SandboxId("1"), 0)
    table.enter(A, 0)
    table.begin(A, SandboxId("1"), 0)
    with pytest.raises(ValueError, match="once"):
        table.begin(A, SandboxId("2"), 0)
