"""``runtime/images.sh``: from one engine's images to another's, through a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import engines
from tests.backends.docker import tiny
from tests.image.conftest import engine

SCRIPT = Path(__file__).parents[2] / "runtime" / "images.sh"
TAG = f"tests-{os.getpid()}"
OURS = [f"registry.test/team/cellbox-runtime:{TAG}", f"cellbox-server:{TAG}"]
OTHERS = [f"cellbox-runtime-of-others:{TAG}", f"notcellbox-runtime:{TAG}", "cellbox-runtime:tests-0"]

pytestmark = [engines.needed, pytest.mark.skipif(shutil.which("docker") is None, reason="the script needs `docker`")]


def script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DOCKER_HOST": engines.ADDRESS}
    return subprocess.run(
        [SCRIPT, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=100
    )


@pytest.fixture
def tagged() -> Iterator[None]:
    tiny.make(engines.ADDRESS)
    with engine() as api:
        for name in OURS + OTHERS:
            api.tag(tiny.IMAGE, *name.rsplit(":", 1))
        yield
        for name in OURS + OTHERS:
            if api.images(name):
                api.remove_image(name)


@pytest.mark.parametrize("file", ["images.tar", "images.tar.gz"])
def test_all_of_ours_and_no_other_are_carried(tagged, tmp_path, file):
    saved = script("save", tmp_path / file, TAG)
    assert sorted(saved.stderr.split("\n")[:-1]) == sorted(f"saving {name}" for name in OURS)
    assert [entry.name for entry in tmp_path.iterdir()] == [file]
    with engine() as api:
        for name in OURS + OTHERS:
            api.remove_image(name)
    loaded = script("load", tmp_path / file)
    assert sorted(loaded.stdout.split("\n")[:-1]) == sorted(f"Loaded image: {name}" for name in OURS)


def test_nothing_to_carry_is_refused(tmp_path):
    saved = script("save", tmp_path / "images.tar", "tests-none")
    assert (saved.returncode, saved.stderr) == (1, "the engine has no image called cellbox-…:tests-none\n")
    assert list(tmp_path.iterdir()) == []


def test_called_wrongly_it_says_how():
    assert "images.sh save FILE" in script("keep", "x").stderr
    assert script("save").returncode == 2
