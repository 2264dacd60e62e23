"""``/metrics`` over HTTP: who gets it, and which answers and streams are counted."""

from interpreter import errors
from interpreter.http.errors import STATUS
from tests.http.scripted import Served, until
from tests.scraped import samples as scraped


async def samples(served: Served) -> dict[tuple[str, ...], float]:
    reply = await served.call("GET", "/metrics")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return scraped(reply.body)


async def test_a_stopping_service_tells_its_metrics_and_nobody_without_the_key_gets_them(served: Served):
    served.api.draining = True
    assert (await samples(served))["process_open_fds",] > 3
    assert (await served.call("GET", "/metrics", key=None)).code == "unauthorized"
    assert (await served.call("HEAD", "/metrics")).status == 200


async def test_refusals_are_counted_by_code_wherever_they_come_from(served: Served):
    await served.call("GET", "/v1/scopes", key=None)
    await served.call("GET", "/v1/nothing")
    await served.exec(statefull=True)
    served.service.fail = errors.TooManyExecutions("Too many.")
    await served.exec()
    await served.raw(b"this is not HTTP\r\n\r\n")
    await served.raw(b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n")
    counted = {code: value for (name, code, *_), value in _refusals(await samples(served))}
    assert counted == {
        "unauthorized": 1,
        "route_not_found": 1,
        "unknown_field": 1,
        "too_many_executions": 1,
        "invalid_request": 1,
        "head_too_large": 1,
    }
    assert counted.keys() <= {kind.code for kind in STATUS}


async def test_an_event_stream_is_counted_while_it_is_open(served: Served):
    served.service.hold = True
    reader, writer = await served.connect()
    body = b'{"scope": "u1", "language": "python", "code": "1"}'
    head = f"POST /v1/exec HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {served.key}\r\nAccept: text/event-stream\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(b"event: started")
    assert (await samples(served))["cellbox_streams_open", "events"] == 1
    (execution,) = served.service._executions.values()
    served.service.cancel(execution)
    await reader.readuntil(b"event: finished")
    await until(lambda: b'cellbox_streams_open{kind="events"} 0.0' in served.service.metrics.text())
    writer.close()


def _refusals(found: dict[tuple[str, ...], float]):
    return [(name, value) for name, value in found.items() if name[0] == "cellbox_requests_refused_total"]
