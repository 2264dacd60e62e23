"""What we are measured against: kernels as they come, in the plainest loop of jupyter_client that is right."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client import AsyncKernelClient
from jupyter_client.connect import write_connection_file

from tests.bench.measure import NoAnswer
from tests.bench.sockets import Heard

_PATIENCE_S = 5
"""tslab now and then loses the message that it is idle again."""


class BareLoop:
    """One kernel, one client. A cell is over when its reply and its idle are there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: AsyncKernelClient) -> None:
        self._loop = loop
        self._client = client

    def cell(self, code: str) -> dict[str, Any]:
        """Return the MIME bundle of the result. Raises NoAnswer: a message that belongs to a whole answer did not come."""
        try:
            return self._loop.run_until_complete(self._cell(code))
        except Empty:
            raise NoAnswer from None

    def flood(self, code: str) -> Heard:
        """Return what came on stdout. Raises as ``cell`` does."""
        heard = Heard()
        try:
            self._loop.run_until_complete(self._cell(code, heard))
        except Empty:
            raise NoAnswer from None
        return heard

    async def _cell(self, code: str, heard: Heard | None = None) -> dict[str, Any]:
        request = self._client.execute(code)
        content: dict[str, Any] = {}
        while True:
            message = await self._client.get_iopub_msg(timeout=_PATIENCE_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "execute_result":
                content = message["content"]["data"]
            if heard is not None and message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                heard.text(message["content"]["text"])
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        while (await self._client.get_shell_msg(timeout=_PATIENCE_S))["parent_header"].get("msg_id") != request:
            pass
        return content


def stock_ipykernel(python: Path) -> list[str]:
    return [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]


@contextmanager
def bare_loop(
    argv: Sequence[str], directory: Path, *, tcp: bool = False, env: Mapping[str, str] | None = None
) -> Iterator[BareLoop]:
    """Start the kernel of ``argv``, over ipc sockets in ``directory`` or over tcp."""
    file = str(directory / "k.json")
    place = {"transport": "tcp", "ip": "127.0.0.1"} if tcp else {"transport": "ipc", "ip": str(directory / "k")}
    connection, _ = write_connection_file(file, key=secrets.token_hex(16).encode(), **place)
    kernel = subprocess.Popen(
        [word.replace("{connection_file}", connection) for word in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    loop = asyncio.new_event_loop()
    client = AsyncKernelClient(connection_file=connection)
    try:
        client.load_connection_file()

        async def ready() -> None:
            client.start_channels(hb=False)  # on a busy machine a start takes longer than the heartbeat has patience
            await client.wait_for_ready(timeout=60)

        loop.run_until_complete(ready())
        yield BareLoop(loop, client)
    finally:
        client.stop_channels()
        os.killpg(kernel.pid, signal.SIGKILL)
        kernel.wait()
        loop.close()
