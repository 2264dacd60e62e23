"""The resolver of the host, asked in threads."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from egress.names import Host
from egress.resolve import SystemResolver, Unresolved
from tests.egress.conftest import LIMIT_S


@pytest.fixture
def resolver() -> Iterator[SystemResolver]:
    made = SystemResolver()
    yield made
    made.close()


def answering(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    found = [
        (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


async def test_a_name_of_this_host(resolver: SystemResolver) -> None:
    assert bytes((127, 0, 0, 1)) in await resolver.resolve(Host("localhost"))


async def test_each_address_comes_once_in_the_order_of_the_resolver(
    resolver: SystemResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, "2606:4700::1111", "93.184.216.34", "2606:4700::1111", "fe80::1%eth0")
    assert await resolver.resolve(Host("a.example")) == [
        socket.inet_pton(socket.AF_INET6, "2606:4700::1111"),
        socket.inet_aton("93.184.216.34"),
    ]


@pytest.mark.parametrize("error", [socket.gaierror(-2, "not known"), OSError(24, "too many"), UnicodeError("label")])
async def test_what_a_resolver_cannot_say_is_unresolved(
    resolver: SystemResolver, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(Unresolved):
        await resolver.resolve(Host("a.example"))


async def test_a_name_without_an_address_is_unresolved(
    resolver: SystemResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch)
    with pytest.raises(Unresolved):
        await resolver.resolve(Host("a.example"))


async def test_who_has_waited_long_enough_goes_on_while_the_thread_is_busy(
    resolver: SystemResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: go_on.wait(LIMIT_S) and [])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await resolver.resolve(Host("slow.example"))
    go_on.set()
