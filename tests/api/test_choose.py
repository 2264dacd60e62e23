"""The choice of a backend: named, remembered or first; never a weaker one in silence."""

import shutil

import pytest

from interpreter.backends.base import BackendUnavailable
from interpreter.backends.choose import BackendConfig, choose


@pytest.fixture
def config(tmp_path):
    return BackendConfig(tmp_path, 600.0, 199_999)


def has_bwrap(monkeypatch, there):
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/bwrap" if there and name == "bwrap" else None)


async def test_auto_without_bubblewrap_says_how_to_get_it(monkeypatch, config):
    has_bwrap(monkeypatch, there=False)
    with pytest.raises(BackendUnavailable, match="apt-get install bubblewrap"):
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


@pytest.mark.parametrize("remembered", ["docker", "", "nonsense"])
async def test_a_remembered_backend_that_is_not_there_is_an_error(monkeypatch, config, remembered):
    has_bwrap(monkeypatch, there=True)
    (config.root / ".backend").write_text(remembered)
    with pytest.raises(BackendUnavailable, match="not there in this version"):
        choose("auto", config)


@pytest.mark.parametrize("name", ["process", "bubblewrap"])
async def test_a_named_backend_is_used_and_not_remembered(config, name):
    choice = choose(name, config)
    assert choice.backend.name == name
    choice.remember()
    assert list(config.root.iterdir()) == []
