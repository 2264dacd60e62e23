"""What may stand in an allowlist, looked at before anybody relies on it. Pure.

The egress process judges requests, and has the last word on what an entry means; here wrong ones are named to whoever wrote them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

TOOLS = ("@pypi", "@npm")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NUMERIC = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
"""The last label of what resolvers take for an IPv4 address."""
_LONGEST_NAME = 253
_WITH_PORT = re.compile(r"(?P<host>\*|\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::(?P<port>[0-9]{1,5}))?")
_MAX_LENGTH = 300


def wrong(entries: Iterable[str], *, names: Iterable[str] = TOOLS) -> list[str]:
    """Return those that are none. names: those beginning with ``@`` that may stand for others."""
    known = frozenset(names)
    return [entry for entry in entries if not (entry in known if entry.startswith("@") else _is_entry(entry))]


def wrong_ranges(ranges: Iterable[str]) -> list[str]:
    """Return those that are no ranges of addresses."""
    return [text for text in ranges if not _is_range(text)]


def _is_entry(entry: str) -> bool:
    if len(entry) > _MAX_LENGTH:
        return False
    if _is_address(entry):
        return True
    match = _WITH_PORT.fullmatch(entry)
    if match is None or (match["port"] is not None and not 0 < int(match["port"]) < 65536):
        return False
    host = match["host"]
    if host.startswith("["):
        return ":" in host and _is_address(host[1:-1])
    return host == "*" or _is_name(host.removeprefix("*.")) or _is_address(host)


def _is_name(text: str) -> bool:
    name = text.removesuffix(".")
    labels = name.split(".")
    return len(name) <= _LONGEST_NAME and all(map(_LABEL.fullmatch, labels)) and not _NUMERIC.fullmatch(labels[-1])


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _is_range(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
