"""The service's own image on a real engine, with the rights that docker-compose.yml gives it."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from interpreter.backends.docker.image import build_arguments
from tests import apart, engines, waiting

ROOT = Path(__file__).parents[2]
IMAGE = "cellbox-server:tests"
KEY = "a-key-for-the-tests-of-the-image"
WELL_S = 60.0

pytestmark = [
    engines.image_needed,
    pytest.mark.skipif(shutil.which("docker") is None, reason="needs the program docker"),
    pytest.mark.skipif(not engines.ADDRESS.startswith("unix://"), reason="needs an engine on this host"),
    pytest.mark.timeout(600),
]


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["docker", "--host", engines.ADDRESS, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def image() -> str:
    words = [word for name, value in build_arguments(os.environ).items() for word in ("--build-arg", f"{name}={value}")]
    build = ("build", "--quiet", "--network", "host", *words, "--tag", IMAGE, str(ROOT))
    if docker(*build, check=False).returncode:  # a registry of packages that did not answer for a moment
        docker(*build)
    return IMAGE


def composed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load((ROOT / "docker-compose.yml").read_text())["services"][name]
    return found


@pytest.fixture
def server(image: str, tmp_path: Path) -> Iterator[str]:
    """Name of a container that serves, on a data root below ``tmp_path``."""
    with serving(image, tmp_path) as name:
        yield name


@pytest.fixture
def server_with_way_out(image: str, tmp_path: Path) -> Iterator[str]:
    """The same with the container beside it that is the way out."""
    link, name = tmp_path / "link", f"cellbox-egress-{os.getpid()}"
    link.mkdir(mode=0o755)
    control = f"{link}/.egress.sock"
    service = composed("egress")
    words = ["--read-only", "--volume", f"{link}:{link}", "--no-healthcheck", "--entrypoint", service["entrypoint"][0]]
    for option, key in (("--cap-drop", "cap_drop"), ("--security-opt", "security_opt")):
        words += [word for value in service[key] for word in (option, value)]
    docker("run", "--detach", "--name", name, *words, image, *service["entrypoint"][1:-1], control)
    try:
        settings = {"NETWORK": "proxy", "LINK_DIR": link, "EGRESS_CONTROL": control}
        settings["EGRESS_PRIVATE_CIDRS"] = "198.18.0.0/15,203.0.113.0/24"  # of resolvers with addresses of their own
        more = [word for setting, value in settings.items() for word in ("--env", f"SANDBOX_{setting}={value}")]
        with serving(image, tmp_path, "--volume", f"{link}:{link}", *more) as server:
            yield server
    finally:
        docker("rm", "--force", name, check=False)


@contextmanager
def serving(image: str, tmp_path: Path, *more: str) -> Iterator[str]:
    service = composed("sandbox-server")
    root, name, uid_base = tmp_path / "data", f"cellbox-server-{os.getpid()}", apart.uid_base()
    root.mkdir(mode=0o700)
    words = ["--read-only", "--mount", f"type=bind,source={root},target={root}"]
    words += ["--mount", f"type=bind,source={engines.ADDRESS.removeprefix('unix://')},target=/var/run/docker.sock"]
    for option, key in (
        ("--cap-drop", "cap_drop"),
        ("--cap-add", "cap_add"),
        ("--security-opt", "security_opt"),
        ("--tmpfs", "tmpfs"),
    ):
        words += [word for value in service[key] for word in (option, value)]
    for setting in (f"DATA_ROOT={root}", f"API_KEY={KEY}", f"IMAGE={engines.IMAGE}", f"UID_BASE={uid_base}"):
        words += ["--env", f"SANDBOX_{setting}"]
    words += more
    docker("run", "--detach", "--name", name, *words, image)
    try:
        wait_until_well(name)
        yield name
    finally:
        docker("stop", "--time", "60", name, check=False)
        docker("run", "--rm", *words, image, "stop", "--all", check=False)
        docker("rm", "--force", name, check=False)
        waiting.until(lambda: not engines.containers(range(uid_base, uid_base + 100)))


def wait_until_well(name: str) -> None:
    deadline = time.monotonic() + WELL_S
    ask = (
        "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8090); "
        "c.request('GET', '/healthz'); print(c.getresponse().status)"
    )
    while docker("exec", name, "python", "-c", ask, check=False).stdout.strip() != "200":
        log = docker("logs", name)
        assert time.monotonic() < deadline, log.stdout + log.stderr
        time.sleep(0.2)


def cell(name: str, code: str) -> dict[str, object]:
    """The answer to a stateful call from inside the service's container."""
    body = json.dumps({"scope": "ada", "session": "s", "language": "python", "stateful": True, "code": code})
    ask = (
        "import http.client as h, sys; c = h.HTTPConnection('127.0.0.1', 8090); "
        f"c.request('POST', '/v1/exec', sys.argv[1], {{'X-API-Key': '{KEY}'}}); print(c.getresponse().read().decode())"
    )
    answer: dict[str, object] = json.loads(docker("exec", name, "python", "-c", ask, body).stdout)
    return answer


def test_every_route_works_and_the_doctor_finds_no_error(server: str) -> None:
    said = json.loads(docker("exec", server, "cellbox", "smoke", "--json", check=False).stdout)
    assert [step for step in said["steps"] if not step["ok"]] == []
    findings = json.loads(docker("exec", server, "cellbox", "doctor", "--json", check=False).stdout)["findings"]
    assert [each for each in findings if each["state"] == "error"] == []


def test_what_compose_starts_has_a_way_out_to_packages_and_to_nothing_else(server_with_way_out: str) -> None:
    words = ["pip", "install", "-q", "pluggy==1.6.0"]
    install = f"import subprocess; print(subprocess.run({words}, text=True, stderr=1).returncode)"
    told = [cell(server_with_way_out, install) for _ in range(2)]  # a registry may not answer for a moment
    assert told[-1]["stdout"] == "0\n", told
    assert cell(server_with_way_out, "import pluggy; print(pluggy.__version__)")["stdout"] == "1.6.0\n"
    asked = "import requests\ntry: requests.get('http://{}/')\nexcept OSError: pass"
    for host, reason in (("data.example", "not_allowed"), ("sandbox-server:8090", "not_allowed")):
        (denied,) = cell(server_with_way_out, asked.format(host))["egress_denied"]
        assert (denied["host"], denied["reason"]) == (host.partition(":")[0], reason)


def test_variables_outlive_the_container_of_the_service(server: str) -> None:
    assert cell(server, "x = 41")["state"] == "new"
    docker("restart", "--time", "60", server)
    wait_until_well(server)
    after = cell(server, "print(x + 1)")
    assert (after["stdout"], after["state"]) == ("42\n", "kept")
