"""The rows of streams: a cell over a WebSocket, floods, and the first byte."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench import gateways, measure, peers
from tests.bench.jupyter import bare_loop, stock_ipykernel
from tests.bench.rows import PYTHON, Caller, fresh
from tests.bench.sockets import Session
from tests.e2e.conftest import KEY, Cellbox

FLOODS = {
    "100,000 lines of 80 bytes": ('for n in range(100_000): print(f"{n:079}")', 100_000, 8_000_000),
    "one print of 20 MB": ('print("x" * 19_999_999)', 1, 20_000_000),
}

_TRIES = 3


def stateful_ws(service: Cellbox, caller: Caller) -> measure.Rows:
    """A cell over our WebSocket beside the same cell on the same kernel over that of Jupyter's servers."""
    rows = []
    for server, limit in ((gateways.KERNEL_GATEWAY, 0.15), (gateways.JUPYTER_SERVER, 0.2)):
        with (
            closing(Session(service, fresh("socket"))) as session,
            tempfile.TemporaryDirectory(prefix="b") as directory,
        ):
            rows.append(_beside(session, server, Path(directory), limit=limit))
    return rows


def _beside(session: Session, server: gateways.Server, directory: Path, *, limit: float) -> measure.Row:
    name, code = "stateful exec over a WebSocket", "40 + 2"
    assert session.cell(code).result == "42"
    try:
        with gateways.kernel_of(server, directory) as channels:
            assert channels.cell(code).result == "42"
            compared, other = f"{server.name}, same kernel", partial(channels.cell, code)
            return measure.against(name, partial(session.cell, code), compared, other, n=200, warm_up=20, limit=limit)
    except (peers.NotInstalled, measure.NoAnswer) as reason:
        print(f"nothing to compare with: {reason}", file=sys.stderr, flush=True)
        name += f" ({server.name} could not be run)"
        return measure.alone(name, lambda: measure.elapsed_ms(partial(session.cell, code)), n=200, warm_up=20, limit=10)


def flood(service: Cellbox, caller: Caller) -> measure.Rows:
    """Much output over our WebSocket, complete each time, beside the bare loop of jupyter_client on stock ipykernel; and what
    Kernel Gateway delivers of the same."""
    delivered = {name: _delivered(code, lines) for name, (code, lines, _) in FLOODS.items()}
    rows = []
    with (
        closing(Session(service, fresh("flood"))) as session,
        tempfile.TemporaryDirectory(prefix="b") as directory,
        bare_loop(stock_ipykernel(PYTHON), Path(directory)) as bare,
    ):
        for name, (code, lines, size) in FLOODS.items():

            def ours(code: str = code, whole: tuple[int, int] = (lines, size)) -> None:
                heard = session.cell(code)
                assert (heard.lines, heard.size) == whole, f"{heard} of {whole}"

            def theirs(code: str = code, whole: tuple[int, int] = (lines, size)) -> None:
                heard = bare.flood(code)
                if (heard.lines, heard.size) != whole:
                    raise measure.NoAnswer

            compared = f"jupyter_client on stock ipykernel ({delivered[name]})"
            rows.append(measure.against(f"{name}, complete", ours, compared, theirs, n=10, warm_up=2, limit=1.5))
    return rows


def _delivered(code: str, lines: int) -> str:
    """What Kernel Gateway delivers of a flood at best, in words. Each try has a new server: one that has left something out goes
    on to do so for a while."""
    server = gateways.KERNEL_GATEWAY
    found = []
    try:
        for _ in range(_TRIES):
            with (
                tempfile.TemporaryDirectory(prefix="b") as directory,
                gateways.kernel_of(server, Path(directory)) as channels,
                contextlib.suppress(measure.NoAnswer),
            ):
                found.append(channels.cell(code))
    except peers.NotInstalled as reason:
        print(f"nothing to show beside: {reason}", file=sys.stderr, flush=True)
        return f"{server.name} could not be run"
    if not found:
        return f"{server.name}: no whole answer"
    best = max(found, key=lambda heard: heard.size)
    return f"{server.name} delivers at most {best.lines:,} of {lines:,} lines, {best.size:,} bytes"


def first_byte(service: Cellbox, caller: Caller) -> measure.Rows:
    """From the request to the first output of code that then sleeps, over both kinds of stream."""
    code, scope = "print(1); import time; time.sleep(0.05)", fresh("first")
    address = urlsplit(service.url)
    body = json.dumps({"scope": scope, "language": "python", "stateful": True, "code": code})
    headers = {"X-API-Key": KEY, "Accept": "text/event-stream"}
    with (
        closing(Session(service, scope)) as session,
        closing(http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)) as connection,
    ):

        def over_socket() -> float:
            took = measure.elapsed_ms(lambda: session.until_output(code))
            session.until_finished()
            return took

        def over_events() -> float:
            began = time.perf_counter()
            connection.request("POST", "/v1/exec", body, headers)
            response = connection.getresponse()
            while response.readline() != b"event: stdout\n":
                pass
            took = (time.perf_counter() - began) * 1000
            response.read()
            return took

        return [
            measure.alone(f"first byte of `print(1); sleep` over {kind}", step, n=50, warm_up=5, limit=20)
            for kind, step in (("a WebSocket", over_socket), ("server-sent events", over_events))
        ]


ROWS: dict[str, Callable[[Cellbox, Caller], measure.Rows]] = {
    "stateful-ws": stateful_ws,
    "flood": flood,
    "first-byte": first_byte,
}
