"""Numbers of things, as operators read them."""

import pytest

from interpreter.wording import counted


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "sandbox", "0 sandboxes"),
        (1, "sandbox", "1 sandbox"),
        (2, "sandbox", "2 sandboxes"),
        (3, "process", "3 processes"),
        (4, "file", "4 files"),
    ],
)
def test_one_is_one_and_more_are_many(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said
