"""Streams with the clients that people have: ``websockets``, two hundred at once, curl, a browser, and all that are cut off."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect

from tests import browser
from tests.e2e.conftest import CONFINED, KEY, Cellbox
from tests.e2e.test_streams import execute, socket, text, until_finished

RUNTIMES = CONFINED[:1]
ROOT = Path(__file__).parents[2]

# --- cut off anywhere -------------------------------------------------------------------------------------------------

TELLING = """
import sys, time
from IPython.display import clear_output, display
for n in range(4):
    print("é" * 50, n)
    display({"text/plain": f"shown {n}"}, raw=True)
    time.sleep(0.002)
    print("\\U0001f600", n, file=sys.stderr)
clear_output()
"value"
"""
SAID = "".join(f"{'é' * 50} {n}\n" for n in range(4)), "".join(f"\U0001f600 {n}\n" for n in range(4))
examples = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def check(found: list[dict[str, Any]]) -> None:
    """Each event once and in order, and all that was said with them."""
    assert [event["seq"] for event in found] == list(range(len(found)))
    assert (text(found), text(found, "stderr")) == SAID
    shown = [event["data"]["text/plain"] for event in found if event["type"] == "display"]
    assert shown == [f"shown {n}" for n in range(4)]
    kinds = [event["type"] for event in found if event["type"] != "kernel"]
    assert (kinds[0], kinds[-3:], kinds.count("finished")) == ("started", ["clear_output", "result", "finished"], 1)


@given(cuts=st.lists(st.integers(0, 1500), max_size=6), by_header=st.booleans())
@examples
def test_server_sent_events_cut_at_any_byte_go_on(
    cellbox: Cellbox, scope: str, cuts: list[int], by_header: bool
) -> None:
    """Of an event that was cut in two the client has nothing; it asks again from the last whole one."""
    name = secrets.token_hex(8)
    run = {"scope": scope, "language": "python", "stateful": True, "code": TELLING, "execution_id": name}
    found = whole_events(received(cellbox, 1, "POST", "/v1/exec", json=run))
    for most in [*cuts, 2**30]:
        if by_header:
            headers = {"Last-Event-ID": str(found[-1]["seq"])} if found else {}
            found += whole_events(received(cellbox, most, "POST", "/v1/exec", json=run, headers=headers))
        else:
            query = {"scope": scope, "after": len(found) - 1}
            found += whole_events(received(cellbox, most, "GET", f"/v1/executions/{name}/events", params=query))
        if found and found[-1]["type"] == "finished":
            break
    check(found)


def received(cellbox: Cellbox, most: int, method: str, url: str, **request: Any) -> bytes:
    """The first bytes of a stream, or all if it ends before; then the connection is cut."""
    headers = {"Accept": "text/event-stream", **request.pop("headers", {})}
    data = b""
    with cellbox.client.stream(method, url, headers=headers, **request) as response:
        assert response.status_code == 200, response.read()
        for piece in response.iter_raw():
            data += piece
            if len(data) >= most:
                break
    return data[:most]


def whole_events(data: bytes) -> list[dict[str, Any]]:
    """What a client has of these bytes: an event is there with the empty line behind it."""
    events = []
    for frame in data.split(b"\n\n")[:-1]:
        if not frame.startswith(b":"):
            fields = dict(line.split(b": ", 1) for line in frame.split(b"\n"))
            event = json.loads(fields[b"data"])
            assert (fields[b"id"], fields[b"event"]) == (b"%d" % event["seq"], event["type"].encode())
            events.append(event)
    return events


@given(cuts=st.lists(st.integers(1, 4), max_size=6))
@examples
def test_websockets_cut_after_any_event_go_on(cellbox: Cellbox, scope: str, cuts: list[int]) -> None:
    """The connection goes without a word, as when a cable is pulled."""
    run = {"language": "python", "stateful": True, "code": TELLING, "execution_id": secrets.token_hex(8)}

    async def follow() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for most in [*cuts, 2**30]:
            client = await connect(socket_url(cellbox, scope), additional_headers={"X-API-Key": KEY})
            if found:
                message = {"type": "attach", "execution_id": run["execution_id"], "after": found[-1]["seq"]}
            else:
                message = {"type": "execute", "id": "1", **run}
            await client.send(json.dumps(message))
            for _ in range(most):
                async with asyncio.timeout(20):
                    found.append(json.loads(await client.recv()))
                if found[-1]["type"] == "finished":
                    break
            client.transport.abort()
            await client.wait_closed()
            if found[-1]["type"] == "finished":
                break
        return found

    check(asyncio.run(follow()))


def socket_url(cellbox: Cellbox, scope: str) -> str:
    return f"{cellbox.url.replace('http', 'ws')}/v1/ws?scope={scope}&session=chatA"


# --- many, and from elsewhere -----------------------------------------------------------------------------------------


async def test_two_hundred_sockets_each_hear_their_own_execution_whole(cellbox: Cellbox, scope: str) -> None:
    """On eight kernels of one sandbox, while another caller is served."""
    url, number = socket_url(cellbox, scope), 200
    opened, began = asyncio.Barrier(number), asyncio.Semaphore(40)

    async def one(name: int) -> str:
        async with began:
            client = await connect(url, additional_headers={"X-API-Key": KEY})
        async with client, asyncio.timeout(60):
            await opened.wait()
            run = {"language": "python", "stateful": True, "context": f"c{name % 8}"}
            code = f"print({name})\ndisplay({name})"
            await client.send(json.dumps({"type": "execute", "id": str(name), "code": code, **run}))
            heard = [json.loads(await client.recv())]
            while heard[-1]["type"] != "finished":
                assert heard[-1]["type"] != "refused", heard
                heard.append(json.loads(await client.recv()))
        assert {event["id"] for event in heard} == {str(name)}
        assert [event["seq"] for event in heard] == list(range(len(heard)))
        assert [event["data"]["text/plain"] for event in heard if event["type"] == "display"] == [str(name)]
        return text(heard)

    async with asyncio.TaskGroup() as group:
        sockets = [group.create_task(one(name)) for name in range(number)]
        other = await asyncio.to_thread(cellbox.client.get, "/v1/scopes")
    assert [task.result() for task in sockets] == [f"{name}\n" for name in range(number)]
    assert other.status_code == 200


def test_another_connection_interrupts_and_both_hear_the_same(cellbox: Cellbox, scope: str) -> None:
    with socket(cellbox, scope) as one, socket(cellbox, scope) as other:
        execute(one, "mine", "print(1)\nwhile True: pass", execution_id="loop")
        heard = [json.loads(one.recv(20))]
        while heard[-1]["type"] != "stdout":
            heard.append(json.loads(one.recv(20)))
        other.send(json.dumps({"type": "attach", "id": "theirs", "execution_id": "loop"}))
        other.send(json.dumps({"type": "interrupt", "id": "theirs"}))
        heard += until_finished(one)
        assert [event | {"id": "mine"} for event in until_finished(other)] == heard
    assert heard[-1]["status"] == "interrupted"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_shows_output_as_it_happens_and_goes_on_where_it_was_cut(cellbox: Cellbox, scope: str) -> None:
    code = "import os, time\nprint(1)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint(2)"
    body = json.dumps({"scope": scope, "language": "python", "code": code, "execution_id": "curled"})
    command = ["curl", "-sSN", "-H", f"X-API-Key: {KEY}", "-H", "Accept: text/event-stream", "-d", body]
    command.append(f"{cellbox.url}/v1/exec")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as curl:
        assert curl.stdout is not None
        begun = b""
        while text(whole_events(begun)) != "1\n":
            begun += curl.stdout.readline()
        curl.kill()
    (cellbox.root / scope / "workspace" / "go").touch()
    last = whole_events(begun)[-1]["seq"]
    done = subprocess.run([*command, "-H", f"Last-Event-ID: {last}"], capture_output=True, check=True, timeout=60)
    found = whole_events(begun) + whole_events(done.stdout)
    assert [event["seq"] for event in found] == list(range(len(found)))
    assert (text(found), found[-1]["status"]) == ("1\n2\n", "ok")


# --- a page in a browser ----------------------------------------------------------------------------------------------

TELL = """const tell = what => fetch("/told", {method: "POST", body: JSON.stringify(what)})
onunhandledrejection = event => tell(`${event.reason}`)"""
SOCKET_PAGE = """<meta charset="utf-8"><script>
TELL
const key = btoa('KEY').replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', ''), seen = []
const socket = new WebSocket('SOCKET', ['cellbox', 'cellbox.key.' + key]), send = what => socket.send(JSON.stringify(what))
const run = {language: 'python', code: 'print(input())', stateful: true, allow_input: true}
socket.onopen = () => send({type: 'execute', id: '1', ...run})
socket.onmessage = message => { seen.push(JSON.parse(message.data)); next[seen.at(-1).type]?.() }
const next = {input_request: () => send({type: 'input', id: '1', text: 'grüße'}),
  finished: () => tell([socket.protocol, socket.extensions, seen])}
socket.onerror = () => tell('refused')
</script>"""
FETCH_PAGE = r"""<script type="module">
TELL
const headers = {'X-API-Key': 'KEY', Accept: 'text/event-stream'}
const read = async (until, found = '') => {
  const reader = (await fetch('URL', {method: 'POST', headers, body: JSON.stringify(RUN)})).body.getReader()
  for (let piece; !found.includes(until) && !(piece = await reader.read()).done;) found += new TextDecoder().decode(piece.value)
  await reader.cancel()
  return found.slice(0, found.lastIndexOf('\n\n') + 2)
}
const begun = await read('"text":"1')
headers['Last-Event-ID'] = [...begun.matchAll(/^id: (\d+)/gm)].at(-1)[1]
await tell([begun, await read('event: finished')])
</script>"""


def filled(page: str, **words: str) -> str:
    for word, value in {"TELL": TELL, "KEY": KEY, **words}.items():
        page = page.replace(word, value)
    return page


@browser.needed
def test_a_page_of_a_listed_origin_runs_code_over_a_websocket(
    serve: Callable[..., Cellbox], scope: str, tmp_path: Path
) -> None:
    with browser.page({}) as page:
        service = serve(allowed_origins=page.url)
        page.files["/"] = filled(SOCKET_PAGE, SOCKET=socket_url(service, scope))
        protocol, extensions, seen = json.loads(page.opened(tmp_path / "profile"))
        assert (protocol, extensions) == ("cellbox", "")
        kinds = dict.fromkeys(event["type"] for event in seen if event["type"] != "kernel")
        assert list(kinds) == ["started", "input_request", "stdout", "finished"]
        assert (text(seen), seen[-1]["status"]) == ("grüße\n", "ok")
        assert KEY not in service.log


@browser.needed
def test_the_page_of_the_contract_works_as_it_stands_there(
    serve: Callable[..., Cellbox], scope: str, tmp_path: Path
) -> None:
    (example,) = re.findall(r"```js\n(.*?)```", (ROOT / "interpreter/API.md").read_text(), re.DOTALL)
    written = "ws://127.0.0.1:8090/v1/ws?scope=u1"
    assert written in example
    listening = "console.log = event => { seen.push(event); if (event.type == 'finished') tell(seen) }"
    with browser.page({}) as page:
        service = serve(allowed_origins=page.url)
        script = f"{TELL}\nconst KEY = '{KEY}', seen = []\n{listening}\n{example}"
        page.files["/"] = f"<script>{script.replace(written, socket_url(service, scope))}</script>"
        seen = json.loads(page.opened(tmp_path / "profile"))
    assert (text(seen), seen[-1]["status"]) == ("1\n", "ok")


@browser.needed
def test_a_page_of_another_origin_opens_no_websocket(cellbox: Cellbox, scope: str, tmp_path: Path) -> None:
    with browser.page({"/": filled(SOCKET_PAGE, SOCKET=socket_url(cellbox, scope))}) as page:
        assert json.loads(page.opened(tmp_path / "profile")) == "refused"
    assert not (cellbox.root / scope).exists()


@browser.needed
def test_a_page_reads_server_sent_events_and_comes_back(
    serve: Callable[..., Cellbox], scope: str, tmp_path: Path
) -> None:
    code = "import time\nprint(1)\ntime.sleep(0.2)\nprint(2)"
    run = {"scope": scope, "language": "python", "code": code, "execution_id": "fetched"}
    with browser.page({}) as page:
        service = serve(allowed_origins=page.url)
        page.files["/"] = filled(FETCH_PAGE, URL=f"{service.url}/v1/exec", RUN=json.dumps(run))
        begun, rest = json.loads(page.opened(tmp_path / "profile"))
    assert "finished" not in begun
    found = whole_events((begun + rest).encode())
    assert [event["seq"] for event in found] == list(range(len(found)))
    assert (text(found), found[-1]["status"]) == ("1\n2\n", "ok")
