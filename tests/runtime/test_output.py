"""What programs write, kept within a limit."""

import asyncio
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandboxd.output import Capture, PipeReader

LEFT_OUT = re.compile(rb"\n?\[\.\.\. (\d+) bytes left out \.\.\.\]\n")


def captured(limit: int, *chunks: bytes) -> Capture:
    capture = Capture(limit)
    for chunk in chunks:
        capture.feed(chunk)
    capture.close()
    return capture


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ([b"a\xff\xfeb"], "a\ufffd\ufffdb"),
        ([b"\xf0\x9f", b"\x99\x82"], "\U0001f642"),
        ([b"\xed\xa0\x80"], "\ufffd\ufffd\ufffd"),  # a surrogate in UTF-8 is no character
        ([b"\xe2\x82"], "\ufffd"),
        ([b"\x00\x1b[31m"], "\x00\x1b[31m"),
        ([], ""),
    ],
)
def test_bad_bytes_are_replaced_and_characters_are_whole(chunks, text):
    capture = captured(1000, *chunks)
    assert capture.text() == text
    assert capture.size == len(text.encode())


def test_text_within_the_limit_is_kept_whole():
    capture = captured(10, b"0123456789")
    assert (capture.text(), capture.truncated) == ("0123456789", False)


def test_past_the_limit_the_halves_are_kept_around_one_line():
    capture = captured(200, b"".join(b"%06d\n" % number for number in range(100_000)))
    text = capture.text()
    assert capture.truncated
    assert text.startswith("000000\n000001\n")
    assert text.endswith("099998\n099999\n")
    assert len(text) <= 200
    lines = [line for line in text.splitlines() if "left out" in line]
    assert len(lines) == 1
    kept = len(text) - len(lines[0]) - 1
    assert kept > 150
    assert f" {700_000 - kept} " in lines[0] or f" {700_000 - kept + 1} " in lines[0]  # a line break may be added


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 30, 45])
def test_a_limit_too_small_for_the_line_is_still_kept(limit):
    assert len(captured(limit, b"\xe2\x82\xac" * 100).text().encode()) <= limit


@given(st.lists(st.binary(max_size=400), max_size=12), st.integers(0, 600))
def test_any_bytes_give_valid_text_within_the_limit(chunks, limit):
    capture = captured(limit, *chunks)
    whole = b"".join(chunks).decode("utf-8", "replace").encode()
    text = capture.text().encode()  # a lone surrogate could not be encoded
    assert capture.size == len(whole)
    assert len(text) <= limit
    assert capture.truncated == (len(whole) > limit)
    if not capture.truncated:
        assert text == whole


@given(st.text(max_size=2000), st.integers(60, 300), st.integers(1, 50))
def test_what_is_kept_and_what_is_left_out_make_up_all(text, limit, step):
    data = text.replace("[", "(").encode("utf-8", "replace")
    capture = captured(limit, *(data[start : start + step] for start in range(0, len(data), step)))
    kept = capture.text().encode()
    found = LEFT_OUT.search(kept)
    if not capture.truncated:
        assert kept == data
        return
    assert found
    first, last = kept[: found.start()], kept[found.end() :]
    if not data.startswith(first):
        raise AssertionError(first)
    assert data.endswith(last)
    left = len(data) - len(first) - len(last)
    assert int(found[1]) in (left, left - 1)  # the line break before the line may be the text's own


def test_memory_is_bounded():
    capture = Capture(10_000)
    for _ in range(200):
        capture.feed(b"x" * 100_000)
    assert capture.size == 20_000_000
    assert len(capture._head) + len(capture._tail) < 500_000


@given(st.lists(st.text(max_size=60), max_size=20), st.integers(0, 300))
def test_progress_tells_each_byte_of_the_first_half_once(chunks, limit):
    capture = Capture(limit)
    told = ""
    for chunk in chunks:
        capture.feed(chunk.encode())
        told += capture.progress()
    whole = "".join(chunks).encode()
    assert told.encode() == whole[: limit // 2].decode("utf-8", "ignore").encode()
    assert capture.progress() == ""


async def test_reader_hands_on_all_and_ends_with_the_pipe():
    read, write = os.pipe()
    got = bytearray()
    reader = PipeReader(read, got.extend)
    data = os.urandom(3_000_000)
    written = asyncio.to_thread(write_all, write, data)
    await asyncio.wait_for(written, 20)
    await asyncio.wait_for(reader.eof, 20)
    assert got == data
    reader.close()


async def test_a_stream_of_small_pieces_is_gathered_and_drain_reads_at_once():
    read, write = os.pipe()
    got = []
    reader = PipeReader(read, got.append)
    for number in range(100):
        os.write(write, b"%3d" % number)
        await asyncio.sleep(0)
    assert 5 <= len(got) < 50
    reader.drain()
    assert b"".join(got) == b"".join(b"%3d" % number for number in range(100))
    os.write(write, b"last")
    os.close(write)
    await asyncio.wait_for(reader.eof, 1)
    assert got[-1] == b"last"


async def test_a_reader_is_closed_while_it_gathers():
    read, write = os.pipe()
    reader = PipeReader(read, lambda _data: None)
    for _ in range(50):
        os.write(write, b"x")
        await asyncio.sleep(0)
    reader.close()
    await asyncio.sleep(0.01)
    with pytest.raises(BrokenPipeError):
        os.write(write, b"x")
    os.close(write)


async def test_closed_reader_lets_go_of_its_descriptor():
    read, write = os.pipe()
    reader = PipeReader(read, lambda _data: None)
    reader.close()
    reader.close()
    assert reader.eof.done()
    with pytest.raises(BrokenPipeError):
        os.write(write, b"x")
    os.close(write)


def write_all(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb", closefd=True) as pipe:
        pipe.write(data)
