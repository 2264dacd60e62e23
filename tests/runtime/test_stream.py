"""What is told of an execution as it comes: in whole characters, within its limits, and to whoever asked."""

from __future__ import annotations

from sandboxd.protocol import MAX_TEXT, Cleared, Displayed, Execute, FromSandbox, Output, OutputLimits, Result
from sandboxd.stream import Stream


def stream(*, followed: bool, text: int = 10, spill: int = 10**6) -> tuple[Stream, list[FromSandbox]]:
    told: list[FromSandbox] = []
    message = Execute("a", "python", "", 1, 1, OutputLimits(text, 100, spill), stream=followed)
    return Stream(message, told.append), told


def texts(told: list[FromSandbox]) -> list[str]:
    return [message.text for message in told if isinstance(message, Output)]


def test_one_that_is_followed_is_told_at_once() -> None:
    live, told = stream(followed=True)
    live.capture("stdout").feed(b"a")
    live.capture("stderr").feed("é".encode()[:1])
    assert told == [Output("a", "stdout", "a")]


def test_one_that_nobody_follows_is_told_whole_once_it_is_more_than_its_answer_holds() -> None:
    live, told = stream(followed=False)
    capture = live.capture("stdout")
    capture.feed(b"0123456789")
    assert told == []
    capture.feed(b"x")
    capture.feed(b"y")
    assert texts(told) == ["0123456789x", "y"]
    live.displayed("display", [Result("display", data={"text/plain": "d"})])
    live.cleared(wait=False)
    assert len(told) == 2


def test_pieces_are_bounded_and_of_whole_characters() -> None:
    live, told = stream(followed=True, text=10**6)
    whole = "é" * MAX_TEXT + "x"
    live.capture("stdout").feed(whole.encode())
    assert "".join(texts(told)) == whole
    assert max(len(text.encode()) for text in texts(told)) <= MAX_TEXT


def test_past_the_spill_nothing_more_of_that_stream_is_told() -> None:
    live, told = stream(followed=True, spill=5)
    out, err = live.capture("stdout"), live.capture("stderr")
    out.feed("abéé".encode())
    out.feed(b"z")
    err.feed(b"12345")
    assert texts(told) == ["abé", "12345"]
    assert out.size == 7


def test_displays_are_bounded_too() -> None:
    live, told = stream(followed=True, spill=20)
    entry = Result("display", data={"text/plain": "d"})  # 11 bytes
    live.displayed("display", [entry])
    live.displayed("display", [entry])
    for _ in range(20):
        live.cleared(wait=True)
    assert [type(message) for message in told] == [Displayed] + [Cleared] * 9
    assert live.cut


def test_nothing_is_cut_that_has_room_or_that_nobody_follows() -> None:
    for followed, spill in ((True, 11), (False, 0)):
        live, _ = stream(followed=followed, spill=spill)
        live.displayed("display", [Result("display", data={"text/plain": "d"})])
        assert not live.cut


def test_the_next_service_is_told_nothing_of_what_an_earlier_one_followed() -> None:
    live, told = stream(followed=True)
    live.stop()
    live.capture("stdout").feed(b"a")
    live.displayed("result", [], 1)
    live.cleared(wait=True)
    assert told == []
