"""Texts from a sandbox that want to stand inside our JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interpreter.executions.jsontext import MAX_DEPTH, checked


def nested(depth: int, *, open_: str = "[", inner: str = "", close: str = "]") -> str:
    return open_ * depth + inner + close * depth


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "-Infinity",
        "1 2",
        "01",
        "[1,]",
        '{"a": 1}, "injected": {',
        '{"a": 1}}',
        '"\\ud800"',
        '"\\x"',
        '"\n"',
        "\x00",
        "\ufeff1",
        "[" * 1_000_000,
        nested(MAX_DEPTH + 1),
        nested(MAX_DEPTH + 1, open_='{"a":', inner="1", close="}"),
        nested(51, open_='[{"a":', inner="1", close="}]"),
        nested(MAX_DEPTH + 1, open_='["\\\\",', inner="1"),
        json.dumps([nested(300)])[:-1] + "," + nested(MAX_DEPTH) + "]",
    ],
)
def test_no_json_or_too_deep(text: str) -> None:
    assert checked(text) is None


@pytest.mark.parametrize(
    "text",
    [
        nested(MAX_DEPTH),
        nested(50, open_='[{"a":', inner="1", close="}]"),
        json.dumps(["[[[["] * 100),
        json.dumps(['"[\\', "\\\\[", "]\\"] * 200),
        json.dumps([[]] * 1000),
        '"\\"[' + "[" * 200 + '"',
        json.dumps(["x" * 300_000, "[" * 300_000, [[1]] * 200]),
        "1e308",
        str(10**40),
    ],
)
def test_sound_json_stays_as_it_is(text: str) -> None:
    found = checked(text)
    assert found is not None
    assert bytes(found) == text.encode()


_json = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}"\\\\a,:', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[]{}"\\\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=30,
)


def depth(value: object) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(depth, children), default=0)


@settings(max_examples=200, deadline=None)
@given(_json, st.integers(90, 102))
def test_the_depth_is_the_depth_whatever_the_strings_hold(value: object, around: int) -> None:
    text = nested(around, inner=json.dumps([value] * 120))
    assert (checked(text) is not None) == (around + 1 + depth(value) <= MAX_DEPTH)


@pytest.mark.parametrize(
    "text",
    [
        "[" + "[]," * 5_000_000 + "1]",
        '["' + "[{" * 8_000_000 + '"]',
        '["' + '\\"' * 8_000_000 + "[]" * 200 + '"]',
        "[" + nested(98).join([","] * 80_000)[1:-1] + "]",
        "[" + '"[",' * 4_000_000 + "1]",
    ],
    ids=["brackets", "in a string", "escapes", "chains", "strings"],
)
def test_sixteen_megabytes_of_anything_are_judged_within_seconds(text: str) -> None:
    checked(text)
