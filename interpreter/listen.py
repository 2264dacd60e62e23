"""Where a server listens: an address and port, or a Unix socket."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/\s]*)):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Listen:
    """host: empty for all addresses. port: 0 for any free one. path: of a Unix socket, instead of both."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_listen(text: str) -> Listen:
    """Read ``127.0.0.1:8090``, ``:8090``, ``[::1]:8090``, ``name:8090`` or ``unix:/path``. Raises ValueError."""
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute() or len(str(path).encode()) > 107:
            raise ValueError("must name an absolute path of at most 107 bytes after `unix:`")
        return Listen(path=path)
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > 65535:
        raise ValueError("must be an address like 127.0.0.1:8090, :8090, [::1]:8090 or unix:/path")
    return Listen(host=match[1] or match[2], port=int(match[3]))


def bind(listen: Listen) -> list[socket.socket]:
    """Return listening sockets for an address and port, one for each address that its name has here.

    Port 0 is the same free port for all of them. Raises OSError; then nothing is left open.
    """
    flags = socket.AI_PASSIVE
    found = socket.getaddrinfo(listen.host or None, listen.port, type=socket.SOCK_STREAM, flags=flags)
    bound: list[socket.socket] = []
    absent: OSError | None = None
    with ExitStack() as stack:
        for family, kind, protocol, _, address in sorted(set(found)):
            port = bound[0].getsockname()[1] if bound else listen.port
            try:
                bound.append(stack.enter_context(_listening(family, kind, protocol, (address[0], port, *address[2:]))))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = error  # IPv6 that is switched off, for example; the other addresses still count
        if not bound:
            raise absent or OSError(errno.EADDRNOTAVAIL, "the name has no address here")
        stack.pop_all()
    return bound


def _listening(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # IPv4 has a socket of its own: with both in one, the address of a peer would have two forms.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
        made.listen(1024)
    except OSError:
        made.close()
        raise
    return made
