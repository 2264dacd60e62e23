"""``cellbox smoke``: every route of a running service, called as a client does, with what has to come back.

Promises: a line for each step; what is made belongs to one scope, which is deleted at the end, whatever happened.
Leaves to the tests: that no route is missing here.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from interpreter import settings, wire
from interpreter.cli import FAILED, OK, WRONG, envfile
from interpreter.settings import Settings

SCOPE = "cellbox-smoke"
ANSWER_S = 120.0
"""For an answer: the first call starts a sandbox, on a machine that may have much to do."""

_APPEARS_S = 30.0
_NOT_BUILT = ("events", "stdout", "stderr")

Json = dict[str, Any]
Say = Callable[["Step"], None]


class StepFailed(Exception):
    """The service answered otherwise than it has to. Text: what came."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step that was done. message: what failed; empty if nothing did."""

    name: str
    ok: bool
    ms: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the service is. url: without a path. socket: a Unix socket to connect to instead."""

    url: str
    key: str
    socket: Path | None = None


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
    ) -> httpx.Response:
        """Return the answer to a call of ``route``, which has to have this status, and this code if it is an error.

        parts: of the path. key: another one than the service's; empty for none. Raises StepFailed.
        """
        key = self._key if key is None else key
        path = route.format(**{name: quote(text, safe="") for name, text in (parts or {}).items()})
        try:
            answer = self._client.request(
                method, path, json=body, params=query, headers={"X-API-Key": key} if key else {}
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


# --- the command ----------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> int:
    """Call the service and say how each step went. Exit code 1: a step failed."""
    try:
        found, target = _target(arguments)
        scope = arguments.scope or _only_scope(found)
    except settings.SettingsError as error:
        print(error, file=sys.stderr)
        return WRONG
    steps = smoke(target, scope=scope, say=_ignore if arguments.json else _say)
    failed = [step for step in steps if not step.ok]
    if arguments.json:
        print(json.dumps({"url": target.url, "ok": not failed, "steps": [asdict(step) for step in steps]}, indent=2))
    elif failed:
        print(f"{len(failed)} of {len(steps)} steps failed at {target.url}", file=sys.stderr)
    else:
        print(f"all {len(steps)} steps did well at {target.url}")
    return FAILED if failed else OK


def smoke(
    target: Target, *, scope: str | None = None, say: Say, covered: set[tuple[str, str]] | None = None
) -> list[Step]:
    """Do all steps and return how they went.

    scope: one that may have data of its own, which stays; None: one of ours. covered: gets the routes that were called.
    """
    disposable = SCOPE if scope is None else f"{SCOPE}-{secrets.token_hex(6)}"
    transport = httpx.HTTPTransport(uds=str(target.socket)) if target.socket else None
    with httpx.Client(base_url=target.url, timeout=ANSWER_S, transport=transport, trust_env=False) as client:
        caller = Caller(client, target.key, scope=scope or SCOPE, disposable=disposable)
        steps = [_did("health", functools.partial(_health, caller), say)]
        if steps[0].ok:
            try:
                steps += [_did(name, functools.partial(work, caller), say) for name, work in STEPS]
            finally:
                steps.append(_did("nothing is left", functools.partial(_clean, caller), say))
    if covered is not None:
        covered |= caller.covered
    return steps


def _did(name: str, work: Callable[[], None], say: Say) -> Step:
    since, message = time.monotonic(), ""
    try:
        work()
    except StepFailed as error:
        message = str(error)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        message = f"the answer is not of the form it has to have: {type(error).__name__}: {error}"
    step = Step(name, not message, round((time.monotonic() - since) * 1000), message)
    say(step)
    return step


def _say(step: Step) -> None:
    print(f"{'ok    ' if step.ok else 'FAILED'}  {step.name}  ({step.ms} ms)", flush=True)
    if step.message:
        print(f"        {step.message}", flush=True)


def _ignore(_step: Step) -> None:
    """Say nothing: all is said at the end."""


# --- where the service is ------------------------------------------------------------------------------------------


def _target(arguments: argparse.Namespace) -> tuple[Settings, Target]:
    """Return the settings of the service, and where it is. Raises SettingsError."""
    if arguments.scope is not None and not re.fullmatch(wire.NAME, arguments.scope):
        raise settings.SettingsError(f"--scope {wire.NAME_RULE}.")
    composed = False
    if arguments.dir is None:
        found = settings.load()
        port = ""
    else:
        folder = Path(arguments.dir)
        variables = envfile.read(folder / ".env")
        found = settings.load(variables)
        composed = (folder / "docker-compose.yml").exists()
        port = variables.get("CELLBOX_PORT", "")
    key = found.keys[0] if found.keys else _made_key(found.data_root)
    if arguments.url:
        return found, Target(arguments.url.rstrip("/"), key)
    if composed:
        return found, Target(f"http://{_reachable(found.bind)}:{port or 8090}", key)
    return found, _listening(found, key)


def _listening(found: Settings, key: str) -> Target:
    listen = found.address
    if listen.path is not None:
        return Target("http://localhost", key, listen.path)
    if not listen.port:
        raise settings.SettingsError(f"SANDBOX_LISTEN={found.listen} names no port: give the address with --url.")
    return Target(f"http://{_reachable(listen.host)}:{listen.port}", key)


def _reachable(host: str) -> str:
    """Return an address at which a service on ``host`` is reached from here."""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - nothing listens here
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _only_scope(found: Settings) -> str | None:
    """Return the scope that has claimed a service that keeps one only, since no other can be called there.

    Raises SettingsError: none has yet, and the claim would be ours for good.
    """
    root = found.data_root
    try:
        return (root / ".tenant").read_text().strip()
    except OSError:
        owner = root.stat().st_uid if root.exists() else 0
    if owner != 0 or found.runtime_backend == "process":
        raise settings.SettingsError(
            "This service keeps one scope only, the first that calls it: name the one that it is for with --scope."
        )
    return None


def _made_key(root: Path) -> str:
    try:
        return (root / ".api-key").read_text().strip()
    except OSError as error:
        raise settings.SettingsError(
            f"SANDBOX_API_KEY is not set, and no service has made a key in {root}: {error.strerror}."
        ) from error


# --- the steps ------------------------------------------------------------------------------------------------------


def _health(caller: Caller) -> None:
    about = caller.call("GET", "/healthz", key="").json()
    _expect(about["status"] == "ok" and about["version"] and about["runtime"], about)


def _documents(caller: Caller) -> None:
    document = caller.call("GET", "/openapi.json", key="").json()
    _expect("post" in document["paths"]["/v1/exec"], sorted(document["paths"]))
    page = caller.call("GET", "/docs", key="")
    _expect(page.headers["content-type"].startswith("text/html"), page.headers["content-type"])


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
    for part in _NOT_BUILT:
        caller.call(
            "GET", f"/v1/executions/{{execution_id}}/{part}", {"execution_id": "none"}, status=400, code="not_built"
        )
    route = "/v1/executions/{execution_id}/input"
    caller.call("POST", route, {"execution_id": "none"}, status=400, code="not_built")


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
    answer = caller.exec("bash", "ls /opt/workspace; cat /opt/user/.smoke/ours; rm -r /opt/user/.smoke", session=other)
    _expect((answer["stdout"], answer["exit_code"]) == ("42\n", 0), answer)


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
    answer = caller.exec("bash", "ls /opt/workspace")
    _expect((answer["stdout"], answer["exit_code"]) == ("", 0), answer)


def _sessionless(caller: Caller) -> None:
    ours = caller.scope == caller.disposable
    if ours:
        body = {"scope": caller.scope, "language": "bash", "code": "echo 42"}
        answer = caller.call("POST", "/v1/exec", body=body).json()
        _expect((answer["stdout"], answer["exit_code"]) == ("42\n", 0), answer)
    removed = caller.call("DELETE", "/v1/scopes/{scope}/sandbox", {"scope": caller.disposable}).json()
    _expect(removed["removed"] == int(ours), removed)


def _clean(caller: Caller) -> None:
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
    ("an execution runs once and is looked up", _execution),
    ("a running execution is ended", _ending),
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
