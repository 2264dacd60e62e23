"""The way out, from inside: a port of the loopback whose connections are carried to the proxy, byte for byte.

The sandbox has no network. What programs take for a proxy is this listener; the proxy itself is a process of the host that
listens on a socket in the link directory, and knows by that socket whose connections they are. Nothing is parsed or decided here.

Promises: a connection holds two descriptors and two buffers of ``_CHUNK`` and no more; there are at most ``MOST`` at a time, and
the others wait; who does not read stops who writes. Where nobody listens outside, the client is told so with a 502: there is no
other way.
Leaves to the service: whether there is a way out at all (``BootConfig.egress``); to the proxy: everything about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from .protocol import BootConfig

HOST, PORT = "127.0.0.1", 3128
MOST = 256
"""Connections at a time: the proxy takes fewer, and has the others wait."""

_BACKLOG = 128
_CHUNK = 64 * 1024
_HEAD = 64 * 1024
_HEAD_S = 5.0
_LINGER_S = 1.0
"""For a client to read why it was refused: closed before, it might see a broken connection instead."""

_PAUSE_S = 0.1
"""Where there is no descriptor for a further connection."""

_URL = f"http://{HOST}:{PORT}"
_LOCAL = "localhost,127.0.0.1,::1"
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
_BUNDLE_NAMES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)
_NODE = f"--require {Path(__file__).with_name('node_proxy.cjs')}"

_SENTENCE = "sandbox egress is not available: the proxy of this service does not answer; try again in a moment"
_REFUSAL = (
    f"HTTP/1.1 502 {_SENTENCE}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(_SENTENCE) + 1}\r\n"
    f"Connection: close\r\n\r\n{_SENTENCE}\n"
).encode()


def completed(config: BootConfig, *, root: Path = Path("/")) -> BootConfig:
    """Return ``config`` with the variables that make programs use the way out, if there is one.

    root: of the file system in which bundles of certificates are looked for. The system's one is named to all that would bring
    their own, since the host may have added an authority of its own to it.
    """
    if not config.egress:
        return config
    return msgspec.structs.replace(config, environment={**config.environment, **_variables(root)})


def _variables(root: Path) -> dict[str, str]:
    found = {"NODE_USE_ENV_PROXY": "1", "NODE_OPTIONS": _NODE, "GIT_TERMINAL_PROMPT": "0", "PIP_RETRIES": "1"}
    for name, value in (("HTTP_PROXY", _URL), ("HTTPS_PROXY", _URL), ("ALL_PROXY", _URL), ("NO_PROXY", _LOCAL)):
        found |= {name: value, name.lower(): value}
    bundle = next((each for each in _BUNDLES if (root / each.lstrip("/")).is_file()), None)
    return found if bundle is None else found | dict.fromkeys(_BUNDLE_NAMES, bundle)


@contextlib.asynccontextmanager
async def way_out(path: str) -> AsyncIterator[None]:
    """Carry connections to the socket at ``path`` while entered; nothing where that is empty. Raises OSError: no port is free."""
    if not path:
        yield
        return
    way = WayOut(path)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(way.serve(), name="way out")
        try:
            yield
        finally:
            serving.cancel()


class WayOut:
    """Listens from its making on, until ``serve`` ends. path: of the socket outside. Raises OSError: somebody listens there."""

    def __init__(self, path: str, *, port: int = PORT) -> None:
        self._path = path
        self._listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listening.setblocking(False)
            self._listening.bind((HOST, port))
            self._listening.listen(_BACKLOG)
        except OSError:
            self._listening.close()
            raise

    @property
    def port(self) -> int:
        """On which it listens."""
        return int(self._listening.getsockname()[1])

    async def serve(self) -> None:
        """Carry connections until cancelled."""
        room = asyncio.Semaphore(MOST)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await room.acquire()
                    try:
                        client, _ = await loop.sock_accept(self._listening)
                    except OSError:
                        room.release()
                        await asyncio.sleep(_PAUSE_S)
                        continue
                    tasks.create_task(_carried(client, self._path, room), name="connection to the proxy")
        finally:
            self._listening.close()


async def _carried(client: socket.socket, path: str, room: asyncio.Semaphore) -> None:
    """Carry one connection to its end. Never raises but for a cancellation."""
    try:
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as proxy:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setblocking(False)
            proxy.setblocking(False)
            if not await _connected(proxy, path):
                await _refuse(client)
                return
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pour(client, proxy), name="to the proxy")
                tasks.create_task(_pour(proxy, client), name="from the proxy")
    except* OSError:  # one of the two has broken off, or there is no descriptor: so does the other
        pass
    finally:
        room.release()


async def _connected(proxy: socket.socket, path: str) -> bool:
    try:
        await asyncio.get_running_loop().sock_connect(proxy, path)
    except OSError:
        return False
    return True


async def _pour(source: socket.socket, target: socket.socket) -> None:
    """Pass on what ``source`` sends until it has sent all, and then say so; the other direction goes on. Raises OSError."""
    loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(_CHUNK))
    while count := await loop.sock_recv_into(source, buffer):
        await loop.sock_sendall(target, buffer[:count])
        await asyncio.sleep(0)  # neither of the two waits while both ends are quick, and others have their turns here
    target.shutdown(socket.SHUT_WR)


async def _refuse(client: socket.socket) -> None:
    """Answer a client that nobody outside takes. Its request is read first: unread, closing would drop the answer."""
    loop, head = asyncio.get_running_loop(), b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_HEAD_S):
            while b"\r\n\r\n" not in head and len(head) < _HEAD and (more := await loop.sock_recv(client, _CHUNK)):
                head = head[-3:] + more if len(head) + len(more) > _HEAD else head + more
            await loop.sock_sendall(client, _REFUSAL)
            client.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_LINGER_S):
                while await loop.sock_recv(client, _CHUNK):
                    pass
