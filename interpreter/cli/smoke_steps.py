"""The steps of ``cellbox smoke``: calls of the service, and what has to come back."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx

_APPEARS_S = 30.0
_STREAMS = ("events", "stdout", "stderr")

Json = dict[str, Any]


class StepFailed(Exception):
    """The service answered otherwise than it has to. Text: what came."""


class Caller:
    """Calls of the service, and which routes have been called.

    scope: that may be filled. disposable: that may be deleted as a whole; the same, unless the scope has data of somebody.
    """

    def __init__(self, client: httpx.Client, key: str, *, scope: str, disposable: str) -> None:
        self._client = client
        self._key = key
        self.scope = scope
        self.disposable = disposable
        self.session = f"smoke-{secrets.token_hex(6)}"
        self.covered: set[tuple[str, str]] = set()

    def call(
        self,
        method: str,
        route: str,
        parts: Mapping[str, str] | None = None,
        *,
        status: int = 200,
        code: str | None = None,
        key: str | None = None,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        files: Mapping[str, tuple[str, bytes]] | None = None,
    ) -> httpx.Response:
        """Return the answer to a call of ``route``, which has to have this status, and this code if it is an error.

        parts: of the path. body: as JSON; content: as it is; files: of a form.
        key: another one than the service's; empty for none. Raises StepFailed.
        """
        key = self._key if key is None else key
        path = route.format(**{name: quote(text, safe="") for name, text in (parts or {}).items()})
        try:
            answer = self._client.request(
                method,
                path,
                json=body,
                content=content,
                files=files,
                params=query,
                headers={"X-API-Key": key} if key else {},
            )
        except httpx.HTTPError as error:
            raise StepFailed(f"{method} {path}: {error or type(error).__name__}") from error
        self.covered.add((method, route))
        if answer.status_code != status or (code is not None and _field(answer, "code") != code):
            wanted = f"{status} {code or ''}".strip()
            raise StepFailed(f"{method} {path}: {wanted} expected, {answer.status_code} came: {answer.text[:500]}")
        return answer

    def exec(self, language: str, code: str, *, session: str | None = None, **fields: Any) -> Json:
        """Return the answer of an exec in our session, or another one."""
        body = {"scope": self.scope, "session": session or self.session, "language": language, "code": code, **fields}
        return dict(self.call("POST", "/v1/exec", body=body).json())

    def kernels(self) -> list[tuple[str, str]]:
        """Return language and state of each kernel of our session."""
        listed = self.call("GET", "/v1/kernels/{scope}", {"scope": self.scope}, query={"session": self.session}).json()
        return sorted((kernel["language"], kernel["state"]) for kernel in listed["kernels"])

    def sessions(self) -> list[str | None]:
        """Return the sessions of our scope that have a sandbox."""
        listed = self.call("GET", "/v1/scopes/{scope}/sessions", {"scope": self.scope}).json()
        return [each["session"] for each in listed["sessions"]]


def health(caller: Caller) -> None:
    """Raise StepFailed unless the service says that it is well."""
    about = caller.call("GET", "/healthz", key="").json()
    _expect(about["status"] == "ok" and about["version"] and about["runtime"], about)


def _documents(caller: Caller) -> None:
    document = caller.call("GET", "/openapi.json", key="").json()
    _expect("post" in document["paths"]["/v1/exec"], sorted(document["paths"]))
    page = caller.call("GET", "/docs", key="")
    _expect(page.headers["content-type"].startswith("text/html"), page.headers["content-type"])


def _metrics(caller: Caller) -> None:
    told = caller.call("GET", "/metrics")
    _expect(told.headers["content-type"].startswith("text/plain"), told.headers["content-type"])
    _expect("\ncellbox_executions_total{" in told.text, told.text)


def _refusals(caller: Caller) -> None:
    caller.call("GET", "/v1/scopes", key="", status=401, code="unauthorized")
    caller.call("GET", "/v1/scopes", key="x" * 32, status=401, code="unauthorized")
    good = {"scope": caller.scope, "language": "python", "code": "1"}
    misspelled = caller.call("POST", "/v1/exec", body={**good, "statefull": True}, status=400)
    _expect("statefull" in _field(misspelled, "message"), misspelled.text)
    caller.call("POST", "/v1/exec", body={**good, "language": "cobol"}, status=400, code="unknown_language")
    caller.call("POST", "/v1/exec", body={**good, "scope": "../x"}, status=400)
    caller.call("GET", "/v1/nothing", status=404)
    caller.call("GET", "/v1/executions/{execution_id}", {"execution_id": "none"}, query=_of(caller), status=404)
    caller.call("PUT", "/v1/exec", status=405)
    caller.call("GET", "/v1/ws", query=_of(caller), status=400, code="invalid_request")  # without an upgrade
    for part in _STREAMS:
        caller.call("GET", f"/v1/executions/{{execution_id}}/{part}", {"execution_id": "none"}, status=404)
    route = "/v1/executions/{execution_id}/input"
    caller.call("POST", route, {"execution_id": "none"}, body={"text": "x"}, status=404)


def _stream(caller: Caller) -> None:
    body = {**_of(caller), "session": caller.session, "language": "python", "code": "print(6 * 7)", "detach": True}
    one = {"execution_id": caller.call("POST", "/v1/exec", body=body, status=202).json()["execution_id"]}
    told = caller.call("GET", "/v1/executions/{execution_id}/events", one).text
    _expect("event: started" in told and "event: finished" in told, told)
    output = caller.call("GET", "/v1/executions/{execution_id}/stdout", one)
    _expect(output.text == "42\n", output.text)


def _stateless(language: str, code: str) -> Callable[[Caller], None]:
    def step(caller: Caller) -> None:
        answer = caller.exec(language, code)
        _expect((answer["stdout"], answer["exit_code"], answer["state"]) == ("42\n", 0, None), answer)

    return step


def _stateful(language: str, first: str, then: str) -> Callable[[Caller], None]:
    def step(caller: Caller) -> None:
        new = caller.exec(language, first, stateful=True)
        _expect((new["status"], new["state"], new["generation"]) == ("ok", "new", 1), new)
        kept = caller.exec(language, then, stateful=True)
        _expect((kept["stdout"], kept["status"], kept["state"]) == ("42\n", "ok", "kept"), kept)

    return step


def _results(caller: Caller) -> None:
    answer = caller.exec("python", "6 * 7", stateful=True)
    _expect([each["data"]["text/plain"] for each in answer["results"]] == ["42"], answer)
    failed = caller.exec("python", "1 / 0", stateful=True)
    _expect(
        (failed["status"], failed["error"]["name"], failed["state"]) == ("error", "ZeroDivisionError", "kept"), failed
    )


def _timeout(caller: Caller) -> None:
    answer = caller.exec("python", "while True: pass", stateful=True, timeout=1)
    _expect((answer["timed_out"], answer["exit_code"], answer["state"]) == (True, 124, "kept"), answer)


def _apart(caller: Caller) -> None:
    other = f"{caller.session}-b"
    caller.exec("bash", "echo 42 > /opt/workspace/mine; mkdir -p /opt/user/.smoke; echo 42 > /opt/user/.smoke/ours")
    answer = caller.exec(
        "bash", "find /opt/workspace -mindepth 1; cat /opt/user/.smoke/ours; rm -r /opt/user/.smoke", session=other
    )
    _expect((answer["stdout"], answer["exit_code"]) == ("42\n", 0), answer)


def _files(caller: Caller) -> None:
    one = {"scope": caller.scope, "path": "smoke/in.txt"}
    ours, route = {"session": caller.session}, "/v1/files/{scope}/{path}"
    stored = caller.call("PUT", route, one, query=ours, content=b"42\n", status=201).json()
    _expect((stored["path"], stored["size"]) == ("smoke/in.txt", 3), stored)
    answer = caller.exec("bash", "cat smoke/in.txt; rm smoke/in.txt; echo 43 > smoke/out.txt")
    _expect((answer["stdout"], answer["exit_code"]) == ("42\n", 0), answer)
    sent = caller.call("GET", route, {**one, "path": "smoke/out.txt"}, query=ours)
    _expect(sent.content == b"43\n", sent.text)
    listed = caller.call("GET", route, {**one, "path": "smoke"}, query=ours).json()
    _expect([entry["name"] for entry in listed["entries"]] == ["out.txt"], listed)
    caller.call("POST", route, {**one, "path": "smoke/out.txt"}, query={**ours, "op": "move", "to": "smoke/a/b"})
    found = caller.call("GET", route, {**one, "path": "smoke"}, query={**ours, "glob": "**/b"}).json()
    _expect([entry["name"] for entry in found["entries"]] == ["a/b"], found)
    several = {"one": ("smoke/x", b"1"), "two": ("smoke/y", b"2")}
    caller.call("POST", "/v1/files/{scope}", {"scope": caller.scope}, query=ours, files=several)
    caller.call("DELETE", route, {**one, "path": "smoke"}, query=ours)
    caller.call("GET", route, {**one, "path": "smoke"}, query=ours, status=404, code="file_not_found")


def _execution(caller: Caller) -> None:
    ident = f"smoke-{secrets.token_hex(6)}"
    first = caller.exec("python", "import random; print(random.random())", execution_id=ident)
    again = caller.exec("python", "import random; print(random.random())", execution_id=ident)
    view = caller.call("GET", "/v1/executions/{execution_id}", {"execution_id": ident}, query=_of(caller)).json()
    _expect(first["stdout"] == again["stdout"] == view["stdout"] and view["phase"] == "finished", [first, again, view])


def _ending(caller: Caller) -> None:
    ident = f"smoke-{secrets.token_hex(6)}"
    route = "/v1/executions/{execution_id}"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(caller.exec, "bash", "sleep 60", execution_id=ident, timeout=90)
        deadline = time.monotonic() + _APPEARS_S
        while not running.done():
            status = _phase(caller, ident)
            if status == "running":
                break
            if time.monotonic() > deadline:
                raise StepFailed(f"the execution does not run: it is {status or 'unknown'}")
            time.sleep(0.05)
        caller.call("DELETE", route, {"execution_id": ident}, query=_of(caller))
        answer = running.result()
    _expect(answer["status"] == "interrupted", answer)


def _phase(caller: Caller, ident: str) -> str | None:
    """Return where an execution is; None: the service does not know it yet."""
    try:
        route = "/v1/executions/{execution_id}"
        return str(caller.call("GET", route, {"execution_id": ident}, query=_of(caller)).json()["phase"])
    except StepFailed as error:
        if "execution_not_found" in str(error):
            return None
        raise


def _kernels(caller: Caller) -> None:
    python, ours = {"scope": caller.scope, "language": "python"}, {"session": caller.session}
    _expect(("python", "idle") in caller.kernels(), caller.kernels())
    idle = caller.call("POST", "/v1/kernels/{scope}/{language}/interrupt", python, query=ours).json()
    _expect(idle["interrupted"] is False, idle)
    restarted = caller.call("POST", "/v1/kernels/{scope}/{language}/restart", python, query=ours).json()
    _expect(restarted["restarted"] is True, restarted)
    answer = caller.exec("python", "x", stateful=True)
    _expect((answer["state"], answer["error"]["name"]) == ("new", "NameError"), answer)
    removed = caller.call("DELETE", "/v1/kernels/{scope}/{language}", python, query=ours).json()
    _expect(removed["removed"] == 1 and ("python", "idle") not in caller.kernels(), removed)


def _listings(caller: Caller) -> None:
    scopes = [each["scope"] for each in caller.call("GET", "/v1/scopes").json()["scopes"]]
    _expect(caller.scope in scopes, scopes)
    _expect(caller.session in caller.sessions(), caller.sessions())


def _deleting(caller: Caller) -> None:
    route = "/v1/scopes/{scope}/sessions/{session}"
    one = {"scope": caller.scope, "session": caller.session}
    removed = caller.call("DELETE", route, one).json()
    _expect((removed["removed"], removed["purged"]) == (1, False), removed)
    _expect(caller.session not in caller.sessions(), caller.sessions())
    answer = caller.exec("bash", "cat /opt/workspace/mine")
    _expect(answer["stdout"] == "42\n", answer)
    purged = caller.call("DELETE", route, one, query={"purge": "true"}).json()
    _expect((purged["removed"], purged["purged"]) == (1, True), purged)
    answer = caller.exec("bash", "find /opt/workspace -mindepth 1")
    _expect((answer["stdout"], answer["exit_code"]) == ("", 0), answer)


def _sessionless(caller: Caller) -> None:
    ours = caller.scope == caller.disposable
    if ours:
        body = {"scope": caller.scope, "language": "bash", "code": "echo 42"}
        answer = caller.call("POST", "/v1/exec", body=body).json()
        _expect((answer["stdout"], answer["exit_code"]) == ("42\n", 0), answer)
    removed = caller.call("DELETE", "/v1/scopes/{scope}/sandbox", {"scope": caller.disposable}).json()
    _expect(removed["removed"] == int(ours), removed)


def clean(caller: Caller) -> None:
    """Delete all that was made here."""
    query = {"force": "true", "purge": "true"}
    for session in (caller.session, f"{caller.session}-b"):
        caller.call(
            "DELETE", "/v1/scopes/{scope}/sessions/{session}", {"scope": caller.scope, "session": session}, query=query
        )
    purged = caller.call("DELETE", "/v1/scopes/{scope}", {"scope": caller.disposable}, query=query).json()
    _expect(purged["purged"] is True, purged)
    scopes = [each["scope"] for each in caller.call("GET", "/v1/scopes").json()["scopes"]]
    _expect(caller.disposable not in scopes, scopes)


STEPS: tuple[tuple[str, Callable[[Caller], None]], ...] = (
    ("documents", _documents),
    ("refusals: 400, 401, 404, 405", _refusals),
    ("python without memory", _stateless("python", "print(6 * 7)")),
    ("node without memory", _stateless("node", "console.log(6 * 7)")),
    ("bash without memory", _stateless("bash", "echo $((6 * 7))")),
    ("python with memory", _stateful("python", "x = 41", "print(x + 1)")),
    ("node with memory", _stateful("node", "const x = 41", "console.log(x + 1)")),
    ("bash with memory", _stateful("bash", "x=41", "echo $((x + 1))")),
    ("results and errors", _results),
    ("a timeout keeps the variables", _timeout),
    ("sessions are apart and share the scope's directory", _apart),
    ("files are stored, met inside, sent, listed and deleted", _files),
    ("an execution runs once and is looked up", _execution),
    ("a detached execution is followed", _stream),
    ("a running execution is ended", _ending),
    ("metrics", _metrics),
    ("kernels: list, interrupt, restart, delete", _kernels),
    ("listings", _listings),
    ("sessions are deleted without and with their data", _deleting),
    ("the sandbox without a session", _sessionless),
)


def _of(caller: Caller) -> dict[str, str]:
    return {"scope": caller.scope}


def _expect(right: Any, came: Any) -> None:
    """Raise StepFailed with what came, unless it is right."""
    if not right:
        raise StepFailed(f"not as it has to be: {json.dumps(came, default=str)[:1000]}")


def _field(answer: httpx.Response, name: str) -> str:
    """Return a field of an error; nothing where the body is none."""
    try:
        body = answer.json()
    except ValueError:
        return ""
    return str(body.get(name, "")) if isinstance(body, dict) else ""
