"""The egress process: started by the service and beside it, or one that runs elsewhere and is dialled.

Promises: ``connect`` gives a connection to a process that knows nothing yet; a process of ours ends with its connection, and with
this service, however that ends. Of the service's variables it gets those that Python and the resolver read, and no other.
Leaves to control.py: what is said, and when to connect again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Protocol

from egress.protocol import MAX_LINE

_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "RES_OPTIONS", "LOCALDOMAIN", "PYTHONPATH")
_END_S = 2.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Peer(Protocol):
    """What can be connected to."""

    async def connect(self) -> Streams:
        """Return a new connection; one before it has ended. Raises OSError."""

    async def aclose(self) -> None:
        """Free what it holds. May be called twice."""


class Beside:
    """A process of ours, a new one for each connection."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that runs, if one does."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def connect(self) -> Streams:
        """Start one."""
        await self.aclose()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "egress",
                    "--control-fd",
                    str(theirs.fileno()),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    cwd="/",
                    env={name: os.environ[name] for name in _KEPT if name in os.environ},
                    start_new_session=True,  # a Ctrl-C is the service's to act on
                )
            return await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE)
        except BaseException:
            ours.close()
            raise

    async def aclose(self) -> None:
        """End it, which its connection does unless it hangs."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


class Elsewhere:
    """A process that somebody else runs and that listens at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def connect(self) -> Streams:
        """Dial it."""
        return await asyncio.open_unix_connection(str(self._path), limit=MAX_LINE)

    async def aclose(self) -> None:
        """Nothing is held."""
