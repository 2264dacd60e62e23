"""What a host can run out of, in words."""

from __future__ import annotations

import errno

import pytest

from interpreter import shortage


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EPERM, errno.EINVAL, 0, None])
def test_an_error_that_is_no_shortage_is_not_called_one(number: int | None) -> None:
    assert shortage.told(number) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", shortage.PROCESSES),
        ("RuntimeError: can't start new thread", shortage.PROCESSES),
        ("OSError: [Errno 12] Cannot allocate memory", shortage.MEMORY),
        ("OSError: [Errno 24] Too many open files", shortage.DESCRIPTORS),
        ("No space left on device", None),  # of which disk?
        ("", None),
        ("\0\udcff", None),
    ],
)
def test_a_programs_own_words_are_understood(text: str, expected: str | None) -> None:
    assert shortage.told_by(text) == expected
