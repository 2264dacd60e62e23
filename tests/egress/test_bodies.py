"""Bodies: where they end, and what goes on in place of their chunks."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.bodies import Body, Chunked, Sized, UntilClose, body
from egress.heads import Malformed


def carried(kind: Body, data: bytes, size: int) -> tuple[bytes, bytes]:
    """What goes on, and what was left, of ``data`` in pieces of ``size`` bytes."""
    out, at = b"", 0
    while at < len(data) and not kind.ended:
        piece = memoryview(data)[at : at + size]
        used, parts = kind.take(piece)
        out += b"".join(parts)
        at += used
        assert used == len(piece) or kind.ended
    return out, data[at:]


def dechunked(data: bytes) -> bytes:
    out = b""
    while True:
        line, _, data = data.partition(b"\r\n")
        assert re.fullmatch(rb"[0-9a-fA-F]+", line), "an extension was passed on"
        size = int(line, 16)
        if size == 0:
            assert data == b"\r\n"
            return out
        out, data = out + data[:size], data[size:]
        assert data[:2] == b"\r\n"
        data = data[2:]


BAD_CHUNKS = [
    b"5\nhello\n0\n\n",
    b"5\r\nhello\n0\r\n\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\r\nhelloX\r\n0\r\n\r\n",
    b"4\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"+5\r\nhello\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b" 5\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"5_0\r\nhello\r\n0\r\n\r\n",
    b"\r\nhello\r\n0\r\n\r\n",
    b";a\r\nhello\r\n0\r\n\r\n",
    b"5;a=\0\r\nhello\r\n0\r\n\r\n",
    b"5;a=\r\r\nhello\r\n0\r\n\r\n",
    b"5\r\r\nhello\r\n0\r\n\r\n",
    b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    b"5;" + b"a" * 2000 + b"\r\nhello\r\n0\r\n\r\n",
    b"0\r\n" + b"a: b\r\n" * 300 + b"\r\n",
    b"0\r\na: b\n\r\n",
    b"z\r\n",
]


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("data", BAD_CHUNKS, ids=range(len(BAD_CHUNKS)))
def test_chunks_that_are_refused(data: bytes, size: int) -> None:
    kind = Chunked()
    with pytest.raises(Malformed):
        carried(kind, data, size)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(1, 50), st.booleans())
def test_chunks_are_written_anew_however_they_come(chunks: list[bytes], size: int, extended: bool) -> None:
    extension = b";name=value" if extended else b""
    data = b"".join(b"%X%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    data += b"000" + extension + b"\r\n" + (b"Trailer: dropped\r\n" if extended else b"") + b"\r\n"
    out, left = carried(Chunked(), data + b"GET /smuggled", size)
    assert dechunked(out) == b"".join(chunks)
    assert left == b"GET /smuggled"
    assert carried(Chunked(plain=True), data, size) == (b"".join(chunks), b"")


def test_a_size_of_zeros_is_the_last_chunk() -> None:
    assert carried(Chunked(), b"0000\r\n\r\nrest", 100) == (b"0\r\n\r\n", b"rest")


@pytest.mark.parametrize("cut", range(len(b"3\r\nabc\r\n0\r\n\r\n")))
def test_a_body_that_is_cut_has_not_ended(cut: int) -> None:
    kind = Chunked()
    carried(kind, b"3\r\nabc\r\n0\r\n\r\n"[:cut], 100)
    with pytest.raises(Malformed):
        kind.cut()


@given(st.binary(max_size=200), st.integers(0, 220), st.integers(1, 60))
def test_a_sized_body_takes_its_bytes_and_no_more(data: bytes, length: int, size: int) -> None:
    kind = Sized(length)
    out, left = carried(kind, data, size)
    assert out + left == data
    assert len(out) == min(length, len(data))
    assert kind.ended == (length <= len(data))
    if not kind.ended:
        with pytest.raises(Malformed):
            kind.cut()


def test_what_ends_with_its_connection_takes_all() -> None:
    kind = UntilClose()
    assert carried(kind, b"abc", 2) == (b"abc", b"")
    assert not kind.ended
    assert kind.cut() == []
    assert kind.ended


def test_lengths_have_their_bodies() -> None:
    assert isinstance(body("chunked"), Chunked)
    assert isinstance(body("close"), UntilClose)
    assert isinstance(body(5), Sized)
    assert body(0).ended


@given(st.binary(max_size=300), st.integers(1, 50))
def test_whatever_the_bytes_nothing_but_malformed(data: bytes, size: int) -> None:
    with contextlib.suppress(Malformed):
        carried(Chunked(), data, size)
