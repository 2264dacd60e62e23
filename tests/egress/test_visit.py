"""Requests of plain HTTP and tunnels through the real proxy to a real origin."""

from __future__ import annotations

from tests.egress.conftest import Egress, Origin


async def test_a_request_reaches_the_origin(egress: Egress, origin: Origin) -> None:
    answer = await egress.ask(
        b"GET http://origin.example:%d/a?b=c HTTP/1.1\r\nHost: origin.example:%d\r\nConnection: close\r\n\r\n"
        % (origin.port, origin.port)
    )
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    assert origin.heads == [b"GET /a?b=c HTTP/1.1\r\nHost: origin.example:%d\r\n\r\n" % origin.port]


async def test_a_host_that_is_not_in_the_allowlist_is_refused_and_not_looked_up(egress: Egress, origin: Origin) -> None:
    answer = await egress.ask(b"CONNECT other.example:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 sandbox egress denied: host other.example is not in allowlist\r\n")
    assert egress.names.asked == []
    assert egress.reasons == ["not_allowed"]
