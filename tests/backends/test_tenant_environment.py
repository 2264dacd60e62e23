"""The variables of tenants' programs."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from interpreter.backends.tenant_environment import tenant_environment

USER, VENV = PurePosixPath("/opt/user"), PurePosixPath("/opt/cellbox/venv")


def test_nothing_of_the_services_environment_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tenant_environment(user=USER, venv=VENV, cpus=1)
    monkeypatch.setenv("HOME", "/home/operator")
    monkeypatch.setenv("SANDBOX_API_KEY", "secret")
    assert tenant_environment(user=USER, venv=VENV, cpus=1) == before
    assert "SANDBOX_API_KEY" not in before


@pytest.mark.parametrize(("cpus", "threads"), [(0.1, "1"), (1.0, "1"), (1.5, "2"), (4.0, "4")])
def test_libraries_get_as_many_threads_as_cores_rounded_up(cpus: float, threads: str) -> None:
    assert tenant_environment(user=USER, venv=VENV, cpus=cpus)["OMP_NUM_THREADS"] == threads


def test_programs_can_see_how_much_memory_they_have() -> None:
    assert "CELLBOX_MEMORY_MIB" not in tenant_environment(user=USER, venv=VENV, cpus=1)
    assert tenant_environment(user=USER, venv=VENV, cpus=1, memory_mib=512)["CELLBOX_MEMORY_MIB"] == "512"


def test_what_the_user_installs_comes_before_what_came_with_the_sandbox() -> None:
    variables = tenant_environment(user=USER, venv=VENV, cpus=1)
    assert variables["PATH"].split(":")[:2] == ["/opt/user/.local/bin", "/opt/cellbox/venv/bin"]
    assert variables["PYTHONUSERBASE"] == variables["NPM_CONFIG_PREFIX"] == "/opt/user/.local"
    assert variables["PIP_BREAK_SYSTEM_PACKAGES"] == "1"
    assert "PIP_USER" not in variables  # it would make `pip list` show nothing else, and refuse --target


def test_indexes_are_set_only_when_given() -> None:
    assert "PIP_INDEX_URL" not in tenant_environment(user=USER, venv=VENV, cpus=1)
    given = tenant_environment(
        user=USER, venv=VENV, cpus=1, pip_index_url="https://p.example", npm_registry="https://n.example"
    )
    assert (given["PIP_INDEX_URL"], given["NPM_CONFIG_REGISTRY"]) == ("https://p.example", "https://n.example")
