"""Where a server listens: an address and port, or a Unix socket."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

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
