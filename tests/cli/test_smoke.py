"""``cellbox smoke`` against real services: every route, nothing left, and what it says of one that is wrong."""

import json
import os
import socket
from pathlib import Path

import httpx
import pytest

from interpreter import cli
from interpreter.cli import envfile, smoke, smoke_steps
from interpreter.http.routes import ROUTES
from interpreter.settings import SettingsError
from tests.e2e.conftest import CONFINED, KEY, Cellbox, running


@pytest.fixture(scope="module", params=CONFINED)
def cellbox(request, tmp_path_factory):
    with running(tmp_path_factory.mktemp("smoke"), runtime_backend=request.param) as service:
        yield service


@pytest.fixture
def target(cellbox) -> smoke.Target:
    return smoke.Target(cellbox.url, KEY)


def test_every_route_is_called_and_nothing_is_left(cellbox: Cellbox, target) -> None:
    covered: set[tuple[str, str]] = set()
    said: list[smoke.Step] = []
    steps = smoke.smoke(target, say=said.append, covered=covered)
    assert [step for step in steps if not step.ok] == []
    assert said == steps
    assert covered >= {(method, route.path) for route in ROUTES for method in route.operations}
    assert cellbox.client.get("/v1/scopes").json() == {"scopes": []}
    cellbox.wait_for(lambda: not cellbox.processes(), within_s=20)
    assert [entry.name for entry in cellbox.root.iterdir() if not entry.name.startswith(".")] == []


@pytest.mark.long_on_docker
def test_a_scope_that_is_given_keeps_its_data(cellbox: Cellbox, target) -> None:
    cellbox.exec("echo kept > /opt/workspace/note", language="bash", scope="ada")
    steps = smoke.smoke(target, scope="ada", say=lambda step: None)
    assert [step for step in steps if not step.ok] == []
    assert [each["session"] for each in cellbox.client.get("/v1/scopes/ada/sessions").json()["sessions"]] == [None]
    assert cellbox.exec("cat /opt/workspace/note; ls -A | wc -l", language="bash", scope="ada")["stdout"] == "kept\n1\n"
    assert cellbox.client.delete("/v1/scopes/ada?purge=true").json()["purged"]


@pytest.mark.long_on_docker
def test_the_command_reads_the_env_file(cellbox: Cellbox, tmp_path: Path) -> None:
    address = cellbox.url.removeprefix("http://")
    (tmp_path / ".env").write_text(f"# of a service\n\nSANDBOX_API_KEY='{KEY}'\nSANDBOX_LISTEN={address} # here\n")
    done = cellbox.command("smoke", str(tmp_path), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["ok"]
    assert said["url"] == cellbox.url
    assert {step["name"] for step in said["steps"]} >= {name for name, _ in smoke_steps.STEPS}


def test_a_wrong_key_fails_and_says_which_steps(cellbox: Cellbox, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SANDBOX_API_KEY=another-key-than-the-right-one\n")
    done = cellbox.command("smoke", str(tmp_path), "--url", cellbox.url)
    assert done.returncode == 1
    assert "FAILED  python without memory" in done.stdout
    assert "200 expected, 401 came" in done.stdout
    assert "steps failed" in done.stderr
    assert "another-key" not in done.stdout + done.stderr


def test_without_a_service_only_that_is_said(capsys, monkeypatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        monkeypatch.setenv("SANDBOX_API_KEY", KEY)
        monkeypatch.setenv("SANDBOX_LISTEN", f"127.0.0.1:{taken.getsockname()[1]}")
        assert cli.main(["smoke"]) == 1
    said = capsys.readouterr()
    assert "FAILED  health" in said.out
    assert "1 of 1 steps failed" in said.err


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ("SANDBOX_BIND=0.0.0.0", "http://127.0.0.1:8090"),
        ("CELLBOX_PORT=9000", "http://127.0.0.1:9000"),
        ("SANDBOX_BIND=192.0.2.7\nSANDBOX_LISTEN=:1", "http://192.0.2.7:8090"),
        ("SANDBOX_BIND=::1", "http://[::1]:8090"),
    ],
)
def test_beside_a_compose_file_the_published_port_counts(tmp_path: Path, monkeypatch, capsys, lines, where) -> None:
    (tmp_path / ".env").write_text(f"SANDBOX_API_KEY={KEY}\n{lines}\n")
    (tmp_path / "docker-compose.yml").touch()
    asked = []
    monkeypatch.setattr(smoke, "smoke", lambda target, **_: asked.append(target) or [])
    assert cli.main(["smoke", str(tmp_path)]) == 0
    assert asked == [smoke.Target(where, KEY)]


def test_what_the_client_commands_read_counts_here_too(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(smoke, "smoke", lambda target, **_: asked.append(target) or [])
    monkeypatch.setattr(smoke, "_only_scope", lambda _: None)
    monkeypatch.setenv("CELLBOX_URL", "http://192.0.2.7:8090/")
    monkeypatch.setenv("CELLBOX_API_KEY", KEY)
    assert cli.main(["smoke"]) == 0
    assert asked == [smoke.Target("http://192.0.2.7:8090", KEY)]


def test_the_one_scope_of_a_service_is_used_where_there_is_one_only(tmp_path: Path, monkeypatch) -> None:
    """A scope that claims such a service does so for good: it is never ours."""
    (tmp_path / ".tenant").write_text("ada")
    asked = []
    monkeypatch.setattr(smoke, "smoke", lambda target, *, scope, say: asked.append(scope) or [])
    monkeypatch.setenv("SANDBOX_API_KEY", KEY)
    monkeypatch.setenv("SANDBOX_DATA_ROOT", str(tmp_path))
    assert cli.main(["smoke"]) == 0
    assert cli.main(["smoke", "--scope", "eve"]) == 0
    assert asked == ["ada", "eve"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a directory of somebody else's")
def test_a_service_of_another_user_than_root_is_not_claimed(tmp_path: Path, monkeypatch, capsys) -> None:
    os.chown(tmp_path, 1000, 1000)
    monkeypatch.setenv("SANDBOX_API_KEY", KEY)
    monkeypatch.setenv("SANDBOX_DATA_ROOT", str(tmp_path))
    assert cli.main(["smoke"]) == 2
    assert "--scope" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "values", "said"),
    [
        (["nowhere"], {}, "cannot be read"),
        ([], {"SANDBOX_LISTEN": "127.0.0.1:0", "SANDBOX_API_KEY": KEY}, "--url"),
        ([], {"SANDBOX_DATA_ROOT": "/nowhere"}, "SANDBOX_API_KEY is not set"),
        ([], {"SANDBOX_RUNTIME_BACKEND": "process", "SANDBOX_API_KEY": KEY}, "--scope"),
        (["--scope", "a b"], {}, "--scope must be"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_sentence(monkeypatch, capsys, arguments, values, said) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["smoke", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_service_that_answers_nonsense_fails_the_step_and_not_the_command() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=[] if request.url.path == "/healthz" else {})

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://x") as client:
        caller = smoke_steps.Caller(client, KEY, scope="s", disposable="s")
        for name, work in (("health", smoke_steps.health), *smoke_steps.STEPS, ("clean", smoke_steps.clean)):
            assert not smoke._did(name, lambda work=work: work(caller), lambda step: None).ok


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1\nexport B = two words\n", {"A": "1", "B": "two words"}),
        ("A='x # y'\nB=\"z\"\nC=\nD=# none\nE=a#b # c", {"A": "x # y", "B": "z", "C": "", "D": "", "E": "a#b"}),
        ("\ufeffA='x' # y\r\n", {"A": "x"}),
    ],
)
def test_an_env_file_means_what_compose_reads(tmp_path: Path, text, found) -> None:
    (tmp_path / ".env").write_text(text)
    assert envfile.read(tmp_path / ".env") == found


def test_a_line_that_sets_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=1\nSANDBOX_API_KEY secret\n")
    with pytest.raises(SettingsError, match="line 2") as refused:
        envfile.read(tmp_path / ".env")
    assert "secret" not in str(refused.value)
