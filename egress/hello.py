"""Which server the first bytes of a TLS connection name: the ClientHello, read as far as that needs.

Promises: pure, bounded, ``NotTls`` and nothing else is raised, whatever the bytes. A hello may be split over records and over
reads at any byte.
Leaves to visit.py: comparing the name, and waiting for more.
"""

from __future__ import annotations

from dataclasses import dataclass

from egress.names import Host, MalformedName, parse_host

MAX_HELLO = 16 * 1024
"""Bytes, the headers of records included. A hello with post-quantum keys has about 2 KiB."""

_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_HOST_NAME = 0
_MAX_RECORD = 2**14


class NotTls(Exception):
    """The bytes begin no TLS connection."""


@dataclass(frozen=True, slots=True)
class Hello:
    """server: the name it asks for; None if it asks for none."""

    server: Host | None


def parse_hello(data: bytes | bytearray) -> Hello | None:
    """Return the hello that ``data`` begins with, or None if more bytes are needed. Raises NotTls."""
    handshake, at = bytearray(), 0
    while True:
        header = data[at : at + 5]
        _expect(header[:1], b"\x16")
        _expect(header[1:2], b"\x03")
        if len(header) < 5:
            break
        size = int.from_bytes(header[3:5])
        if not 0 < size <= _MAX_RECORD or header[2] > 4:
            raise NotTls
        handshake += data[at + 5 : at + 5 + size]
        at += 5 + size
        _expect(bytes(handshake[:2]), bytes((_CLIENT_HELLO, 0)))
        if len(handshake) >= 4:
            length = int.from_bytes(handshake[1:4])
            if length + 4 > MAX_HELLO:
                raise NotTls
            if len(handshake) >= 4 + length:
                return Hello(_server_name(_Reader(bytes(handshake[4 : 4 + length]))))
        if at >= len(data):
            break
    if len(data) >= MAX_HELLO:
        raise NotTls
    return None


def _expect(found: bytes | bytearray, wanted: bytes) -> None:
    """As much of ``wanted`` as is there already."""
    if not wanted.startswith(bytes(found)):
        raise NotTls


class _Reader:
    """Reads a block from its beginning; a length that leads out of it is NotTls."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise NotTls
        self._at += size
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def block(self, size_of_length: int) -> bytes:
        return self.take(self.number(size_of_length))


def _server_name(hello: _Reader) -> Host | None:
    hello.take(2 + 32)  # version, random
    hello.block(1)  # session
    hello.block(2)  # ciphers
    hello.block(1)  # compression
    if not hello:
        return None
    extensions = _Reader(hello.block(2))
    if hello:
        raise NotTls
    seen: set[int] = set()
    server = None
    while extensions:
        kind = extensions.number(2)
        content = extensions.block(2)
        if kind in seen:
            raise NotTls  # one parser takes the first, another the last
        seen.add(kind)
        if kind == _SERVER_NAME:
            server = _single_name(_Reader(content))
    return server


def _single_name(content: _Reader) -> Host:
    names = _Reader(content.block(2))
    kind, name = names.number(1), names.block(2)
    if names or content or kind != _HOST_NAME:
        raise NotTls
    try:
        return parse_host(name.decode("ascii"))
    except (MalformedName, UnicodeDecodeError) as error:
        raise NotTls from error
