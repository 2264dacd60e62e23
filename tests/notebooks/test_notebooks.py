"""The notebooks run as they stand, and show what they show."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import nbformat
import pytest

from tests.client.conftest import cellbox  # noqa: F401 - a fixture
from tests.e2e.conftest import KEY, Cellbox
from tests.notebooks.notebook import FOLDER, NAMES, outputs, read


def shown(cells: list[list[dict[str, Any]]]) -> str:
    """What is compared: pictures by their kind, since fonts and versions change their bytes."""
    text = json.dumps(cells, indent=1, ensure_ascii=False, sort_keys=True)
    for cell in cells:
        for output in cell:
            if image := output.get("data", {}).get("image/png"):
                assert base64.b64decode(image).startswith(b"\x89PNG")
                text = text.replace(json.dumps(image), '"a picture"')
    return text


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_what_it_shows(
    cellbox: Cellbox,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv("CELLBOX_URL", cellbox.url)
    monkeypatch.setenv("CELLBOX_API_KEY", KEY)
    monkeypatch.chdir(FOLDER)
    notebook = read(name)
    before = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert shown(outputs(notebook)) == shown(before)
    assert cellbox.client.get("/v1/scopes").json() == {"scopes": []}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_of_jupyters_format_and_names_no_machine(name: str) -> None:
    nbformat.validate(nbformat.read(FOLDER / name, as_version=4))
    text = (FOLDER / name).read_text()
    assert "http://" not in text
    assert os.environ.get("CELLBOX_API_KEY", KEY) not in text


def test_there_are_three() -> None:
    assert NAMES == ["agent_loop.ipynb", "data_analysis.ipynb", "two_languages.ipynb"]
