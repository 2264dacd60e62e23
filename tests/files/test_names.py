"""What each spelling of a path is: names as bytes, or a refusal."""

from __future__ import annotations

import pytest

from interpreter.errors import InvalidRequest
from interpreter.files.names import parts_of, shown


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("a", [b"a"]),
        ("a%2Fb", [b"a", b"b"]),
        ("a%252Fb", [b"a%2Fb"]),
        ("a%20b", [b"a b"]),
        ("a+b", [b"a+b"]),
        (".hidden/...", [b".hidden", b"..."]),
        ("caf%C3%A9", ["caf\u00e9".encode()]),
        ("cafe%CC%81", ["cafe\u0301".encode()]),
        ("%FF%fe", [b"\xff\xfe"]),
        ("%0D%0A", [b"\r\n"]),
        ("x" * 255, [b"x" * 255]),
        ("/".join("x" * 64), [b"x"] * 64),
    ],
)
def test_a_path_is_decoded_once_and_then_split(path: str, parts: list[bytes]) -> None:
    assert parts_of(path) == tuple(parts)


@pytest.mark.parametrize(
    "path",
    ["", "/", "a/", "/a", "a//b", ".", "a/./b", "..", "a/../b", "..%2fb", "%2e%2e/b", "a%00b", "a%", "a%2", "a%zz",
     "x" * 256, "/".join("x" * 65)],
)  # fmt: skip
def test_a_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        parts_of(path)


@pytest.mark.parametrize(
    ("path", "parts"), [("", []), ("/", []), ("a/", [b"a"]), ("a%2F", [b"a"]), ("a/b", [b"a", b"b"])]
)
def test_a_directory_may_end_in_one_slash(path: str, parts: list[bytes]) -> None:
    assert parts_of(path, directory=True) == tuple(parts)


@pytest.mark.parametrize("path", ["a//", "//", "../", "./"])
def test_a_directory_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        parts_of(path, directory=True)


@pytest.mark.parametrize("name", [bytes([number]) * 3 for number in range(1, 256) if number not in b"./"])
def test_every_name_has_a_form_that_comes_back(name: bytes) -> None:
    text, raw = shown(name)
    text.encode()  # no surrogate in it
    assert (parts_of(raw) if raw is not None else (text.encode(),)) == (name,)
