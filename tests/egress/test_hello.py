"""ClientHellos, of a real TLS library and broken in every place."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.hello import MAX_HELLO, NotTls, parse_hello


def client_hello(name: str | None = "example.org") -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


REAL = client_hello()


def split(hello: bytes, size: int) -> bytes:
    """The same handshake in records of ``size`` bytes."""
    content = hello[5:]
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join(hello[:3] + len(piece).to_bytes(2) + piece for piece in pieces)


def block(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size) + data


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2) + block(2, data)


def server_name(name: bytes, kind: bytes = b"\0") -> bytes:
    return extension(0, block(2, kind + block(2, name)))


def made(extensions: bytes, *, after: bytes = b"") -> bytes:
    body = (
        b"\x03\x03" + bytes(32) + block(1, b"") + block(2, b"\x13\x01") + block(1, b"\0") + block(2, extensions) + after
    )
    return b"\x16\x03\x01" + block(2, b"\x01" + block(3, body))


def name_of(data: bytes) -> str | None:
    found = parse_hello(data)
    assert found is not None
    return found.server.text if found.server is not None else None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x80\x2e\x01\x03\x01",  # the hello of SSL 2
        b"\x15\x03\x01\x00\x02\x02\x28",  # an alert
        b"\x17\x03\x03\x00\x05hello",  # data without a handshake
        b"\x16\x02\x00\x00\x05",
        b"\x16\x03\x05\x00\x05",
        b"\x16\x03\x01\x00\x00",  # an empty record
        b"\x16\x03\x01\xff\xff",  # longer than a record may be
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",  # a ServerHello
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",  # endless
        b"\x16\x03\x01\x00\x04\x01\x00\x40\x00",
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",  # empty
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        made(server_name(b"a.example") + server_name(b"b.example")),
        made(server_name(b"a.example") + server_name(b"a.example")),
        made(extension(0, block(2, b"\0" + block(2, b"a.example") + b"\0" + block(2, b"b.example")))),
        made(extension(0, b"")),
        made(extension(0, block(2, b""))),
        made(extension(0, block(2, b"\0" + block(2, b"a.example")) + b"x")),
        made(server_name(b"a.example", kind=b"\1")),
        made(server_name(b"")),
        made(server_name(b"a.example\0.b.example")),
        made(server_name(b"a_b.example")),
        made(server_name("exämple.org".encode())),
        made(server_name(b"a b")),
        made(server_name(b"[::1]x")),
        made(server_name(b"a.example"), after=b"x"),
        made(b"\0\0\0\x50abc"),
    ],
)
def test_no_hello(data: bytes) -> None:
    with pytest.raises(NotTls):
        parse_hello(data)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (REAL, "example.org"),
        (client_hello(None), None),
        (client_hello("a.b.example"), "a.b.example"),
        (made(server_name(b"EXAMPLE.org")), "example.org"),
        (made(server_name(b"example.org.")), "example.org"),
        (made(extension(16, b"x") + server_name(b"example.org")), "example.org"),
        (made(b""), None),
        (REAL + b"more", "example.org"),
    ],
)
def test_the_name_of_a_hello(data: bytes, name: str | None) -> None:
    assert name_of(data) == name


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 40, 100])
def test_a_hello_may_be_split_over_records(size: int) -> None:
    assert name_of(split(REAL, size)) == "example.org"


@pytest.mark.parametrize("data", [REAL, split(REAL, 7)], ids=["whole", "split"])
def test_a_hello_may_come_byte_by_byte(data: bytes) -> None:
    assert all(parse_hello(data[:count]) is None for count in range(len(data)))
    assert name_of(data) == "example.org"


def test_another_kind_of_record_within_a_hello_is_refused() -> None:
    with pytest.raises(NotTls):
        parse_hello(split(REAL, 40)[:45] + b"\x17\x03\x03\x00\x01x")


def test_a_hello_that_does_not_end_is_refused() -> None:
    endless = b"\x16\x03\x01" + block(2, b"\x01" + (16_000).to_bytes(3) + bytes(10)) + b"\x16\x03\x01\0\1\0" * 3000
    with pytest.raises(NotTls):
        parse_hello(endless[:MAX_HELLO])


@given(st.integers(0, len(REAL) - 1), st.integers(0, 255))
def test_a_changed_byte_gives_a_hello_or_not_tls(at: int, value: int) -> None:
    data = bytearray(REAL)
    data[at] = value
    with contextlib.suppress(NotTls):
        parse_hello(data)


@given(st.binary(max_size=400))
def test_whatever_the_bytes_nothing_but_not_tls(data: bytes) -> None:
    for raw in (data, b"\x16\x03\x01" + block(2, data), made(data[:200])):
        with contextlib.suppress(NotTls):
            parse_hello(raw)
