"""The egress process with a resolver of the test's: ``python -m tests.egress.proxy FD '{"name": "address"}'``.

``running`` starts it, with one sandbox, for tests and figures that need it beside them instead of in their own loop.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from egress import logs, protocol
from egress.limits import Limits
from egress.names import Host
from egress.process import raise_descriptors, run
from egress.resolve import Unresolved

ROOT = Path(__file__).parents[2]
LIMIT_S = 20


class Table:
    """A resolver that knows these names."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    async def resolve(self, host: Host) -> list[bytes]:
        if host.text not in self._names:
            raise Unresolved
        return [socket.inet_aton(self._names[host.text])]


@dataclass
class Proxy:
    """The process as its service sees it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    folder: Path

    def __post_init__(self) -> None:
        self._lines = self.control.makefile("rb")

    def say(self, message: protocol.Message) -> None:
        self.control.sendall(protocol.encode(message))

    def hear(self) -> protocol.FromEgress:
        """The next message; counts are passed over."""
        while isinstance(message := protocol.from_egress(self._lines.readline()), protocol.Counted):
            pass
        return message

    def open(self, sandbox: str, **policy: tuple[str | int, ...]) -> Path:
        """Open a sandbox and return the path of its socket."""
        path = self.folder / sandbox
        self.say(protocol.Open(sandbox, str(path), protocol.Policy(**policy)))
        assert self.hear() == protocol.Opened(sandbox)
        return path

    def close(self) -> None:
        self._lines.close()
        self.control.close()


@contextmanager
def running(folder: Path, names: dict[str, str], *, log: Path | None = None) -> Iterator[Proxy]:
    """The process, until the block ends. log: where its lines go; to nowhere if None."""
    ours, its = socket.socketpair()
    ours.settimeout(LIMIT_S)
    with (log or Path("/dev/null")).open("ab") as out, its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.egress.proxy", str(its.fileno()), json.dumps(names)],
            pass_fds=[its.fileno()],
            stderr=out,
            cwd=ROOT,
        )
    proxy = Proxy(process, ours, folder)
    try:
        yield proxy
    finally:
        proxy.close()
        process.wait(LIMIT_S)


async def _main(control: socket.socket, names: dict[str, str]) -> None:
    await run(control, Table(names), limits=Limits(), stop=asyncio.Event())


if __name__ == "__main__":
    logs.configure()
    raise_descriptors(Limits())
    asyncio.run(_main(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])))
