"""The fields of an exec, each as the contract says it, against a real server."""

import asyncio
import json

import pytest

from interpreter.errors import CwdNotFound, QueueFull, QueueTimeout
from interpreter.http.operations import ExecLimits
from tests.http.scripted import KEY, Served, serving, until


def body(**fields):
    return {"scope": "u1", "language": "python", "code": "1"} | fields


@pytest.mark.parametrize(
    ("fields", "status", "code", "said"),
    [
        ({"scope": None}, 400, "invalid_request", "scope must be a string"),
        ({"scope": ""}, 400, "invalid_request", "scope must be 1 to 64"),
        ({"scope": "a/b"}, 400, "invalid_request", "scope must be 1 to 64"),
        ({"scope": ".."}, 400, "invalid_request", "scope must be 1 to 64"),
        ({"scope": "a\n"}, 400, "invalid_request", "scope must be 1 to 64"),
        ({"scope": "ä"}, 400, "invalid_request", "scope must be 1 to 64"),
        ({"scope": "x" * 65}, 400, "invalid_request", "scope must be 1 to 64"),
        ({"scope": 1}, 400, "invalid_request", "scope must be a string"),
        ({"session": "a b"}, 400, "invalid_request", "session must be 1 to 64"),
        ({"session": 1}, 400, "invalid_request", "session must be a string"),
        ({"context": "a.b"}, 400, "invalid_request", "context must be 1 to 64"),
        ({"context": ""}, 400, "invalid_request", "context must be 1 to 64"),
        ({"execution_id": "a b"}, 400, "invalid_request", "execution_id must be 1 to 64"),
        ({"execution_id": ""}, 400, "invalid_request", "execution_id must be 1 to 64"),
        ({"language": "cobol"}, 400, "unknown_language", "python, node, bash"),
        ({"language": ""}, 400, "unknown_language", "python, node, bash"),
        ({"language": "../python", "stateful": True}, 400, "unknown_language", "python, node, bash"),
        ({"language": None}, 400, "invalid_request", "language must be a string"),
        ({"language": 3}, 400, "invalid_request", "language must be a string"),
        ({"code": None}, 400, "invalid_request", "code must be a string"),
        ({"code": ["1"]}, 400, "invalid_request", "code must be a string"),
        ({"timeout": "30"}, 400, "invalid_request", "timeout must be a number"),
        ({"timeout": True}, 400, "invalid_request", "timeout must be a number"),
        ({"timeout": -1}, 400, "invalid_request", "timeout must not be negative"),
        ({"timeout": [1]}, 400, "invalid_request", "timeout must be a number"),
        ({"queue_timeout": "1"}, 400, "invalid_request", "queue_timeout must be a number"),
        ({"queue_timeout": -0.5}, 400, "invalid_request", "queue_timeout must not be negative"),
        ({"stateful": "true"}, 400, "invalid_request", "stateful must be true or false"),
        ({"stateful": 1}, 400, "invalid_request", "stateful must be true or false"),
        ({"env": []}, 400, "invalid_request", "env must be an object"),
        ({"env": {"A": 1}}, 400, "invalid_request", "env['A'] must be a string"),
        ({"env": {"A": None}}, 400, "invalid_request", "env['A'] must be a string"),
        ({"env": {"1A": ""}}, 400, "invalid_request", "env has the name '1A'"),
        ({"env": {"": ""}}, 400, "invalid_request", "env has the name ''"),
        ({"env": {"A=B": ""}}, 400, "invalid_request", "env has the name 'A=B'"),
        ({"env": {"É": ""}}, 400, "invalid_request", "env has the name"),
        ({"env": {"A": "x\0y"}}, 400, "invalid_request", "env has a NUL in A"),
        ({"env": {"A": "é" * 32 * 1024}}, 400, "invalid_request", "the limit is 65536"),
        ({"cwd": ""}, 400, "invalid_request", "cwd must be a path"),
        ({"cwd": "a\0b"}, 400, "invalid_request", "cwd must be a path"),
        ({"cwd": "x" * 4097}, 400, "invalid_request", "cwd must be a path"),
        ({"cwd": 1}, 400, "invalid_request", "cwd must be a string"),
        ({"stdin": 1}, 400, "invalid_request", "stdin must be a string"),
        ({"stdin": "x", "stateful": True}, 400, "unsupported_field", "stdin"),
        ({"stdin": "x", "stateful": True, "language": "Python3"}, 400, "unsupported_field", "stdin"),
        ({"files": {"a": 1}}, 400, "invalid_request", "files['a'] must be text or"),
        ({"files": {"a": None}}, 400, "invalid_request", "files['a'] must be text or"),
        ({"files": {"a": {"base64": 1}}}, 400, "invalid_request", "files['a'] must be text or"),
        ({"files": {"a": {"text": "x"}}}, 400, "invalid_request", "files['a'] must be text or"),
        (
            {"files": {"a": {"base64": "eA=="}, "b": {"base64": "e"}}},
            400,
            "invalid_request",
            "files['b']: This is no base64",
        ),
        ({"files": {"a": {"base64": "eA==\n"}}}, 400, "invalid_request", "files['a']: This is no base64"),
        ({"files": {"../a": "b"}}, 400, "invalid_request", "files['../a']: The path has"),
        ({"files": {"/a": "b"}}, 400, "invalid_request", "files['/a']: The path has"),
        ({"files": {"a/": "b"}}, 400, "invalid_request", "files['a/']: The path has"),
        ({"files": {"": "b"}}, 400, "invalid_request", "files['']: The path has"),
        ({"files": {"a\0": "b"}}, 400, "invalid_request", "The path has a NUL byte"),
        ({"files": {"a" * 256: "b"}}, 400, "invalid_request", "more than 255 bytes"),
        ({"files": {str(n): "" for n in range(101)}}, 400, "invalid_request", "files has 101 entries"),
        ({"files": []}, 400, "invalid_request", "files must be an object"),
        ({"detach": "no"}, 400, "invalid_request", "detach must be true or false"),
        ({"allow_input": True}, 400, "unsupported_field", "allow_input needs a stateful execution"),
        ({"allow_input": 1, "stateful": True}, 400, "invalid_request", "allow_input must be true or false"),
        ({"statefull": True}, 400, "unknown_field", "did you mean 'stateful'?"),
        ({"Code": "1"}, 400, "unknown_field", "did you mean 'code'?"),
        ({"zzz": "1"}, 400, "unknown_field", "there are allow_input, code, context, cwd, "),
        ({"context": "b"}, 400, "unsupported_field", "context needs a stateful execution"),
        ({"frobnicate": 1}, 400, "unknown_field", "'frobnicate'"),
    ],
)
async def test_a_field_is_refused_by_name(served: Served, fields, status, code, said):
    reply = await served.exec(**fields)
    assert (reply.status, reply.code) == (status, code)
    assert said in reply.json["message"]
    assert served.service.requests == []


@pytest.mark.parametrize("missing", ["scope", "language", "code"])
async def test_a_missing_field_is_named(served: Served, missing):
    fields = body()
    del fields[missing]
    reply = await served.call("POST", "/v1/exec", fields)
    assert (reply.status, reply.code, reply.json["message"]) == (400, "invalid_request", f"{missing} is required.")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"scope": "u1", "language": "python", "code": "1", "timeout": NaN}',
        b'{"scope": "u1", "language": "python", "code": "1", "timeout": Infinity}',
        b'{"scope": "u1", "language": "python", "code": "1", "timeout": 1e999}',
        b'{"scope": "u1", "language": "python", "code": "1", "timeout": 1' + b"0" * 400 + b"}",
        b'{"scope": "u1", "language": "python", "code": "1", "code": "2"}',
        b'{"scope": "u1", "language": "python", "code": "\\ud800"}',
        b'{"scope": "u1", "language": "python", "code": "\xff"}',
        b"scope=u1",
        b"[]",
        b"",
    ],
)
async def test_what_is_no_such_json_is_refused(served: Served, raw):
    reply = await served.call("POST", "/v1/exec", raw)
    assert (reply.status, reply.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({}, {"session": None, "language": "python", "stateful": False, "context": "default", "timeout_s": 60.0}),
        ({"session": ""}, {"session": None}),
        ({"session": None}, {"session": None}),
        ({"session": "chatA"}, {"session": "chatA"}),
        ({"timeout": None}, {"timeout_s": 60.0}),
        ({"timeout": 0}, {"timeout_s": 60.0}),
        ({"timeout": 0.25}, {"timeout_s": 0.25}),
        ({"timeout": 601}, {"timeout_s": 600.0}),
        ({"timeout": 1e300}, {"timeout_s": 600.0}),
        ({"queue_timeout": None}, {"queue_timeout_s": 30.0}),
        ({"queue_timeout": 0}, {"queue_timeout_s": 0}),
        ({"queue_timeout": 1e300}, {"queue_timeout_s": 3600.0}),
        ({"code": ""}, {"code": ""}),
        ({"code": "\ufeffprint(1)"}, {"code": "print(1)"}),
        ({"code": "\ufeff\ufeff"}, {"code": "\ufeff"}),
        ({"code": "é\U0001f600\0"}, {"code": "é\U0001f600\0"}),
        ({"language": "PY"}, {"language": "python"}),
        ({"language": "JavaScript"}, {"language": "node"}),
        ({"language": "Shell"}, {"language": "bash"}),
        ({"language": "IR", "stateful": True}, {"language": "ir", "stateful": True}),
        ({"env": None}, {"env": {}}),
        ({"env": {"FOO": "bar", "_x1": ""}}, {"env": {"FOO": "bar", "_x1": ""}}),
        ({"stateful": None, "context": None}, {"stateful": False, "context": "default"}),
        ({"stateful": True, "context": "b"}, {"stateful": True, "context": "b"}),
        ({"cwd": "sub/dir"}, {"cwd": "sub/dir"}),
        ({"stdin": "a\0b"}, {"stdin": "a\0b"}),
        ({"stdin": "x", "stateful": True, "language": "bash"}, {"stdin": "x"}),
        ({"stdin": "x", "stateful": True, "language": "js"}, {"language": "node", "stdin": "x"}),
        ({"stdin": "x", "stateful": True, "language": "IR"}, {"language": "ir", "stdin": "x"}),
        ({"stdin": "", "stateful": True}, {"stdin": None}),
        ({"execution_id": "run-1"}, {"execution_id": "run-1"}),
        ({"files": None, "detach": False, "allow_input": None}, {"code": "1"}),
        ({"files": {}, "detach": None, "allow_input": False}, {"code": "1"}),
    ],
)
async def test_a_field_means_what_the_contract_says(served: Served, fields, meant):
    reply = await served.exec(**fields)
    assert reply.status == 200
    (request,) = served.service.requests
    assert {name: getattr(request, name) for name in meant} == meant


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain",
        "x",
    ],
)
async def test_json_is_taken_whatever_the_content_type_says(served: Served, kind):
    headers = {} if kind is None else {"Content_Type": kind}
    assert (await served.call("POST", "/v1/exec", body(), **headers)).status == 200


@pytest.mark.parametrize(
    ("code", "status"),
    [("x" * 1024, 200), ("x" * 1025, 413), ("é" * 512, 200), ("é" * 513, 413), ("\ufeff" + "x" * 1024, 200)],
)
async def test_code_has_a_limit_in_bytes(code, status):
    async with serving(limits=ExecLimits(max_code_bytes=1024)) as served:
        reply = await served.exec(code=code)
        assert reply.status == status
        assert status == 200 or reply.code == "code_too_large"


async def test_the_six_first_fields_come_first(served: Served):
    answer = (await served.exec()).json
    assert list(answer)[:6] == ["stdout", "stderr", "exit_code", "timed_out", "truncated", "duration_ms"]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/event-stream", "text/event-stream; charset=utf-8"),
        ("Text/Event-Stream;q=0.9", "text/event-stream; charset=utf-8"),
        ("application/json, text/event-stream", "application/json"),
        ("*/*", "application/json"),
        ("text/html", "application/json"),
    ],
)
async def test_events_are_sent_where_json_is_not_wanted(served: Served, accept, kind):
    reply = await served.call("POST", "/v1/exec", body(), Accept=accept)
    assert (reply.status, reply.headers["content-type"]) == (200, kind)
    assert served.service.requests[0].stream == kind.startswith("text/event-stream")


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (QueueFull("Full.", retry_after_s=7), 429, "7"),
        (QueueTimeout("Late."), 429, "1"),
        (CwdNotFound("No such directory."), 400, None),
    ],
)
async def test_an_error_has_its_status_and_says_when_to_come_back(served: Served, error, status, retry_after):
    served.service.fail = error
    reply = await served.exec()
    assert (reply.status, reply.headers.get("retry-after")) == (status, retry_after)
    assert reply.json == {"code": error.code, "message": str(error), "retryable": error.retryable}


async def request_and_leave(served: Served, *, half: bool = False, **fields) -> None:
    _, writer = await served.connect()
    content = json.dumps(body(**fields)).encode()
    head = f"POST /v1/exec HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await asyncio.wait_for(served.service.submitted.wait(), 20)
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_leaves_cancels_its_exec(served: Served):
    served.service.hold = True
    await request_and_leave(served)
    await asyncio.wait_for(served.service.was_cancelled.wait(), 20)
    assert served.service.cancelled == ["made-1"]


async def test_an_exec_that_was_named_goes_on_when_its_client_leaves(served: Served):
    served.service.hold = True
    await request_and_leave(served, execution_id="mine")
    reply = await served.call("GET", "/v1/executions/mine?scope=u1")
    assert reply.json == {"phase": "running", "execution_id": "mine"}
    await until(lambda: not served.server.connections)
    assert served.service.cancelled == []
    served.service.cancel(served.service.execution("mine", "u1"))


async def test_an_answered_exec_is_not_cancelled_when_the_connection_closes(served: Served):
    assert (await served.exec()).status == 200
    await until(lambda: not served.server.connections)
    assert served.service.cancelled == []


async def test_a_finished_execution_is_shown_with_its_answer(served: Served):
    answer = (await served.exec(execution_id="mine")).json
    shown = (await served.call("GET", "/v1/executions/mine?scope=u1")).json
    assert shown == {"phase": "finished"} | answer


async def test_deleting_an_execution_ends_it(served: Served):
    served.service.hold = True
    running = asyncio.get_running_loop().create_task(served.exec(execution_id="mine"))
    await asyncio.wait_for(served.service.submitted.wait(), 20)
    reply = await served.call("DELETE", "/v1/executions/mine?scope=u1")
    assert (reply.status, reply.json["phase"], reply.json["status"]) == (200, "finished", "interrupted")
    assert (await running).json["status"] == "interrupted"
    assert (await served.call("DELETE", "/v1/executions/mine?scope=u1")).status == 200
