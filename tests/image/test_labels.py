"""The image as the engine knows it."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

import pytest

import interpreter
from interpreter.backends.docker import image as making
from tests.image.conftest import engine

MOST_BYTES = 2_400_000_000
MOST_LAYERS = 8


def test_it_is_small_in_few_layers(image: dict[str, Any]) -> None:
    assert image["Size"] < MOST_BYTES
    assert len(image["RootFS"]["Layers"]) <= MOST_LAYERS


def test_the_labels_tell_its_inputs_and_its_version(image: dict[str, Any]) -> None:
    labels = image["Config"]["Labels"]
    if labels.get(making.INPUTS) != making.digest(making.inputs()) and os.environ.get("CI") != "true":
        pytest.skip("the image is of other sources: make image")
    assert labels[making.INPUTS] == making.digest(making.inputs())
    assert labels[making.VERSION] == interpreter.__version__


def test_the_command_of_the_health_label_tells_what_is_there(image, inside) -> None:
    said = inside(*shlex.split(image["Config"]["Labels"][making.HEALTH]))
    assert said.status == 0, said.err
    found = json.loads(said.out)
    assert found["kernels"] == ["bash", "node", "python"]
    assert found["python"].startswith("3.13.")


def test_programs_are_not_root_and_have_no_secrets_in_their_environment(image: dict[str, Any]) -> None:
    assert image["Config"]["User"] == "1000:1000"
    assert [entry.partition("=")[0] for entry in image["Config"]["Env"]] == ["PATH", "HOME", "LANG", "PYTHONUSERBASE"]


def test_the_history_names_no_address(image: dict[str, Any]) -> None:
    with engine() as api:
        history = [layer["CreatedBy"] for layer in api.history(image["Id"])]
    assert [line for line in history if "://" in line or "INDEX_URL" in line or "REGISTRY" in line] == []
