"""What kind of place an IP address is: a table of ours over packed bytes.

``ipaddress.is_global`` is not asked: it is true for several addresses that lead inside (NAT64, a cloud's own services).
What is not in the table is public for IPv4; for IPv6 only 2000::/3 is, less what the table takes out of it.

Promises: pure. The first row that holds an address decides, so those that are never lifted come first.
Leaves to policy.py: which kinds a sandbox may reach.
"""

from __future__ import annotations

import ipaddress
from typing import Literal

Kind = Literal[
    "public",
    "metadata",
    "translated",
    "loopback",
    "private",
    "shared",
    "benchmark",
    "link_local",
    "multicast",
    "documentation",
    "reserved",
]

LIFTABLE: frozenset[Kind] = frozenset({"loopback", "private", "shared", "benchmark", "documentation"})
"""What an operator may open by range: resolvers of closed networks answer with such addresses, of documentation among them.
Metadata addresses are never among them, wherever they lie."""

_TABLE: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    (
        "metadata",
        (
            "169.254.169.254/32",  # most clouds
            "169.254.169.253/32",  # AWS: resolver
            "169.254.169.123/32",  # AWS: time
            "169.254.170.0/24",  # AWS: credentials of containers (.2) and pods (.23)
            "169.254.42.42/32",  # Scaleway
            "169.254.0.23/32",  # Tencent
            "168.63.129.16/32",  # Azure: a public address that is the host
            "100.100.100.0/24",  # Alibaba: metadata (.200) and what it names
            "192.0.0.192/32",  # Oracle
            "fd00:ec2::/32",  # AWS: metadata, resolver, time, pods
            "fd20:ce::254/128",  # Google
            "fd00:42::42/128",  # Scaleway
            "fe80::a9fe:a9fe/128",  # OpenStack
        ),
    ),
    ("loopback", ("127.0.0.0/8", "::1/128")),
    (
        "translated",  # an IPv4 address in another's clothes: whoever unwraps it does not ask us
        (
            "::ffff:0:0/96",  # mapped
            "::ffff:0:0:0/96",  # translated (SIIT)
            "::/96",  # compatible; unspecified too
            "64:ff9b::/96",  # NAT64
            "64:ff9b:1::/48",  # NAT64, local
            "2002::/16",  # 6to4
            "192.88.99.0/24",  # 6to4, relays
            "2001::/32",  # Teredo
        ),
    ),
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")),
    ("shared", ("100.64.0.0/10",)),
    ("benchmark", ("198.18.0.0/15", "2001:2::/48")),
    ("link_local", ("169.254.0.0/16", "fe80::/10", "fec0::/10")),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    ("documentation", ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20")),
    (
        "reserved",
        (
            "0.0.0.0/8",
            "192.0.0.0/24",
            "192.31.196.0/24",  # AS112: where lookups of private addresses end
            "192.52.193.0/24",  # AMT
            "192.175.48.0/24",  # AS112
            "240.0.0.0/4",  # broadcast too
            "2001::/23",  # protocol assignments
            "2620:4f:8000::/48",  # AS112
        ),
    ),
    ("public", ("0.0.0.0/0", "2000::/3")),
    ("reserved", ("::/0",)),
)


class Range:
    """A block of addresses, asked with packed bytes: 4 for IPv4, 16 for IPv6. Neither holds addresses of the other."""

    __slots__ = ("_network", "_shift", "_size")

    def __init__(self, text: str) -> None:
        """text: such as ``10.0.0.0/8``; a single address is one as well. Raises ValueError, also for bits below the prefix."""
        network = ipaddress.ip_network(text)
        self._size = network.max_prefixlen // 8
        self._shift = network.max_prefixlen - network.prefixlen
        self._network = int(network.network_address) >> self._shift

    def __contains__(self, packed: bytes) -> bool:
        """Whether the address lies in it."""
        return len(packed) == self._size and int.from_bytes(packed) >> self._shift == self._network


_RANGES: tuple[tuple[Kind, Range], ...] = tuple((kind, Range(text)) for kind, texts in _TABLE for text in texts)


def classify(packed: bytes) -> Kind:
    """Return what kind of place the address is. packed: 4 or 16 bytes, network order; any other length is reserved."""
    for kind, held in _RANGES:
        if packed in held:
            return kind
    return "reserved"
