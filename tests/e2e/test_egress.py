"""The way out, from outside: real clients through the real proxy, refusals, changed policies, and what survives what.

Registries are those that the installed pip and npm use by themselves; everything else is a server with TLS on this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import engines
from tests.e2e import origin as origins
from tests.e2e import wheels
from tests.e2e.conftest import CONFINED, Cellbox, running

RUNTIMES = CONFINED

RANGES = "127.0.0.0/8,198.18.0.0/15,203.0.113.0/24"
"""Of the origin, and of resolvers that answer with addresses of no public network."""

CLIENTS = {
    "curl": ("bash", "curl -sS {url}/hello.txt"),
    "git": ("bash", "git clone -q {url}/repository.git cloned && cat cloned/told.txt"),
    "requests": ("python", "import requests; print(requests.get('{url}/hello.txt').text)"),
    "urllib": ("python", "from urllib.request import urlopen; print(urlopen('{url}/hello.txt').read().decode())"),
    "fetch": ("node", "fetch('{url}/hello.txt').then(answer => answer.text()).then(console.log)"),
}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[origins.Origin]:
    with origins.serving(tmp_path_factory.mktemp("origin")) as served:
        yield served


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, runtime: str, origin: origins.Origin) -> Iterator[Cellbox]:
    root = tmp_path_factory.mktemp("egress")
    allowed = f"@pypi,@npm,{origin.host}"
    with running(
        root, runtime_backend=runtime, network="proxy", egress_allowlist=allowed, egress_private_cidrs=RANGES
    ) as cellbox:
        yield cellbox


def trusting(cellbox: Cellbox, origin: origins.Origin, scope: str) -> dict[str, str]:
    """Variables with which programs of a scope trust the origin."""
    cellbox.exec(f"open('/opt/user/origin.pem', 'w').write({origin.certificate!r})", scope=scope)
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS")
    return dict.fromkeys(names, "/opt/user/origin.pem")


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
@pytest.mark.parametrize("client", CLIENTS)
def test_clients_use_the_way_out_as_they_are(service, origin, scope, client, stateful):
    language, code = CLIENTS[client]
    env = trusting(service, origin, scope)
    if stateful and language == "node":  # the process has read its certificates when it began
        env = {}
        code = "process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0'; await " + code
    answer = service.exec(code.format(url=origin.url), scope=scope, language=language, stateful=stateful, env=env)
    assert answer["stdout"].strip() in ("hello from outside", "cloned"), answer
    assert answer["egress_denied"] == []


def installed(cellbox: Cellbox, command: str, **fields: Any) -> None:
    """Run a command that installs something. Three times: a registry may not answer for a moment."""
    for _ in range(3):
        done = cellbox.exec(command, language="bash", timeout=60, **fields)
        if done["exit_code"] == 0:
            return
    raise AssertionError(done)


def test_pip_installs_for_a_running_kernel_and_for_all_sessions_of_the_scope(service, scope):
    service.cell("x = 1", scope=scope, session="one")
    service.cell("x = 1", scope=scope, session="two")
    installed(service, "pip install -q pluggy==1.6.0 2>&1", scope=scope, session="one")
    for session in ("one", "two", "three"):
        told = service.cell("import pluggy; print(pluggy.__file__, pluggy.__version__)", scope=scope, session=session)
        assert told["stdout"].startswith("/opt/user/.local/lib/"), told
        assert told["stdout"].endswith("1.6.0\n")


def test_requirements_of_an_execution_are_installed_first_from_an_index_that_may_be_reached(service, origin, scope):
    place = origin.root / "simple" / wheels.NAME.replace("_", "-")
    place.mkdir(parents=True, exist_ok=True)
    (place / wheels.FILE).write_bytes(wheels.wheel())
    env = trusting(service, origin, scope) | {
        "PIP_INDEX_URL": f"{origin.url}/simple",
        "PIP_CERT": "/opt/user/origin.pem",
    }
    code = f"import {wheels.NAME}; print({wheels.NAME}.SAID)"
    answer = service.exec(
        code, scope=scope, session="one", env=env, files={"requirements.txt": f"{wheels.NAME}==1.0\n"}
    )
    assert (answer["stdout"], answer["stderr"], answer["egress_denied"]) == (f"{wheels.SAID}\n", "", []), answer
    # One that may not be reached is named, and the code does not run.
    env["PIP_INDEX_URL"] = "https://index.example/simple"
    answer = service.exec(
        code, scope=scope, session="one", env=env, files={"requirements.txt": f"{wheels.NAME}==2.0\n"}
    )
    assert (answer["error"]["name"], answer["stdout"]) == ("RequirementsNotInstalled", "")
    assert "index.example" in str(answer["egress_denied"])


def test_npm_installs_in_the_workspace(service, scope):
    installed(service, "npm install --silent is-odd@3.0.1", scope=scope, session="one")
    told = service.exec("console.log(require('is-odd')(3))", language="node", scope=scope, session="one")
    assert told["stdout"] == "true\n"


@pytest.mark.long_on_docker
def test_sessions_of_aiohttp_and_httpx_need_no_flag(service, origin, scope):
    installed(service, "pip install -q aiohttp httpx 2>&1", scope=scope)
    env = trusting(service, origin, scope)
    code = f"""
import asyncio, aiohttp, httpx
async def main():
    async with aiohttp.ClientSession() as session, session.get("{origin.url}/hello.txt") as answer:
        print((await answer.text()).strip())
asyncio.run(main())
print(httpx.get("{origin.url}/hello.txt").text.strip())
"""
    assert service.exec(code, scope=scope, env=env)["stdout"] == "hello from outside\n" * 2
    cell = service.cell(code.replace("asyncio.run(main())", "await main()"), scope=scope, env=env)
    assert cell["stdout"] == "hello from outside\n" * 2
    by_command = service.exec(f"python - <<'END'\n{code}\nEND", language="bash", scope=scope, env=env)
    assert by_command["stdout"] == "hello from outside\n" * 2


@pytest.mark.parametrize(
    ("language", "code"),
    [
        (
            "python",
            "import requests\ntry: requests.get('https://data.example/')\nexcept OSError as error: print(error)",
        ),
        ("bash", "curl -sS -D- https://data.example/ 2>&1; true"),
        ("node", "fetch('https://data.example/').catch(error => console.log(error.cause.message))"),
    ],
)
def test_a_refusal_says_why_and_stands_in_the_answer(service, scope, language, code):
    answer = service.exec(code, language=language, scope=scope)
    assert "sandbox egress denied: host data.example is not in allowlist" in answer["stdout"], answer
    assert answer["egress_denied"] == [{"host": "data.example", "port": 443, "reason": "not_allowed", "count": 1}]
    assert service.exec("print(1)", scope=scope)["egress_denied"] == []
    log = [line for line in service.log.splitlines() if "egress denied" in line and "data.example" in line]
    assert log
    metrics = service.client.get("/metrics").text
    assert 'cellbox_egress_denied_total{reason="not_allowed"}' in metrics


def test_nothing_else_leads_out(service, origin, scope):
    host, port = origin.host.split(":")
    code = f"""
import socket
for host in ("{host}", "1.1.1.1"):
    try:
        socket.create_connection((host, {port}), timeout=2)
        print("connected")
    except OSError as error:
        print(type(error).__name__)
try:
    print(socket.getaddrinfo("data.example", 443))
except OSError as error:
    print(type(error).__name__)
"""
    assert "connected" not in (said := service.exec(code, scope=scope)["stdout"])
    assert said.endswith("gaierror\n")


def test_scopes_are_listed_with_what_they_may_reach(service, origin, scope):
    service.exec("1", scope=scope)
    (entry,) = [each for each in service.client.get("/v1/scopes").json()["scopes"] if each["scope"] == scope]
    assert entry["egress"] == {"allow": ["@pypi", "@npm", origin.host], "deny": [], "ports": [80, 443], "sessions": {}}


def egress_of(cellbox: Cellbox) -> int | None:
    """The pid of the egress process of a service."""
    for child in Path(f"/proc/{cellbox.process.pid}/task/{cellbox.process.pid}/children").read_text().split():
        line = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if b"egress" in line:
            return int(child)
    return None


GET = "curl -sS --fail-with-body https://{host}/hello.txt"


def get(cellbox: Cellbox, origin: origins.Origin, scope: str, env: dict[str, str], **fields: Any) -> dict[str, Any]:
    return cellbox.exec(GET.format(host=origin.host), language="bash", scope=scope, env=env, **fields)


def soon(condition: Callable[[], bool], *, within_s: float) -> float:
    """Seconds until it held."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, f"not so within {within_s} s"
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.mark.alone
def test_a_proxy_that_is_killed_is_back_within_two_seconds(service, origin, scope):
    env = trusting(service, origin, scope)
    assert get(service, origin, scope, env)["exit_code"] == 0
    before = egress_of(service)
    os.kill(before, signal.SIGKILL)
    soon(lambda: get(service, origin, scope, env)["exit_code"] == 0, within_s=2)
    assert egress_of(service) not in (before, None)


@pytest.mark.long_on_docker
@pytest.mark.alone
def test_a_changed_policy_holds_within_a_second(serve, origin, scope, tmp_path):
    file = tmp_path / "policies.yaml"
    file.write_text("")
    cellbox = serve(
        network="proxy", egress_allowlist=origin.host, egress_private_cidrs=RANGES, egress_policy_file=str(file)
    )
    env = trusting(cellbox, origin, scope)
    assert get(cellbox, origin, scope, env)["exit_code"] == 0
    for text, exit_code in (
        (f"scopes: {{{scope}: {{allow: ['@default', other.example]}}}}", 0),
        (f"scopes: {{{scope}: {{allow: []}}}}", 22),
        ("scopes: {other: {allow: []}}", 0),
        (f"scopes: {{{scope}: {{deny: ['{origin.host}']}}}}", 22),
        ("", 0),
    ):
        file.write_text(text)
        soon(
            lambda wanted=exit_code: (get(cellbox, origin, scope, env)["exit_code"] == 0) == (wanted == 0), within_s=1.5
        )
    file.write_text("scopes: [no")
    soon(lambda: "the policy file is not followed" in cellbox.log, within_s=2)
    assert get(cellbox, origin, scope, env)["exit_code"] == 0


@pytest.mark.long_on_docker
def test_an_allowed_connection_goes_on_while_policies_change(serve, origin, scope, tmp_path):
    file = tmp_path / "policies.yaml"
    file.write_text("")
    cellbox = serve(
        network="proxy", egress_allowlist=origin.host, egress_private_cidrs=RANGES, egress_policy_file=str(file)
    )
    env = trusting(cellbox, origin, scope)
    assert cellbox.cell(_LINK.format(host=origin.host), scope=scope, env=env)["stdout"] == "200\n"
    file.write_text(f"scopes: {{{scope}: {{allow: ['@default', other.example]}}}}")
    soon(lambda: "the policy file was read" in cellbox.log, within_s=20)
    assert cellbox.cell("ask()", scope=scope)["stdout"] == "200\n"
    file.write_text(f"scopes: {{{scope}: {{allow: []}}}}")
    soon(lambda: cellbox.cell("ask()", scope=scope)["status"] == "error", within_s=20)


_LINK = """
import http.client, ssl
host, port = "{host}".split(":")
link = http.client.HTTPSConnection("127.0.0.1", 3128, context=ssl.create_default_context())
link.set_tunnel(host, int(port))

def ask():
    link.request("GET", "/hello.txt")
    answer = link.getresponse()
    answer.read()
    print(answer.status)

ask()
link.auto_open = False
"""


@pytest.mark.long_on_docker
def test_a_killed_service_leaves_the_way_out_to_the_next_one(serve, origin, scope):
    cellbox = serve(network="proxy", egress_allowlist=origin.host, egress_private_cidrs=RANGES)
    env = trusting(cellbox, origin, scope)
    cellbox.cell("import subprocess; x = 41", scope=scope)
    assert get(cellbox, origin, scope, env)["exit_code"] == 0
    egress = egress_of(cellbox)
    cellbox.end(signal.SIGKILL)
    soon(lambda: not Path(f"/proc/{egress}").exists() or _is_zombie(egress), within_s=20)
    cellbox.start()
    code = GET.format(host=origin.host)
    told = cellbox.cell(f"print(x + 1, subprocess.getoutput({code!r}))", scope=scope, env=env)
    assert (told["state"], told["stdout"]) == ("kept", "42 hello from outside\n"), told


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.long_on_docker
def test_a_spare_has_the_policy_of_the_session_that_gets_it(serve, origin, tmp_path):
    file = tmp_path / "policies.yaml"
    file.write_text("scopes: {ada: {sessions: {closed: {allow: []}}}}")
    cellbox = serve(
        network="proxy",
        egress_allowlist=origin.host,
        egress_private_cidrs=RANGES,
        egress_policy_file=str(file),
        pool="1",
    )
    env = trusting(cellbox, origin, "ada")
    for session, exit_code in (("open", 0), ("closed", 56)):
        soon(lambda: "spare started" in cellbox.log, within_s=20)
        assert get(cellbox, origin, "ada", env, session=session)["exit_code"] == exit_code


@pytest.mark.long_on_docker
def test_without_the_proxy_sandboxes_work_and_their_programs_are_told(serve, origin, scope, tmp_path):
    cellbox = serve(network="proxy", egress_allowlist=origin.host, egress_control=str(tmp_path / "nobody"))
    answer = cellbox.exec("curl -sS -D- https://data.example/ 2>&1; true", language="bash", scope=scope)
    assert "502 sandbox egress is not available" in answer["stdout"], answer
    assert cellbox.exec("print(1)", scope=scope)["stdout"] == "1\n"
    assert "the proxy is gone" in cellbox.log


@pytest.mark.long_on_docker
def test_a_proxy_that_runs_elsewhere_serves_one_service_after_the_other(serve, origin, scope, tmp_path):
    control = tmp_path / "control"
    proxy = subprocess.Popen([sys.executable, "-m", "egress", "--control", str(control)])
    try:
        cellbox = serve(
            network="proxy", egress_allowlist=origin.host, egress_private_cidrs=RANGES, egress_control=str(control)
        )
        env = trusting(cellbox, origin, scope)
        assert egress_of(cellbox) is None
        assert get(cellbox, origin, scope, env)["exit_code"] == 0
        cellbox.end(signal.SIGTERM)
        cellbox.start()
        assert get(cellbox, origin, scope, env)["exit_code"] == 0
    finally:
        proxy.terminate()
        proxy.wait(10)


@engines.image_needed
@engines.gvisor_needed
def test_under_gvisor_there_is_the_same_way_out(origin, scope, tmp_path):
    settings = {"network": "proxy", "egress_allowlist": origin.host, "egress_private_cidrs": RANGES}
    with running(tmp_path, runtime_backend="docker", runtime="runsc", **settings) as cellbox:
        env = trusting(cellbox, origin, scope)
        assert get(cellbox, origin, scope, env)["stdout"] == "hello from outside\n"
        denied = cellbox.exec("curl -sS https://data.example", language="bash", scope=scope)["egress_denied"]
        assert [each["host"] for each in denied] == ["data.example"]


@pytest.mark.parametrize("text", ["scopes: [no]", None], ids=["wrong", "missing"])
def test_a_policy_file_that_is_wrong_at_the_start_refuses_it(tmp_path, text):
    file = tmp_path / "policies.yaml"
    if text is not None:
        file.write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
    values = {"network": "proxy", "egress_policy_file": file, "data_root": tmp_path / "data", "listen": "127.0.0.1:0"}
    environment |= {f"SANDBOX_{name.upper()}": str(value) for name, value in values.items()}
    command = [sys.executable, "-m", "interpreter", "serve"]
    environment["SANDBOX_RUNTIME_BACKEND"] = "bubblewrap"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith(
        "SANDBOX_EGRESS_ALLOWLIST and SANDBOX_EGRESS_POLICY_FILE cannot be followed: "
    )


def test_what_pip_and_npm_use_was_asked_of_them(service):
    found = json.loads((service.root / ".egress-hosts").read_text())
    assert set(found) == {"@pypi", "@npm"}
    assert len(found["@pypi"]) >= 2
    assert len(found["@npm"]) >= 1
