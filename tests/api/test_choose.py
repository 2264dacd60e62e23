"""The choice of a backend: named, remembered or first; never a weaker one in silence."""

import shutil

import pytest

from interpreter.backends.base import BackendUnavailable
from interpreter.backends.choose import BackendConfig, choose
from tests.fakes import engine as engines


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
    root = tmp_path / "root"
    root.mkdir()
    return BackendConfig(root, 600.0, 199_999, image="there:latest")


@pytest.fixture
def engine(config):
    with engines.running(config.root.parent / "engine") as engine:
        yield engine


def has_bwrap(monkeypatch, there):
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/bwrap" if there and name == "bwrap" else None)


async def test_auto_without_anything_says_how_to_get_either(monkeypatch, config):
    has_bwrap(monkeypatch, there=False)
    with pytest.raises(BackendUnavailable, match=r"cellbox image build.*apt-get install bubblewrap"):
        choose("auto", config)
    assert list(config.root.iterdir()) == []


async def test_auto_chooses_once_and_remembers(monkeypatch, config):
    has_bwrap(monkeypatch, there=True)
    choice = choose("auto", config)
    assert (choice.backend.name, "first start" in choice.why) == ("bubblewrap", True)
    assert list(config.root.iterdir()) == []
    choice.remember()
    has_bwrap(monkeypatch, there=False)
    again = choose("auto", config)
    assert again.backend.name == "bubblewrap"
    assert again.file is None


async def test_auto_takes_docker_where_the_engine_has_the_image(monkeypatch, config, engine):
    has_bwrap(monkeypatch, there=True)
    choice = choose("auto", config)
    assert choice.backend.name == "docker"
    choice.remember()
    del engine.answers["GET /images/there:latest/json"]
    assert choose("auto", config).backend.name == "docker"


async def test_auto_takes_bubblewrap_where_the_engine_has_no_such_image(monkeypatch, config, engine):
    has_bwrap(monkeypatch, there=True)
    del engine.answers["GET /images/there:latest/json"]
    assert choose("auto", config).backend.name == "bubblewrap"


@pytest.mark.parametrize("remembered", ["", "nonsense"])
async def test_a_remembered_backend_that_is_not_there_is_an_error(monkeypatch, config, remembered):
    has_bwrap(monkeypatch, there=True)
    (config.root / ".backend").write_text(remembered)
    with pytest.raises(BackendUnavailable, match="not there in this version"):
        choose("auto", config)


@pytest.mark.parametrize("name", ["process", "bubblewrap", "docker"])
async def test_a_named_backend_is_used_and_not_remembered(config, name):
    choice = choose(name, config)
    assert choice.backend.name == name
    choice.remember()
    assert list(config.root.iterdir()) == []


@pytest.mark.parametrize("setting", [{"network": "bridge"}, {"runtime": "runsc"}])
@pytest.mark.parametrize("name", ["process", "bubblewrap"])
async def test_what_only_docker_has_is_refused_elsewhere(config, name, setting):
    from dataclasses import replace

    with pytest.raises(BackendUnavailable, match="an engine and SANDBOX_RUNTIME"):
        choose(name, replace(config, **setting))


async def test_the_proxy_is_a_way_out_of_what_confines_only(config):
    from dataclasses import replace

    with pytest.raises(BackendUnavailable, match="confines nothing"):
        choose("process", replace(config, network="proxy"))
    assert choose("bubblewrap", replace(config, network="proxy")).backend.name == "bubblewrap"
    assert choose("docker", replace(config, network="proxy")).backend.name == "docker"
