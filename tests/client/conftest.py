"""Fixtures: ``cellbox`` is a real service, shared by a module; ``client`` and ``calling`` are clients of it, sync and async;
``scope`` is a fresh scope name; ``cutting`` makes clients whose connections break."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest

from interpreter.client import AsyncClient, Client, steps
from tests.e2e.conftest import KEY, Cellbox, bubblewrap_is_there, running


@pytest.fixture(scope="module")
def cellbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cellbox]:
    if not bubblewrap_is_there():
        pytest.skip("needs root and bubblewrap: apt-get install bubblewrap")
    with running(tmp_path_factory.mktemp("client")) as service:
        yield service


@pytest.fixture
def client(cellbox: Cellbox) -> Iterator[Client]:
    with Client(cellbox.url, KEY) as made:
        yield made


@pytest.fixture
async def calling(cellbox: Cellbox) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cellbox.url, KEY) as made:
        yield made


@pytest.fixture
def scope() -> str:
    return f"s{secrets.token_hex(4)}"


class Cutting(httpx.HTTPTransport):
    """Breaks the answers to its first requests: each after so many bytes of its body; None breaks before the request is sent,
    -1 after it was sent and before its answer."""

    def __init__(self, *cuts: int | None) -> None:
        super().__init__()
        self.cuts = list(cuts)
        self.sent: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        cut = self.cuts.pop(0) if self.cuts else 2**62
        if cut is None:
            raise httpx.ConnectError("no way")
        response = super().handle_request(request)
        if cut < 0:
            response.read()
            response.close()
            raise httpx.RemoteProtocolError("gone")
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Cut(response.stream, cut)
        return response


class _Cut(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, cut: int) -> None:
        self._stream = stream
        self._left = cut

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            yield chunk[: self._left]
            self._left -= len(chunk)
            if self._left < 0:
                raise httpx.ReadError("cut")

    def close(self) -> None:
        self._stream.close()


@pytest.fixture
def cutting(cellbox: Cellbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Client, Cutting]]]:
    monkeypatch.setattr(steps, "_FIRST_PAUSE_S", 0.001)
    made: list[Client] = []

    def make(*cuts: int | None) -> tuple[Client, Cutting]:
        transport = Cutting(*cuts)
        made.append(Client(cellbox.url, KEY, transport=transport))
        return made[-1], transport

    yield make
    for client in made:
        client.close()
