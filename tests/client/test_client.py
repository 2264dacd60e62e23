"""Both clients against a real service."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interpreter import client as clients
from interpreter.client import (
    AsyncClient,
    CellboxError,
    Client,
    ExecutionFailed,
    InvalidRequest,
    NotFound,
    NotReachable,
    Refused,
    Unauthorized,
)
from tests.client.conftest import Cutting
from tests.e2e.conftest import KEY, Cellbox, running

Cut = Callable[..., tuple[Client, Cutting]]


def test_a_session_remembers_and_a_plain_exec_does_not(client: Client, scope: str) -> None:
    session = client.session(scope, "chatA")
    assert session.run("x = 41").state == "new"
    result = session.run("x + 1")
    assert (result.text, result.state, result.ok) == ("42", "kept", True)
    assert client.exec("print(x)", scope=scope, session="chatA").status == "error"
    assert client.exec("console.log(6 * 7)", "node", scope=scope).stdout == "42\n"
    (kernel,) = session.kernels()
    assert (kernel.language, kernel.state, kernel.execution_count) == ("python", "idle", 2)
    session.restart()
    assert session.run("x").error.name == "NameError"  # type: ignore[union-attr]
    session.end_kernel()
    assert session.kernels() == []


def test_a_session_as_a_context_manager_removes_its_sandbox_and_keeps_its_files(client: Client, scope: str) -> None:
    with client.session(scope, "chatA") as session:
        session.run("open('note', 'w').write('kept')")
        assert [each.session for each in client.sessions(scope)] == ["chatA"]
    assert client.sessions(scope) == []
    assert session.run("open('note').read()").text == "'kept'"
    assert scope in client.scopes()
    assert client.remove_scope(scope, purge=True).purged
    assert scope not in client.scopes()


def test_what_the_code_did_wrong_is_a_result_and_check_raises_it(client: Client, scope: str) -> None:
    result = client.exec("1/0", scope=scope, stateful=True)
    assert not result.ok
    with pytest.raises(ExecutionFailed, match="ZeroDivisionError: division by zero") as failed:
        result.check()
    assert failed.value.result is result
    assert client.exec("1", scope=scope, stateful=True).check().text == "1"
    with pytest.raises(ExecutionFailed, match="exit code 3"):
        client.exec("exit 3", "bash", scope=scope).check()


def test_a_result_shows_its_main_result_in_a_notebook(client: Client, scope: str) -> None:
    code = "import pandas\nprint('out')\npandas.DataFrame({'n': [1]})"
    shown = client.exec(code, scope=scope, stateful=True)._repr_mimebundle_()
    assert shown["text/plain"] == "out\n   n\n0  1"
    assert "<table" in shown["text/html"]
    code = "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()"
    result = client.exec(code, scope=scope, stateful=True)
    assert result.images[0].startswith(b"\x89PNG")
    assert "image/png" in result._repr_mimebundle_()
    assert [chart["kind"] for chart in result.charts[0]["charts"]] == ["line"]
    code = "from IPython.display import Javascript\nJavascript('alert(1)')"
    assert set(client.exec(code, scope=scope, stateful=True)._repr_mimebundle_()) == {"text/plain"}


def test_a_result_says_what_it_is_in_a_line(client: Client, scope: str) -> None:
    code = "import matplotlib.pyplot as plt\nprint('x' * 10_000)\nopen('made', 'w').close()\nplt.plot([1])\nplt.show()\n1/0"
    said = repr(client.exec(code, scope=scope, stateful=True))
    assert len(said) < 1000
    for part in ("status='error'", "exit_code=1", "ZeroDivisionError: division by zero", "image/png", "files=['made']"):
        assert part in said


def test_a_stream_brings_events_and_its_result(client: Client, scope: str) -> None:
    session = client.session(scope)
    session.run("pass")
    stream = session.stream("print(1, end='')\n40 + 2")
    found = list(stream)
    assert [event.type for event in found] == ["started", "stdout", "result", "finished"]
    assert [event.seq for event in found] == [0, 1, 2, 3]
    assert (found[1].text, found[2].data) == ("1", {"text/plain": "42"})
    result = stream.result()
    assert (result.stdout, result.text, result.execution_id) == ("1", "42", stream.execution_id)
    again = client.attach(result.execution_id, scope=scope, after=1)
    assert [event.type for event in again] == ["result", "finished"]


def test_a_stream_answers_input_and_is_cancelled(client: Client, scope: str) -> None:
    stream = client.session(scope).stream("print(input('name? '), end='')\nwhile True: pass", allow_input=True)
    said = []
    for event in stream:
        if event.type == "input_request":
            stream.answer("Ada")
        if event.type == "stdout":
            said.append(event.text)
            stream.cancel()
    assert said == ["Ada"]
    assert stream.result().status == "interrupted"


def test_what_was_submitted_is_looked_at_and_cancelled(client: Client, scope: str) -> None:
    name = client.session(scope).submit("print(1, end='')\nwhile True: pass")
    stream = client.attach(name, scope=scope)
    assert next(event.text for event in stream if event.type == "stdout") == "1"
    assert (client.execution(name, scope=scope).phase, client.execution(name, scope=scope).result) == ("running", None)
    client.cancel(name, scope=scope)
    assert stream.result().status == "interrupted"
    assert client.execution(name, scope=scope).result == stream.result()


def test_a_session_interrupts_what_runs(client: Client, scope: str) -> None:
    session = client.session(scope)
    assert session.run("x = 1").ok
    assert session.interrupt() is False
    stream = session.stream("print(1, end='')\nwhile True: pass")
    for event in stream:
        if event.type == "stdout":
            assert session.interrupt() is True
    assert (stream.result().status, session.run("x").text) == ("interrupted", "1")


def test_refusals_have_the_code_of_the_service(client: Client, cellbox: Cellbox, scope: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        client.exec("1", "cobol", scope=scope)
    assert (refused.value.code, refused.value.status, refused.value.retryable) == ("unknown_language", 400, False)
    assert refused.value.request_id
    with pytest.raises(InvalidRequest, match="statefull"):
        client.exec("1", scope=scope, statefull=True)  # type: ignore[call-arg]
    with pytest.raises(NotFound):
        client.execution("nobody", scope=scope)
    with pytest.raises(NotFound):
        list(client.attach("nobody", scope=scope))
    with Client(cellbox.url, "a-wrong-key-of-the-tests") as stranger, pytest.raises(Unauthorized):
        stranger.scopes()
    with pytest.raises(Refused, match="cwd") as late:
        list(client.session(scope).stream("1", cwd="nowhere"))
    assert late.value.code == "cwd_not_found"


def test_names_that_would_lead_elsewhere_are_refused_before_anything_is_sent(client: Client) -> None:
    for call in (
        lambda: client.sessions("../scopes"),
        lambda: client.session("u1", ".."),
        lambda: client.execution("../..", scope="u1"),
        lambda: client.session("u1").interrupt(".."),
        lambda: client.session("u1").files.read("../u2/x"),
        lambda: client.session("u1").files.write("a/../../u2/x", b""),
        lambda: client.session("u1").files.list(".."),
        lambda: client.session("u1\n"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            call()
        assert refused.value.status is None


def test_a_key_is_needed(monkeypatch: pytest.MonkeyPatch, cellbox: Cellbox) -> None:
    monkeypatch.delenv("CELLBOX_API_KEY", raising=False)
    with pytest.raises(InvalidRequest, match="CELLBOX_API_KEY"):
        Client(cellbox.url)
    monkeypatch.setenv("CELLBOX_API_KEY", KEY)
    monkeypatch.setenv("CELLBOX_URL", cellbox.url)
    with Client() as client:
        assert client.health().status == "ok"


# --- what is lost on the way ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [None, -1, 0, 20])
def test_an_exec_whose_connection_breaks_runs_once(cutting: Cut, scope: str, cut: int | None) -> None:
    client, transport = cutting(cut)
    result = client.exec("open('runs', 'a').write('x'); print(open('runs').read())", scope=scope)
    assert (result.stdout, len(transport.sent)) == ("x\n", 2)


@pytest.mark.parametrize("cut", [-1, 0])
def test_what_may_have_been_done_and_cannot_be_told_apart_is_not_sent_again(cutting: Cut, scope: str, cut: int) -> None:
    client, transport = cutting(cut)
    with pytest.raises(NotReachable) as lost:
        client.session(scope).restart()
    assert (lost.value.code, len(transport.sent)) == ("not_reachable", 1)


def test_a_stream_that_is_cut_anywhere_has_every_event_once(client: Client, cutting: Cut, scope: str) -> None:
    code = "import sys\nfor n in range(3):\n    print(n); print(n, file=sys.stderr)\n40 + 2"
    whole = client.session(scope).stream(code)
    list(whole)
    name = whole.result().execution_id
    found = [event.fields for event in client.attach(name, scope=scope)]
    length = sum(len(str(event)) + 30 for event in found)
    for cut in range(0, length, 37):
        broken, transport = cutting(cut, cut // 2, None, -1)
        assert [event.fields for event in broken.attach(name, scope=scope)] == found
        assert len(transport.sent) <= 5
    broken, transport = cutting(*range(0, 400, 100))
    assert "".join(e.text or "" for e in broken.session(scope).stream(code) if e.type == "stdout") == "0\n1\n2\n"
    bodies = {request.content for request in transport.sent}
    assert len(bodies) == 1
    assert len(transport.sent) > 1


def test_a_service_that_restarts_is_waited_for(tmp_path: Path, cellbox: Cellbox, scope: str) -> None:
    with running(tmp_path) as service, Client(service.url, KEY) as client:
        session = client.session(scope)
        session.run("x = 41")
        service.end(signal.SIGKILL)
        starting = threading.Thread(target=service.start)
        starting.start()
        assert session.run("x + 1").text == "42"
        starting.join()


def test_nobody_there_is_said_with_what_was_waited_for() -> None:
    with (
        Client("http://127.0.0.1:1", "a-key-for-nobody-at-all", patience_s=0) as client,
        pytest.raises(NotReachable) as lost,
    ):
        client.health()
    assert (lost.value.code, lost.value.retryable) == ("not_reachable", True)


def test_ctrl_c_ends_what_runs(client: Client, cellbox: Cellbox, scope: str) -> None:
    session = client.session(scope)
    session.run("x = 1")

    def interrupt() -> None:
        deadline = time.monotonic() + 10
        with Client(cellbox.url, KEY) as other:
            while [each.state for each in other.session(scope).kernels()] != ["busy"]:
                assert time.monotonic() < deadline
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        session.run("while True: pass")
    thread.join()
    assert session.run("x").text == "1"


# --- the same for asyncio -------------------------------------------------------------------------------------------


async def test_the_async_client_does_the_same(calling: AsyncClient, scope: str) -> None:
    async with calling.session(scope, "chatA") as session:
        assert (await session.run("x = 41")).state == "new"
        stream = session.stream("print(1, end='')\nx + 1")
        assert [event.type async for event in stream] == ["started", "stdout", "result", "finished"]
        assert (await stream.result()).text == "42"
        (kernel,) = await session.kernels()
        assert kernel.execution_count == 2
    assert await calling.sessions(scope) == []
    with pytest.raises(InvalidRequest, match="language"):
        await calling.exec("1", "cobol", scope=scope)
    codes = [calling.exec(f"print({n})", scope=scope) for n in range(5)]
    assert [result.stdout for result in await asyncio.gather(*codes)] == [f"{n}\n" for n in range(5)]


async def test_a_cancelled_call_ends_what_runs(calling: AsyncClient, scope: str) -> None:
    session = calling.session(scope)
    await session.run("x = 1")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(session.run("while True: pass"))
        while [each.state for each in await session.kernels()] != ["busy"]:
            pass
        task.cancel()
    assert (await session.run("x")).text == "1"


@pytest.mark.parametrize("name", ["Client", "Session", "Stream", "Files"])
def test_both_clients_have_the_same_methods(name: str) -> None:
    def methods(kind: type) -> dict[str, Any]:
        return {
            method: list(inspect.signature(made).parameters.values())[1:]
            for method, made in vars(kind).items()
            if inspect.isfunction(made) and not method.startswith("_")
        }

    one, other = methods(getattr(clients, name)), methods(getattr(clients, f"Async{name}"))
    assert str(one) == str(other)


def test_all_errors_are_of_one_tree() -> None:
    kinds = [kind for kind in vars(clients).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 10
    assert all(issubclass(kind, CellboxError) for kind in kinds)
