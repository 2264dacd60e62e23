"""Where one sandbox dials: a socket in its own directory that takes exactly one connection.

Promises: identity is the listening socket, nothing else (no peer credentials). After ``accept``, successful or not, and
after ``close``, the socket file is gone and nothing listens. Descriptors are close-on-exec.
Leaves to its owner: making and removing the directory, which no tenant can write, and that nobody else listens there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path

from sandboxd.protocol import LINK_SOCKET

from interpreter.link.errors import LinkTimeout

_LONGEST = 103
"""Bytes of a path that a socket can have on every system."""


class Listener:
    """Listens in ``directory`` from its making on. uid, gid: who may connect besides the service itself."""

    def __init__(self, directory: Path, *, uid: int | None = None, gid: int | None = None) -> None:
        self._path = directory / LINK_SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            _bind(self._socket, self._path)
            os.chmod(self._path, 0o600)
            if uid is not None:
                os.chown(self._path, uid, -1 if gid is None else gid, follow_symlinks=False)
            self._socket.listen(1)
        except BaseException:
            self.close()
            raise

    async def accept(self, *, within_s: float) -> socket.socket:
        """Return the first connection and stop listening. Raises LinkTimeout when none came in time."""
        # Not sock_accept: cancelled in the moment when somebody dials, it loses the connection, which nobody closes then.
        loop, listening, dialled = asyncio.get_running_loop(), self._socket.fileno(), asyncio.Event()
        loop.add_reader(listening, dialled.set)
        try:
            async with asyncio.timeout(within_s):
                while True:
                    await dialled.wait()
                    dialled.clear()
                    with contextlib.suppress(BlockingIOError, ConnectionAbortedError):  # it has gone again
                        connection, _ = self._socket.accept()
                        connection.setblocking(False)
                        return connection
        except TimeoutError as error:
            raise LinkTimeout("nothing dialled in time") from error
        finally:
            loop.remove_reader(listening)
            self.close()

    def close(self) -> None:
        """Stop listening and remove the socket file. May be called any number of times."""
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


def _bind(listening: socket.socket, path: Path) -> None:
    """Bind to ``path``, however long it is. A socket that is there already was left by a service that is gone."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    if len(os.fsencode(path)) <= _LONGEST:
        listening.bind(str(path))
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listening.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
