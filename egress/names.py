"""Hosts and ports as clients write them: one strict reading, refused otherwise.

A resolver reads more than it should: ``0x7f.1``, circled digits, ``127.0.0.1\\0.example.org``. So a name is ASCII letters,
digits, hyphens and dots, or an IP literal in its one usual form, and is never handed on in another form than the judged.

Promises: pure; a host that is returned is lower-cased and has no dot at its end.
Leaves to policy.py: who may reach it.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

_LABEL = re.compile(r"[A-Za-z0-9-]{1,63}")
_IPV4 = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})")
_NUMERIC = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}")
_PORT = re.compile(r"[0-9]{1,5}")
_MAX_NAME = 253


class MalformedName(ValueError):
    """It is no host, or no port. Text: one sentence that quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Host:
    """text: canonical, IPv6 without brackets. packed: of an IP literal, else None."""

    text: str
    packed: bytes | None = None

    @property
    def in_url(self) -> str:
        """As it stands in front of a port."""
        return f"[{self.text}]" if self.packed is not None and len(self.packed) == 16 else self.text


def parse_host(text: str) -> Host:
    """Return the host. IPv6 is taken in brackets only. Raises MalformedName."""
    if text.startswith("["):
        if not text.endswith("]"):
            raise MalformedName("the bracket of an IPv6 address is not closed")
        return parse_ipv6(text[1:-1])
    if _IPV4.fullmatch(text):
        try:
            packed = socket.inet_pton(socket.AF_INET, text)
        except OSError as error:
            raise MalformedName("it is no IPv4 address") from error
        return Host(socket.inet_ntop(socket.AF_INET, packed), packed)
    name = text.removesuffix(".").lower() if text.isascii() else ""
    labels = name.split(".")
    if not name or len(name) > _MAX_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise MalformedName("a host is ASCII letters, digits, hyphens and dots")
    if _NUMERIC.fullmatch(labels[-1]):
        raise MalformedName("an IPv4 address is four decimal numbers without leading zeros")
    return Host(name)


def parse_ipv6(text: str) -> Host:
    """Return the IPv6 literal that stands within brackets; zones are none. Raises MalformedName."""
    try:
        if not _IPV6.fullmatch(text):
            raise MalformedName("it is no IPv6 address")
        packed = socket.inet_pton(socket.AF_INET6, text)
    except OSError as error:
        raise MalformedName("it is no IPv6 address") from error
    return Host(socket.inet_ntop(socket.AF_INET6, packed), packed)


def parse_port(text: str) -> int:
    """Return the port, 1 to 65535. Raises MalformedName."""
    if not _PORT.fullmatch(text) or not 0 < int(text) <= 65535:
        raise MalformedName("a port is a decimal number from 1 to 65535")
    return int(text)


def parse_authority(text: str, default_port: int | None = None) -> tuple[Host, int]:
    """Return host and port of ``host:port``. default_port: where none is written; None insists on one. Raises MalformedName."""
    if "@" in text:
        raise MalformedName("a user in front of the host is not taken")
    if text.startswith("["):
        end = text.find("]") + 1
        host, rest = text[:end], text[end:]
        if rest and not rest.startswith(":"):
            raise MalformedName("only a port can follow the bracket")
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
    if colon:
        return parse_host(host), parse_port(port)
    if default_port is None:
        raise MalformedName("the port is missing")
    return parse_host(host), default_port
