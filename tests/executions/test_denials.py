"""What an execution was refused on its way out."""

from __future__ import annotations

from interpreter.executions.denials import MOST, Denials


def test_the_same_is_counted_and_others_follow_in_their_order():
    denials = Denials()
    for host in ("b.example", "a.example", "b.example"):
        denials.add(host, 443, "not_allowed")
    denials.add("b.example", 22, "port")
    assert denials.listed() == [
        {"host": "b.example", "port": 443, "reason": "not_allowed", "count": 2},
        {"host": "a.example", "port": 443, "reason": "not_allowed", "count": 1},
        {"host": "b.example", "port": 22, "reason": "port", "count": 1},
    ]


def test_however_many_hosts_are_tried_the_list_is_short_and_the_sum_right():
    denials = Denials()
    for number in range(10_000):
        denials.add(f"h{number}.example", 443, "not_allowed")
    listed = denials.listed()
    assert len(listed) == MOST + 1
    assert listed[-1] == {"host": "", "port": 0, "reason": "further", "count": 10_000 - MOST}
