"""docker-compose.yml and .env.example: valid, and what they set is what the service knows."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from interpreter.settings import Settings, load, variable

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
EXAMPLE = ROOT / ".env.example"


def validated(schema: str, *files: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--output-format", "json", "--builtin-schema", schema]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "ok"), done.stdout + done.stderr


def service(name: str = "sandbox-server") -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(COMPOSE.read_text())["services"][name]
    return found


def test_the_compose_file_is_one() -> None:
    validated("vendor.compose-spec", COMPOSE)


def test_the_workflows_are_workflows() -> None:
    validated("vendor.github-workflows", *(ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_data_root_has_the_same_path_on_the_host() -> None:
    """The engine looks up on the host what a sandbox is shown."""
    root = service()["environment"]["SANDBOX_DATA_ROOT"]
    mounts = [each for each in service()["volumes"] if isinstance(each, dict)]
    assert [(each["source"], each["target"]) for each in mounts if each["target"] == root] == [(root, root)]
    assert root == "${SANDBOX_DATA_ROOT:-/opt/cellbox/data}"


def test_sockets_lie_beside_the_data_where_the_engine_makes_a_directory() -> None:
    """A structured bind of a directory that is missing, as after a restart of the host, would end the start."""
    place = "${SANDBOX_LINK_DIR:-/run/cellbox}"
    assert service()["environment"]["SANDBOX_LINK_DIR"] == place
    assert f"{place}:{place}" in service()["volumes"]


def test_only_the_local_host_reaches_it_unless_the_port_is_published_elsewhere() -> None:
    assert service()["ports"] == ["${SANDBOX_BIND:-127.0.0.1}:${CELLBOX_PORT:-8090}:8090"]
    assert service()["environment"]["SANDBOX_LISTEN"] == ":8090"


def test_the_service_has_of_root_what_it_needs() -> None:
    found = service()
    assert found["cap_drop"] == ["ALL"]
    assert set(found["cap_add"]) == {"CHOWN", "DAC_OVERRIDE", "FOWNER"}
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["read_only"] is True
    assert "privileged" not in found


def test_the_way_out_has_the_sockets_and_nothing_else() -> None:
    found, place = service("egress"), "${SANDBOX_LINK_DIR:-/run/cellbox}"
    assert found["volumes"] == [f"{place}:{place}"]
    assert found["cap_drop"] == ["ALL"]
    assert found["read_only"] is True
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert not {"cap_add", "privileged", "env_file", "environment", "ports", "network_mode"} & found.keys()


def test_the_service_finds_the_way_out_where_it_listens() -> None:
    environment = service()["environment"]
    assert environment["SANDBOX_NETWORK"] == "${SANDBOX_NETWORK:-proxy}"
    assert environment["SANDBOX_EGRESS_CONTROL"] == service("egress")["entrypoint"][-1]
    assert service("egress")["image"] == service()["image"]


def test_it_comes_back_by_itself_and_has_time_to_end_what_runs() -> None:
    assert service()["restart"] == "unless-stopped"
    drain_s = Settings.model_fields["drain_timeout"].default
    assert int(service()["stop_grace_period"].removesuffix("s")) >= drain_s + 40


def test_every_variable_that_is_named_exists() -> None:
    known = {variable(name) for name in Settings.model_fields}
    for file in (COMPOSE, EXAMPLE, ROOT / "install.sh", ROOT / "Dockerfile"):
        assert set(re.findall(r"\bSANDBOX_[A-Z_]+\b", file.read_text())) - known == set(), file.name


def test_the_example_has_good_values() -> None:
    lines = [line.lstrip("#") for line in EXAMPLE.read_text().splitlines()]
    values = dict(line.split("=", 1) for line in lines if re.fullmatch(r"[A-Z_]+=.*", line))
    assert values["SANDBOX_API_KEY"] == ""  # so that nobody starts with a key that everybody knows
    load({name: value for name, value in values.items() if name.startswith("SANDBOX_")})


def test_the_release_makes_both_images_for_both_architectures_and_the_wheel() -> None:
    release = YAML(typ="safe").load((ROOT / ".github/workflows/release.yml").read_text())
    assert release["on"] == {"push": {"tags": ["v*"]}}
    assert set(release["jobs"]) == {"version", "images", "wheel"}
    made = release["jobs"]["images"]["strategy"]["matrix"]["include"]
    assert {each["name"]: each["file"] for each in made} == {
        "cellbox-server": "Dockerfile",
        "cellbox-runtime": "runtime/Dockerfile",
    }
    assert all((ROOT / each["file"]).is_file() for each in made)
    (build,) = [each for each in release["jobs"]["images"]["steps"] if "build-push" in each.get("uses", "")]
    assert build["with"]["platforms"] == "linux/amd64,linux/arm64"
    assert release["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("name", ["Dockerfile", "runtime/Dockerfile"])
def test_where_packages_come_from_is_no_part_of_an_image(name: str) -> None:
    """The arguments of a build stand in the history of the stage that declares them; only the last stage is kept."""
    last = re.split(r"^FROM ", (ROOT / name).read_text(), flags=re.MULTILINE)[-1]
    assert not re.search(r"^ARG\b|_INDEX_URL|_REGISTRY", last, re.MULTILINE)
