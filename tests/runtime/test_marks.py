"""Marks in a kernel's output, taken apart however the bytes arrive."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandboxd.marks import MarkReader

SECRET = "ab" * 16
PREFIX = b"\x1b]cellbox;" + SECRET.encode() + b";"


class Heard:
    def __init__(self):
        self.said = []

    def text(self, execution, stream, data):
        self._add(("text", execution, stream), data)

    def raw(self, pipe, data):
        self._add(("raw", pipe), data)

    def _add(self, key, data):
        assert data
        if self.said and self.said[-1][:-1] == key:
            data = self.said.pop()[-1] + data
        self.said.append((*key, data))


def heard(*chunks):
    said = Heard()
    reader = MarkReader(SECRET, 1, said)
    for chunk in chunks:
        reader.feed(chunk)
    reader.settle()
    return said.said


def text(execution, stream, data):
    return PREFIX + b"t;%d;%d;%d\a%s" % (execution, stream, len(data), data)


def test_the_whole_language():
    data = PREFIX + b"d;7\a" + text(7, 1, b"out") + b"child" + text(7, 2, b"err") + text(6, 1, b"l") + PREFIX + b"d;8\a"
    assert heard(data) == [
        ("text", 7, 1, b"out"),
        ("raw", 1, b"child"),
        ("text", 7, 2, b"err"),
        ("text", 6, 1, b"l"),
    ]


HOSTILE = [
    b"\x1b",
    b"\x1b]cellbox;",
    PREFIX,
    PREFIX + b"d;\a",
    PREFIX + b"d;-1\a",
    PREFIX + b"d;99999999999999999999\a",
    PREFIX + b"t;1;3;1\a",
    PREFIX + b"t;1;1;10000\a",
    PREFIX + b"t;1;1\a",
    PREFIX + b"t;1;1;" + b"0" * 5000 + b"1\a",
    PREFIX + b"x;1\a",
    PREFIX + b"d;1" + b"0" * 200,
    b"\x1b]cellbox;" + b"cd" * 16 + b";d;1\a",
    PREFIX * 3,
    b"\x1b\x1b]cellbox;\x1b",
]


@pytest.mark.parametrize("data", HOSTILE)
def test_what_only_looks_like_a_mark_is_output(data):
    assert heard(data) == [("raw", 1, data)]
    assert heard(data + text(1, 1, b"after"))[-1] == ("text", 1, 1, b"after")
    assert heard(text(1, 1, b"before") + data + text(1, 1, b"x")) == [
        ("text", 1, 1, b"before"),
        ("raw", 1, data),
        ("text", 1, 1, b"x"),
    ]


def test_texts_of_one_owner_may_look_like_marks_and_be_of_any_size():
    datas = [b"a", b"", text(1, 1, b"inner"), PREFIX, b"\a", b"x" * 3900, text(1, 1, b"")[:-2], b"1\a", b"z" * 9999] * 9
    assert heard(b"".join(text(1, 1, data) for data in datas)) == [("text", 1, 1, b"".join(datas))]


def test_text_that_is_promised_and_does_not_come_ends_with_the_execution():
    said = Heard()
    reader = MarkReader(SECRET, 1, said)
    reader.feed(PREFIX + b"t;1;1;9999\aabc")
    reader.settle()
    reader.feed(text(2, 1, b"x"))
    assert said.said == [("text", 1, 1, b"abc"), ("text", 2, 1, b"x")]


PLACE = PREFIX + b"d;%d\a"


def test_what_comes_behind_a_place_waits_and_comes_in_order():
    said = Heard()
    reader = MarkReader(SECRET, 1, said, lambda place: place > 3)
    reader.feed(text(1, 1, b"a") + PLACE % 3 + text(1, 1, b"b") + PLACE % 4 + text(1, 1, b"c") + PLACE % 5)
    reader.feed(text(1, 1, b"d") + b"raw" + PREFIX + b"d;1")
    assert (said.said, reader.waits) == ([("text", 1, 1, b"ab")], 4)
    reader.go_on(3)
    assert (said.said, reader.waits) == ([("text", 1, 1, b"ab")], 4)
    reader.go_on(4)
    assert (said.said, reader.waits) == ([("text", 1, 1, b"abc")], 5)
    reader.go_on(9)
    reader.feed(b"\a")
    assert (said.said, reader.waits) == ([("text", 1, 1, b"abcd"), ("raw", 1, b"raw")], 0)


pieces = st.one_of(
    st.builds(text, st.integers(0, 999), st.sampled_from([1, 2]), st.binary(max_size=50)),
    st.builds(text, st.just(1), st.just(1), st.binary(max_size=50) | st.sampled_from(HOSTILE[:4])),
    st.builds(text, st.just(1), st.just(1), st.integers(250, 9999).map(lambda size: b"x" * size)),
    st.builds(lambda place: PREFIX + b"d;%d\a" % place, st.integers(0, 999)),
    st.binary(max_size=50),
    st.sampled_from(HOSTILE),
)


@given(st.lists(pieces, max_size=8), st.lists(st.integers(0, 500) | st.integers(0, 9999), max_size=6))
def test_how_the_bytes_are_cut_changes_nothing(parts, cuts):
    data = b"".join(parts)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    chunks = [data[start:end] for start, end in itertools.pairwise(places)]
    assert heard(*chunks) == heard(data)


@given(st.lists(pieces, max_size=8), st.lists(st.integers(0, 500) | st.integers(0, 9999), max_size=6))
def test_waiting_changes_nothing_but_the_time(parts, cuts):
    data = b"".join(parts)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    said = Heard()
    reader = MarkReader(SECRET, 1, said, lambda _place: True)
    for start, end in itertools.pairwise(places):
        reader.feed(data[start:end])
    while reader.waits:
        reader.go_on(reader.waits)
    reader.settle()
    assert said.said == heard(data)
