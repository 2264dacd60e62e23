"""multipart/form-data, however it is cut into pieces, and whatever is wrong with it."""

from __future__ import annotations

import pytest

from interpreter.errors import InvalidRequest
from interpreter.http.multipart import MAX_HEAD_BYTES, Multipart

TYPE = "multipart/form-data; boundary=xyz"


def part(name: str, content: bytes) -> bytes:
    return b'--xyz\r\nContent-Disposition: form-data; name="f"; filename="%s"\r\n\r\n%s\r\n' % (name.encode(), content)


def parsed(body: bytes, step: int, content_type: str = TYPE) -> list[tuple[str, bytes]]:
    parser = Multipart(content_type)
    found: list[tuple[str, bytes]] = []
    for at in range(0, len(body), step):
        for piece in parser.feed(body[at : at + step]):
            if isinstance(piece, str):
                found.append((piece, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + piece)
    parser.close()
    return found


FILES = [("a", b""), ("b/c", b"\r\n--xy\r\n--xz\r\n"), ("d", b"--xyz--"), ("e", b"\r\n" * 50), ("é", bytes(range(256)))]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 10_000])
def test_files_come_as_they_were_sent_wherever_the_body_is_cut(step: int) -> None:
    body = b"".join(part(name, content) for name, content in FILES) + b"--xyz--\r\nafter"
    assert parsed(body, step) == FILES
    assert parsed(b"before\r\n" + body, step) == FILES


@pytest.mark.parametrize(
    ("sent", "name"), [('a \\"b\\"', 'a "b"'), ("a %22b%22", 'a "b"'), ("a\\\\b", "a\\b"), ("100%", "100%"), ("é", "é")]
)
def test_a_filename_is_what_was_meant(sent: str, name: str) -> None:
    assert parsed(part(sent, b"x") + b"--xyz--", 5) == [(name, b"x")]


@pytest.mark.parametrize(
    "given", ["", "text/plain", "multipart/form-data", "multipart/form-data; boundary=" + "x" * 71]
)
def test_a_type_without_a_boundary_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest):
        Multipart(given)


@pytest.mark.parametrize(
    "given", ['multipart/form-data; boundary="xyz"', "Multipart/Form-Data;charset=utf-8; Boundary=xyz"]
)
def test_a_boundary_may_be_quoted(given: str) -> None:
    assert parsed(part("a", b"x") + b"--xyz--", 9, given) == [("a", b"x")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing",
        part("a", b"x"),
        b"--xyz",
        b"--xyzz\r\n",
        b"--xyz\r\n\r\n\r\n\r\nx\r\n--xyz--",
        b'--xyz\r\nContent-Disposition: form-data; name="f"\r\n\r\nx\r\n--xyz--',
        b'--xyz\r\nContent-Disposition: attachment; filename="f"\r\n\r\nx\r\n--xyz--',
        b'--xyz\r\nContent-Disposition: form-data; filename="\xff"\r\n\r\nx\r\n--xyz--',
        b"--xyz\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"--xyz\r\n" + b"x" * 2 * MAX_HEAD_BYTES,
    ],
)
@pytest.mark.parametrize("step", [1, 4096])
def test_what_is_malformed_is_refused(body: bytes, step: int) -> None:
    with pytest.raises(InvalidRequest):
        parsed(body, step)
