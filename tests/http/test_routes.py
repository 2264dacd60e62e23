"""Every route: no way in without a key, its documented example works, every error has its status and sentence."""

import asyncio
import errno
import json
from urllib.parse import urlencode

import pytest

from interpreter import errors, wire
from interpreter.executions.model import Answer
from interpreter.http import openapi
from interpreter.http.errors import STATUS, status_of
from interpreter.http.routes import ROUTES
from tests.http.scripted import KEY, OTHER_KEY, Served, serving

OPERATIONS = [
    pytest.param(route, method, operation, id=f"{method} {route.path}")
    for route in ROUTES
    for method, operation in route.operations.items()
]
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Version": "13",
}
FORM = b'--b\r\nContent-Disposition: form-data; name="x"; filename="data/new.csv"\r\n\r\na,b\r\n--b--\r\n'
PUBLIC = {"/healthz", "/openapi.json", "/docs"}


def target(route, example=None) -> str:
    """The path and query of an example; names that it does not have stand for themselves."""
    example = dict(example or {})
    path = route.path
    for name in route.names:
        path = path.replace(f"{{{name}}}", str(example.pop(name, name)))
    return path


def query(operation) -> str:
    known = operation.query.model_fields
    values = {name: value for name, value in operation.example.items() if name in known}
    return "?" + urlencode(values) if values else ""


@pytest.mark.parametrize(("route", "method", "operation"), OPERATIONS)
async def test_no_route_serves_without_a_key(served: Served, route, method, operation):
    for key in (None, "", "wrong", KEY[:-1]):
        reply = await served.call(method, target(route), key=key)
        if route.path in PUBLIC:
            assert reply.status == 200
        else:
            assert (reply.status, reply.code, reply.headers["www-authenticate"]) == (401, "unauthorized", "Bearer")
    assert served.service.calls == []


@pytest.mark.parametrize(
    "path", ["/v1/exec", "/v1/scopes/u1", "/", "/v1", "/v1/", "/nothing", "/metrics", "/docs/..", "/healthz/", "/%2e"]
)
async def test_no_method_and_no_path_is_served_without_a_key(served: Served, path):
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO", "prepare", "finish")
    for method in methods:
        assert (await served.call(method, path, key=None)).status == 401, method
    assert served.service.calls == []


@pytest.mark.parametrize("path", ["/v1/exec", "/v1/ws?scope=u1", "/jupyter/u1/a/api/kernels/x/channels", "/docs/x"])
async def test_an_upgrade_is_no_way_around_the_key(served: Served, path):
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "eHg=",
    }
    assert (await served.call("GET", path, key=None, **upgrade)).status == 401
    upgrade["Sec_WebSocket_Key"] = "short"
    assert (await served.call("GET", path, **upgrade)).status in (400, 404, 405)


@pytest.mark.parametrize("key", ["api_key", "token", "key", "X-API-Key", "access_token"])
async def test_a_key_in_the_query_is_no_key(served: Served, key):
    reply = await served.call("GET", f"/v1/scopes?{key}={KEY}", key=None)
    assert reply.status == 401
    assert KEY not in reply.body.decode()


@pytest.mark.parametrize(
    "headers", [{"X_API_Key": OTHER_KEY}, {"Authorization": f"bearer {KEY}"}, {"authorization": f"BEARER {OTHER_KEY}"}]
)
async def test_any_key_in_either_header_serves(served: Served, headers):
    assert (await served.call("GET", "/v1/scopes", key=None, **headers)).status == 200


@pytest.mark.parametrize(("route", "method", "operation"), OPERATIONS)
async def test_the_documented_example_works(served: Served, route, method, operation):
    if "{execution_id}" in route.path:
        await served.exec(execution_id=operation.example["execution_id"])
    if "/files/" in route.path:
        assert (await served.call("PUT", "/v1/files/u1/data/in.csv?session=chatA", b"a,b\n")).status == 201
    known = operation.body.model_fields
    body = {name: value for name, value in operation.example.items() if name in known} or None
    upgrade = UPGRADE if operation.upgrade else {}
    if operation.takes == "multipart/form-data":
        body, upgrade = FORM, {"Content_Type": "multipart/form-data; boundary=b"}
    reply = await served.call(method, target(route, operation.example) + query(operation), body, **upgrade)
    assert reply.status == (101 if operation.upgrade else 200)
    if operation.answer is not None:
        operation.answer.model_validate(reply.json)


async def test_who_takes_the_wrong_path_is_told_the_right_one(served: Served):
    assert "GET /docs" in (await served.call("GET", "/")).json["message"]
    assert "slash at the end" in (await served.call("GET", "/v1/files/u1?session=a")).json["message"]


@pytest.mark.parametrize(("route", "method", "operation"), OPERATIONS)
async def test_other_methods_are_refused_with_those_there_are(served: Served, route, method, operation):
    for other in {"GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "FOO"} - set(route.operations):
        reply = await served.call(other, target(route))
        assert (reply.status, reply.code) == (405, "method_not_allowed")
        assert set(route.operations) <= set(reply.headers["allow"].split(", "))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/exec/",
        "/V1/exec",
        "/v1//exec",
        "/metrics/x",
        "/v1/files",
        "/v1/scopes/u1/x",
        "/%2e%2e/exec",
    ],
)
async def test_any_other_path_is_404(served: Served, path):
    for method in ("GET", "POST", "FOO"):
        reply = await served.call(method, path)
        assert (reply.status, reply.code) == (404, "route_not_found")


@pytest.mark.parametrize(
    "name", ["..", ".", "a b", "%2e%2e", "a%2Fb", "..%2fx", "a%00", "a%0a", "%ff", "x" * 65, "é", "a;b", "a%252fb"]
)
async def test_a_name_in_a_path_is_checked_after_it_was_decoded(served: Served, name):
    for path in ("/v1/kernels/{}", "/v1/scopes/{}/sessions", "/v1/executions/{}"):
        target = path.format(name.replace(" ", "%20")).encode().decode("latin-1")
        reply = await served.call("GET", target)
        assert (reply.status, reply.code) == (400, "invalid_request"), path
    assert served.service.calls == []


@pytest.mark.parametrize(
    ("method", "path", "call"),
    [
        ("GET", "/v1/kernels/u1", ("kernels", "u1", None)),
        ("GET", "/v1/kernels/%751?session=chatA", ("kernels", "u1", "chatA")),
        ("POST", "/v1/kernels/u1/PY/interrupt?session=", ("interrupt", "u1", None, "python", "default")),
        ("POST", "/v1/kernels/u1/js/restart?context=b", ("restart", "u1", None, "node", "b")),
        ("DELETE", "/v1/kernels/u1/bash?session=s&context=b", ("delete", "u1", "s", "bash", "b")),
        ("DELETE", "/v1/scopes/u1/sessions/s", ("remove_session", "u1", "s", False, False)),
        ("DELETE", "/v1/scopes/u1/sessions/s?purge=true&force=true", ("remove_session", "u1", "s", True, True)),
        ("DELETE", "/v1/scopes/u1/sandbox?force=true", ("remove_sandbox", "u1", True)),
        ("DELETE", "/v1/scopes/u1?purge=true", ("remove_scope", "u1", True, False)),
        ("GET", "/v1/executions/abc", ("execution", "abc", None)),
    ],
)
async def test_a_call_reaches_the_service_as_it_was_meant(served: Served, method, path, call):
    await served.call(method, path)
    assert served.service.calls[-1] == call


async def test_a_body_where_none_belongs_is_refused_by_name(served: Served):
    reply = await served.call("DELETE", "/v1/scopes/u1", {"purge": True})
    assert (reply.status, reply.code) == (400, "unknown_field")
    assert (await served.call("DELETE", "/v1/scopes/u1", {})).status == 200


def test_every_error_has_a_status_and_a_sentence():
    for kind in errors.CODES.values():
        assert kind in STATUS, kind
    for kind in STATUS:
        assert (kind.__doc__ or "").strip().endswith("."), kind
    assert len({kind.code for kind in STATUS}) == len(STATUS)


@pytest.mark.parametrize("kind", STATUS)
async def test_every_error_is_answered_as_the_contract_says(served: Served, kind):
    served.service.fail = kind("What happened.")
    reply = await served.exec()
    assert reply.status == STATUS[kind] == status_of(kind(""))
    assert reply.json == {"code": kind.code, "message": "What happened.", "retryable": kind.retryable}
    assert reply.headers["content-type"] == "application/json"
    assert ("retry-after" in reply.headers) == (reply.status in (409, 429, 503, 507) and kind.retryable)


async def test_a_fault_of_ours_says_nothing_of_itself(served: Served, caplog):
    served.service.fail = RuntimeError("secret of the host: /etc/shadow")
    reply = await served.exec()
    assert (reply.status, reply.code) == (500, "internal_error")
    assert b"shadow" not in reply.body
    assert b"Traceback" not in reply.body
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["request failed"]


@pytest.mark.parametrize(
    ("number", "word"), [(errno.EMFILE, "open files"), (errno.ENOSPC, "disk"), (errno.ENOMEM, "memory")]
)
async def test_what_the_host_has_too_little_of_is_named(served: Served, caplog, number, word):
    served.service.fail = OSError(number, "secret of the host", "/etc/shadow")
    reply = await served.call("GET", "/v1/scopes")
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "runtime_unavailable", "5")
    assert word in json.loads(reply.body)["message"]
    assert b"shadow" not in reply.body
    assert [record.exc_info for record in caplog.records if record.levelname == "ERROR"] == [None]


async def test_the_service_answers_503_while_it_stops(served: Served):
    await served.exec(execution_id="mine")
    served.api.draining = True
    for method, path in [("POST", "/v1/exec"), ("GET", "/v1/scopes"), ("DELETE", "/v1/scopes/u1"), ("GET", "/healthz")]:
        reply = await served.call(method, path, {})
        assert (reply.status, reply.code) == (503, "shutting_down")
        assert "retry-after" in reply.headers
    assert (await served.call("GET", "/v1/executions/mine?scope=u1")).status == 200
    assert (await served.call("GET", "/v1/scopes", key=None)).status == 401


async def test_health_is_503_while_the_runtime_is_down(served: Served):
    assert (await served.call("GET", "/healthz", key=None)).json == {
        "status": "ok",
        "version": "0.0.0",
        "runtime": "fake",
    }
    assert (await served.call("GET", "/healthz")).json["warnings"] == ["the kernel is old"], "not for everybody"
    served.service.healthy = False
    reply = await served.call("GET", "/healthz", key=None)
    assert reply.status == 503
    assert reply.json == {
        "code": "runtime_unavailable",
        "message": "The engine is gone.",
        "retryable": True,
        "status": "unavailable",
        "version": "0.0.0",
        "runtime": "fake",
    }


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-1.2_X", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("a b", False),
        ("é", False),
        ("a;b", False),
    ],
)
async def test_a_sane_request_id_comes_back(served: Served, given, kept):
    for path in ("/v1/scopes", "/nothing"):
        reply = await served.call("GET", path, X_Request_ID=given)
        assert (reply.headers["x-request-id"] == given) is kept
        assert reply.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/scopes", "/healthz", "/docs", "/nothing"])
async def test_host_and_origin_hold_for_everything(served: Served, path):
    reply = await served.call("GET", path, Host="evil.example")
    assert (reply.status, reply.code) == (403, "forbidden_host")
    reply = await served.call("GET", path, Origin="https://evil.example")
    assert (reply.status, reply.code) == (403, "forbidden_origin")
    assert "access-control-allow-origin" not in reply.headers


async def test_a_listed_origin_may_ask_first_and_read_answers():
    async with serving(origins=("https://chat.example.org",)) as served:
        ask = {"Origin": "https://chat.example.org", "Access_Control_Request_Method": "POST"}
        reply = await served.call("OPTIONS", "/v1/exec", key=None, **ask)
        assert (reply.status, reply.body) == (204, b"")
        assert reply.headers["access-control-allow-origin"] == "https://chat.example.org"
        assert "X-API-Key" in reply.headers["access-control-allow-headers"]
        reply = await served.call("POST", "/v1/exec", {}, key=None, Origin="https://chat.example.org")
        assert reply.status == 401
        reply = await served.call("GET", "/v1/scopes", Origin="https://chat.example.org")
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "https://chat.example.org")
        reply = await served.call(
            "OPTIONS", "/v1/exec", key=None, Origin="https://evil.example", Access_Control_Request_Method="POST"
        )
        assert reply.status == 403
        reply = await served.call(
            "OPTIONS",
            "/v1/exec",
            key=None,
            Origin=f"http://127.0.0.1:{served.port}",
            Access_Control_Request_Method="POST",
        )
        assert reply.status == 401


async def test_head_is_get_without_a_body(served: Served):
    got, asked = await served.call("GET", "/v1/scopes"), await served.call("HEAD", "/v1/scopes")
    assert (asked.status, asked.headers["content-length"], asked.body) == (200, got.headers["content-length"], b"")


# --- the document ---------------------------------------------------------------------------------------------------


def document():
    return json.loads(openapi.document(ROUTES, "0.0.0"))


def references(value):
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_the_document_names_every_route_method_and_error():
    spec = document()
    assert spec["openapi"] == "3.1.0"
    assert {path: {m.upper() for m in methods} for path, methods in spec["paths"].items()} == {
        route.path: set(route.operations) for route in ROUTES
    }
    text = json.dumps(spec["paths"])
    for kind in STATUS:
        assert f"`{kind.code}`" in text, f"no operation documents {kind.code}"
    assert spec["components"]["schemas"]["ErrorBody"]["properties"]["code"]["enum"] == [kind.code for kind in STATUS]


def test_every_reference_of_the_document_leads_somewhere():
    spec = document()
    for reference in set(references(spec)):
        *_, kind, name = reference.split("/")
        assert name in spec["components"][kind]


def test_every_operation_of_the_document_is_whole():
    ids = []
    for path, methods in document()["paths"].items():
        for operation in methods.values():
            ids.append(operation["operationId"])
            assert operation["summary"].endswith(".")
            in_path = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert in_path == {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert all(answer["description"] for answer in operation["responses"].values())
            if path not in PUBLIC:
                assert {"401", "503"} <= set(operation["responses"])
    assert len(set(ids)) == len(ids)


def test_every_field_of_the_models_has_a_sentence():
    for name, schema in document()["components"]["schemas"].items():
        assert schema.get("description"), name
        for field, described in schema.get("properties", {}).items():
            assert described.get("description"), f"{name}.{field}"


def test_the_documented_answer_has_the_fields_of_the_real_one_in_order():
    assert tuple(wire.ExecAnswer.model_fields) == Answer.__struct_fields__


async def test_the_page_can_run_nothing_but_its_own_script(served: Served):
    reply = await served.call("GET", "/docs", key=None)
    policy = reply.headers["content-security-policy"]
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page = reply.body.decode()
    assert page.count("<script") == page.count("<style") == 1
    assert "http://" not in page
    assert "https://" not in page
    assert "innerHTML" not in page


async def test_many_calls_at_once_do_not_mix(served: Served):
    replies = await asyncio.gather(*(served.exec(execution_id=f"run-{n}") for n in range(50)))
    assert [reply.json["execution_id"] for reply in replies] == [f"run-{n}" for n in range(50)]
