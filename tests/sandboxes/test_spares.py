"""For whom spares are made."""

from __future__ import annotations

from interpreter.sandboxes.spares import Plan

IDLE_S = 10.0


def plan(limit: int, *, unseen: bool = True) -> Plan:
    made = Plan(limit=limit, idle_s=IDLE_S, unseen=unseen)
    made.begin(0.0)
    return made


def test_at_first_all_are_for_scopes_that_have_not_come() -> None:
    assert plan(2).missing([], 1.0) == [None, None]
    assert plan(2).missing([None], 1.0) == [None]
    assert plan(2).missing([None, None], 1.0) == []


def test_none_are_made_without_a_pool_or_where_nobody_new_can_come() -> None:
    assert plan(0).missing([], 1.0) == []
    assert plan(2, unseen=False).missing([], 1.0) == []


def test_the_scope_that_came_last_is_first_and_the_next_newcomer_follows() -> None:
    made = plan(3)
    made.used("u1", 1.0, unseen=True)
    assert made.missing([], 2.0) == ["u1", None, "u1"]
    made.used("u2", 2.0, unseen=False)
    assert made.missing([], 3.0) == ["u2", "u1", None]
    assert made.missing(["u1"], 3.0) == ["u2", None]


def test_one_that_is_there_for_somebody_else_counts() -> None:
    made = plan(1)
    made.used("u1", 1.0, unseen=False)
    assert made.missing(["u0"], 1.0) == []
    made = plan(2)
    made.used("u1", 1.0, unseen=False)
    assert made.missing(["u0"], 1.0) == ["u1"]


def test_one_for_nobody_who_came_lately_goes_for_another_but_not_at_once() -> None:
    """Many scopes in turns would end each other's spares, and get none."""
    made = plan(1)
    made.used("u1", 1.0, unseen=False)
    assert not made.misplaced(None, 1.9, since=1.0)
    assert made.misplaced(None, 2.0, since=1.0)
    assert not made.misplaced("u1", 2.0, since=1.0)
    made = plan(2)
    made.used("u1", 1.0, unseen=False)
    assert not made.misplaced(None, 2.0, since=1.0), "there is room for both"
    assert not plan(1, unseen=False).misplaced("u0", 9.0, since=0.0), "nobody came"


def test_a_scope_without_a_new_session_for_the_idle_time_has_none_any_more() -> None:
    made = plan(2)
    made.used("u1", 5.0, unseen=False)
    assert made.missing([], IDLE_S) == ["u1", "u1"]
    assert made.missing([], 5.0 + IDLE_S) == []


def test_a_purged_scope_has_none_until_it_comes_again() -> None:
    made = plan(2, unseen=False)
    made.used("u1", 1.0, unseen=False)
    made.forget("u1")
    made.forget("never came")
    assert made.missing([], 1.0) == []
    made.used("u1", 2.0, unseen=False)
    assert made.missing([], 2.0) == ["u1", "u1"]


def test_where_the_only_scope_is_purged_the_next_to_come_is_somebody_new() -> None:
    made = plan(1)
    made.used("u1", 1.0, unseen=True)
    made.forget("u1")
    assert made.missing([], 2.0) == [None]
    assert made.missing([], 1.0 + IDLE_S) == []
    made = plan(2)
    made.used("u1", 1.0, unseen=False)
    made.forget("u1")
    assert made.missing([], 2.0) == [None, None]


def test_no_more_scopes_are_remembered_than_can_have_one() -> None:
    made = plan(2)
    for number in range(1000):
        made.used(f"u{number}", 1.0, unseen=True)
    assert len(made._used) == 2
