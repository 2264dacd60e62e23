"""install.sh in a root of its own: this host's programs, an empty /opt, and a ``docker`` that writes down what it is told."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "install.sh"

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None or os.geteuid() != 0, reason="needs root and bubblewrap: apt-get install bubblewrap"
)

DOCKER = """#!/bin/bash
echo "docker $*" >>/t/log
case "$*" in
  version*) [ ! -e /t/no-engine ] && echo 28.5.1 ;;
  "compose version") ;;
  "image inspect"*) grep -qxF "${@: -1}" /t/images ;;
  "compose ps"*) echo container ;;
  inspect*) echo healthy ;;
esac
"""
APT = """#!/bin/bash
echo "apt-get $*" >>/t/log
for word; do case $word in Dir::Etc::SourceList=*) cat "${word#*=}" >>/t/log ;; esac; done
case "$*" in *docker.io*) cp /t/docker /t/bin/docker ;; esac
"""
TOOLS = "bash cat chmod cp dirname env grep id install mktemp mv od printf rm sed sleep tail tr true uname"
"""What the script finds of the host, which may have an engine or not."""


class Machine:
    """A machine as install.sh sees it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "bin").mkdir()
        (place / "tools").mkdir()
        for name in TOOLS.split():
            (place / "tools" / name).symlink_to(f"/usr/bin/{name}")
        (place / "opt").mkdir()
        for name, text in (("docker", DOCKER), ("apt", APT)):
            (place / name).write_text(text)
            (place / name).chmod(0o755)
        shutil.copy(place / "docker", place / "bin" / "docker")
        shutil.copy(place / "apt", place / "bin" / "apt-get")
        (place / "bin" / "systemctl").symlink_to("/bin/true")
        (place / "log").touch()
        self.have("cellbox-server:latest", "cellbox-runtime:latest")

    def have(self, *images: str) -> None:
        (self.place / "images").write_text("".join(f"{image}\n" for image in images))

    def install(self, *, clone: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the script: of the repository, or a copy that stands alone."""
        shutil.copy(SCRIPT, self.place / "install.sh")
        words = ["bwrap", "--tmpfs", "/"]
        for top in ("usr", "etc", "bin", "sbin", "lib", "lib64"):
            if (place := Path("/", top)).is_symlink():
                words += ["--symlink", os.readlink(place), str(place)]
            elif place.exists():
                words += ["--ro-bind", str(place), str(place)]
        words += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--bind", str(self.place / "opt"), "/opt"]
        words += ["--bind", str(self.place), "/t", "--ro-bind", str(ROOT), "/clone", "--clearenv"]
        for name, value in {"PATH": "/t/bin:/t/tools", **variables}.items():
            words += ["--setenv", name, value]
        words += ["--", "bash", "/clone/install.sh" if clone else "/t/install.sh"]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    @property
    def log(self) -> str:
        return (self.place / "log").read_text()

    @property
    def home(self) -> Path:
        return self.place / "opt" / "cellbox"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def key(machine: Machine) -> str:
    (line,) = [each for each in (machine.home / ".env").read_text().splitlines() if each.startswith("SANDBOX_API_KEY=")]
    return line.partition("=")[2]


def test_an_offline_installation_has_everything_in_its_place(machine: Machine) -> None:
    done = machine.install(CELLBOX_SKIP_PULL="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()[:4]] == ["engine:", "images:", "settings:", "service:"]
    assert "http://127.0.0.1:8090" in done.stdout
    assert len(key(machine)) == 64
    assert key(machine) not in done.stdout + done.stderr
    assert mode(machine.home / ".env") == 0o600
    assert mode(machine.home / "data") == 0o700
    assert "build:" not in (machine.home / "docker-compose.yml").read_text()
    assert "docker compose up --detach" in machine.log
    assert "docker pull" not in machine.log
    assert sorted(entry.name for entry in machine.home.iterdir()) == [".env", "data", "docker-compose.yml"]


def test_running_it_again_keeps_settings_and_data_and_upgrades(machine: Machine) -> None:
    assert machine.install(CELLBOX_SKIP_PULL="1").returncode == 0
    with (machine.home / ".env").open("a") as settings:
        settings.write("SANDBOX_CPUS=2\nCELLBOX_PORT=9000\n")
    before = (machine.home / ".env").read_text()
    (machine.home / "data" / "note").write_text("kept")
    (machine.home / "docker-compose.yml").write_text("of an older version")
    done = machine.install(CELLBOX_IMAGE_PREFIX="registry.example.org/ada/", VERSION="1.2.3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (machine.home / ".env").read_text() == before
    assert "http://127.0.0.1:9000" in done.stdout
    assert (machine.home / "data" / "note").read_text() == "kept"
    assert "sandbox-server:" in (machine.home / "docker-compose.yml").read_text()
    for name in ("cellbox-server", "cellbox-runtime"):
        assert f"docker pull --quiet registry.example.org/ada/{name}:1.2.3\n" in machine.log
        assert f"docker tag registry.example.org/ada/{name}:1.2.3 {name}:latest\n" in machine.log


def test_a_clone_makes_its_images(machine: Machine) -> None:
    machine.have("debian:trixie-slim")
    done = machine.install(PIP_INDEX_URL="https://pip.example.org/simple")
    assert done.returncode == 0, done.stdout + done.stderr
    build, run = [line for line in machine.log.splitlines() if line.startswith(("docker build", "docker run"))]
    assert "--build-arg PIP_INDEX_URL=https://pip.example.org/simple" in build
    assert build.endswith("--tag cellbox-server:latest /clone")
    assert "--env PIP_INDEX_URL=https://pip.example.org/simple" in run
    assert run.endswith("cellbox-server:latest image build")


def test_the_script_alone_brings_the_compose_file_of_the_repository(machine: Machine) -> None:
    """Without what makes the image from a directory: there is none beside it."""
    done = machine.install(clone=False, CELLBOX_SKIP_PULL="1")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (ROOT / "docker-compose.yml").read_text().splitlines(keepends=True)
    assert (machine.home / "docker-compose.yml").read_text() == "".join(
        each for each in lines if "build: ." not in each
    )


def test_docker_is_installed_where_it_is_missing_from_the_mirror_that_is_given(machine: Machine) -> None:
    (machine.place / "bin" / "docker").unlink()
    done = machine.install(CELLBOX_SKIP_PULL="1", MIRROR="http://mirror.example.org/debian")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "installing Docker" in done.stdout
    assert "install -y docker.io" in machine.log
    assert "deb http://mirror.example.org/debian " in machine.log


@pytest.mark.parametrize(
    ("prepare", "clone", "variables", "said"),
    [
        (
            lambda one: one.have("cellbox-server:latest"),
            True,
            {"CELLBOX_SKIP_PULL": "1"},
            "cellbox-runtime is not here",
        ),
        (lambda one: (one.place / "no-engine").touch(), True, {}, "does not answer"),
        (lambda one: None, False, {}, "CELLBOX_IMAGE_PREFIX"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_made(machine: Machine, prepare, clone, variables, said) -> None:
    prepare(machine)
    done = machine.install(clone=clone, **variables)
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not machine.home.exists()
