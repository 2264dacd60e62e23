"""The command: exit codes, what it prints, and stopping a service from outside."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from interpreter import cli
from interpreter.settings import Settings, variable

REPOSITORY = Path(cli.__file__).parents[2]
SECRET = "a-secret-key-of-the-tests"


def environment(**values: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
    return kept | {f"SANDBOX_{name.upper()}": value for name, value in values.items()}


def command(*arguments: str, **values: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "interpreter", *arguments],
        env=environment(**values),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


class Program:
    """A service in its own process, over the fake backend."""

    def __init__(self, root: Path, **values: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.program"],
            env=environment(data_root=str(root), listen="127.0.0.1:0", api_key=SECRET, **values),
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("try "):
                return
        raise AssertionError("".join(self.lines))

    def end(self) -> tuple[int, str]:
        """Wait for its end; exit code and all it said."""
        rest, _ = self.process.communicate(timeout=20)
        return self.process.returncode, "".join(self.lines) + rest


@pytest.fixture
def program(tmp_path):
    started = []

    def begin(**values: str) -> Program:
        started.append(Program(tmp_path / "data", **values))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_well(program, number):
    service = program()
    service.process.send_signal(number)
    code, said = service.end()
    assert code == 0
    assert "Traceback" not in said
    assert SECRET not in said


@pytest.mark.parametrize("arguments", [[], ["--all"]])
def test_stop_ends_the_service_of_the_data_root(program, tmp_path, arguments):
    service = program()
    done = command("stop", *arguments, data_root=str(tmp_path / "data"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")
    assert service.end()[0] == 0
    again = command("stop", data_root=str(tmp_path / "data"))
    assert again.returncode == 1
    assert "No service uses the data root" in again.stderr


def test_stop_touches_no_process_that_does_not_hold_the_lock(tmp_path):
    (tmp_path / ".lock").write_text(f"{os.getpid()}\n")
    assert command("stop", data_root=str(tmp_path)).returncode == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"memory_mb": "much"}, "SANDBOX_MEMORY_MB"),
        ({"idle_tll": "5"}, "did you mean SANDBOX_IDLE_TTL?"),
        ({"listen": ":8090"}, "SANDBOX_API_KEY is not set"),
        ({"egress_allowlist": "pypi.example:x"}, "SANDBOX_EGRESS_ALLOWLIST"),
        ({"api_key": "short"}, "SANDBOX_API_KEY"),
    ],
)
def test_wrong_settings_end_the_start_with_a_sentence_and_2(tmp_path, values, said):
    done = command("serve", data_root=str(tmp_path / "data"), **values)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_a_data_root_in_use_ends_the_start_with_3(program, tmp_path):
    service = program()
    done = command("serve", data_root=str(tmp_path / "data"), runtime_backend="process", listen="127.0.0.1:0")
    assert done.returncode == 3
    assert f"pid {service.process.pid}" in done.stderr
    assert "Traceback" not in done.stderr


def test_config_shows_every_variable_and_masks_keys(monkeypatch, capsys):
    monkeypatch.setenv("SANDBOX_API_KEY", SECRET)
    monkeypatch.setenv("SANDBOX_IDLE_TTL", "2h")
    assert cli.main(["config"]) == 0
    plain = capsys.readouterr().out
    assert cli.main(["config", "--json"]) == 0
    entries = {entry["variable"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert SECRET not in plain + json.dumps(entries)
    for name, field in Settings.model_fields.items():
        assert variable(name) in plain
        assert field.description in plain
        assert entries[variable(name)]["sentence"] == field.description
    assert "SANDBOX_IDLE_TTL=7200 seconds  (default: 600)" in plain
    assert entries["SANDBOX_IDLE_TTL"] | {"sentence": ""} == {
        "variable": "SANDBOX_IDLE_TTL",
        "value": 7200.0,
        "unit": "seconds",
        "default": 600.0,
        "sentence": "",
    }


def test_config_with_a_wrong_variable_ends_with_2(monkeypatch, capsys):
    monkeypatch.setenv("SANDBOX_CPUS", "none")
    assert cli.main(["config"]) == 2
    assert "SANDBOX_CPUS" in capsys.readouterr().err


def test_the_command_without_the_service_says_what_to_install(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "interpreter.cli.serve", raising=False)
    monkeypatch.delitem(sys.modules, "interpreter.app", raising=False)
    monkeypatch.setitem(sys.modules, "tornado", None)
    monkeypatch.setitem(sys.modules, "tornado.netutil", None)
    assert cli.main(["serve"]) == 2
    assert "pip install 'cellbox[server]'" in capsys.readouterr().err


def test_version_and_help(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("cellbox ")
    assert cli.main([]) == 2
    said = capsys.readouterr().out
    assert "cellbox serve" in said
    assert "exit codes" in said
    with pytest.raises(SystemExit) as ended:
        cli.main(["nonsense"])
    assert ended.value.code == 2


def test_a_reader_that_has_had_enough_is_no_error_to_talk_about():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "interpreter", "config"],
            env=environment(),
            cwd=REPOSITORY,
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")
