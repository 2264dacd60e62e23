"""What no sandbox may reach, whatever its policy allows: the service, the host as far as it is seen from here, and the engine.

The egress process adds what it sees itself. Reads small files of ``/proc`` only.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from egress.protocol import Own
from interpreter.listen import Listen


def own(listen: Listen, engine: str | None, *, proc: Path = Path("/proc")) -> Own:
    """Return it. engine: its address, as ``DOCKER_HOST`` has it; None: there is none."""
    addresses = {*_interfaces(proc), *_gateways(proc)}
    ports = set()
    if listen.path is None:
        ports.add(listen.port)
        addresses.update(_resolved(listen.host))
    if engine is not None and (at := urlsplit(engine)).scheme in ("tcp", "http", "https") and at.hostname:
        ports.add(at.port or 2375)
        addresses.update(_resolved(at.hostname))
    outside = sorted(address for address in addresses if not ipaddress.ip_address(address).is_loopback)
    return Own(tuple(outside), tuple(sorted(port for port in ports if port)))


def _resolved(host: str) -> Iterator[str]:
    """Yield the addresses of a name in our own settings; nothing for one that stands for all, or has none now."""
    if not host or host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not listened on
        return
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return
    for *_, address in found:
        yield str(address[0]).partition("%")[0]


def _interfaces(proc: Path) -> Iterator[str]:
    """Yield the addresses of this machine, or of the container that this is."""
    before = ""
    for line in _lines(proc / "net/fib_trie"):
        word = line.split()[-1] if line.split() else ""
        if line.strip().startswith("|--"):
            before = word
        elif "host LOCAL" in line and before:
            yield before
    for line in _lines(proc / "net/if_inet6"):
        yield str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))


def _gateways(proc: Path) -> Iterator[str]:
    """Yield who passes our packets on: seen from a container, that is the host."""
    for line in _lines(proc / "net/route")[1:]:
        _, destination, gateway, *_ = line.split()
        if destination == "00000000" and gateway != "00000000":
            yield str(ipaddress.IPv4Address(struct.pack("=I", int(gateway, 16))))
    for line in _lines(proc / "net/ipv6_route"):
        destination, length, _, _, gateway, *_ = line.split()
        if length == "00" and set(destination) == {"0"} and set(gateway) != {"0"}:
            yield str(ipaddress.IPv6Address(bytes.fromhex(gateway)))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
