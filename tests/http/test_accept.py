"""No descriptor is left: callers are told so, the loop does not spin, and it goes on by itself."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from interpreter.http import accept
from interpreter.http.server import ConnectionLimits
from tests.http.scripted import Served, read_reply, serving, until


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Within it this process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):  # noqa: PT012 - until it is raised
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dialled(served: Served) -> socket.socket:
    """A connection that the kernel has taken and the service not yet: nothing of the loop has run since."""
    client = socket.create_connection(("127.0.0.1", served.port))
    client.setblocking(False)
    return client


async def test_who_comes_when_no_descriptor_is_left_is_told_so_and_who_is_there_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await read_reply(reader)).status == 200
        clients = [dialled(served) for _ in range(20)]
        loop = asyncio.get_running_loop()
        with no_descriptor_left():
            for client in clients:
                said = await asyncio.wait_for(loop.sock_recv(client, 4096), 20)
                assert said.startswith(b"HTTP/1.1 429 ")
                assert b"\r\nRetry-After: " in said
                assert b"no descriptor left" in said
                client.close()
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await read_reply(reader)).status == 200
        assert (await served.exec()).status == 200
        writer.close()
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert ["no descriptor is left" in record.getMessage() for record in errors] == [True], "said once, not for each"


async def test_without_a_way_to_refuse_it_waits_and_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = 0
    accept_now = accept.Acceptor._accept

    def counted(self: accept.Acceptor) -> None:
        nonlocal rounds
        rounds += 1
        accept_now(self)

    monkeypatch.setattr(accept.Acceptor, "_accept", counted)
    monkeypatch.setattr(accept, "_reserve", lambda: None)
    async with serving() as served:
        client = dialled(served)
        with no_descriptor_left():
            began = time.process_time()
            await asyncio.sleep(3 * accept.PAUSE_S)
            assert 1 <= rounds <= 4
            assert time.process_time() - began < accept.PAUSE_S
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(loop.sock_recv(client, 4096), 20)).startswith(b"HTTP/1.1 200 ")
        client.close()


async def test_an_acceptor_may_be_closed_twice_and_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "_reserve", lambda: None)
    listening = socket.create_server(("127.0.0.1", 0))
    took: list[socket.socket] = []
    acceptor = accept.Acceptor(listening, take=lambda connection, _: took.append(connection), refuse=lambda _: None)
    with socket.create_connection(listening.getsockname()):
        with no_descriptor_left():
            await asyncio.sleep(accept.PAUSE_S / 2)
            acceptor.close()
            acceptor.close()
        await asyncio.sleep(2 * accept.PAUSE_S)
    assert took == []
    listening.close()


async def test_all_addresses_together_have_so_many_connections() -> None:
    async with serving(connections=ConnectionLimits(max_connections=2)) as served:
        held = [await served.connect() for _ in range(2)]
        await until(lambda: served.server.connections == 2)
        reader, writer = await served.connect()
        assert (await read_reply(reader)).code == "too_many_connections"
        for _, one in [*held, (reader, writer)]:
            one.close()
        await until(lambda: not served.server.connections)
        assert (await served.exec()).status == 200
