"""Bodies: what is refused though Python's parser takes it."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interpreter.errors import InvalidRequest
from interpreter.http.strict_json import MAX_DEPTH, MAX_VALUES, parse
from tests.attempts import in_time


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return ('{"a":' + opening * (depth - 1) + closing * (depth - 1) + "}").encode()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a": ["\\udfff x"]}', "lone surrogate"),
        (b'{"\\ud800": 1}', "lone surrogate"),
        (b'{"a": {"\\ud800": 1}}', "lone surrogate"),
        (b'{"a": 1, "a": 1}', "key 'a' twice"),
        (b'{"a": {"b": 1, "\\u0062": 2}}', "key 'b' twice"),
        (b'{"a": NaN}', "NaN, which is not JSON"),
        (b'{"a": -Infinity}', "-Infinity, which is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "more than 40 digits"),
        (b"[1]", "must be a JSON object"),
        (b'"a"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"{", "not JSON: line 1, column 2"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1,}', "not JSON"),
        (b'{"a": 01}', "not JSON"),
        (b'{"a": "\t"}', "not JSON"),
        (b'{"a": 1} x', "not JSON"),
        (b"scope=u1&code=1", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (nested(MAX_DEPTH + 1), "nested deeper"),
        (nested(900), "nested deeper"),
        (nested(200_000), "values"),
        (nested(50_000), "nested deeper"),
        (b'{"a":[' + b"[]," * MAX_VALUES + b"1]}", "more than 100000 values"),
    ],
)
def test_refused(body, said):
    with pytest.raises(InvalidRequest, match=said):
        parse(body)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b' {"a": [1, 2.5, -3e2, true, null, "x"]} \n',
        b'{"a": "\\ud83d\\ude00"}',
        '{"a": "é\U0001f600\ufeff"}'.encode(),
        nested(MAX_DEPTH - 1),
    ],
)
def test_taken_as_python_takes_it(body):
    assert parse(body) == json.loads(body)


def test_text_full_of_marks_is_not_many_values():
    body = json.dumps({"stdin": "[,{" * MAX_VALUES, "quotes": '\\"' * 1000}).encode()
    assert len(parse(body)["stdin"]) == 3 * MAX_VALUES


@pytest.mark.alone
def test_a_bomb_is_refused_before_it_grows():
    bomb = b'{"a":[' + b"[]," * 10_000_000 + b"1]}"
    begun = time.monotonic()
    with pytest.raises(InvalidRequest, match="values"):
        parse(bomb)
    in_time(time.monotonic() - begun, 3)


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**38), 10**38)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(), _values, max_size=5), st.booleans())
def test_whatever_json_can_say_comes_back(value, escaped):
    assert parse(json.dumps(value, ensure_ascii=escaped).encode()) == value


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\u0dD8eE-+.1 ntf', max_size=40).map(str.encode))
def test_whatever_the_bytes_it_is_an_object_or_refused(body):
    try:
        found = parse(body)
    except InvalidRequest:
        return
    assert found == json.loads(body)
