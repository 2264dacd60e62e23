"""Kernels of others in a real sandbox: installed by a scope for itself, reached over the loopback that is all its network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Cellbox

DENO = Path(__file__).parents[2] / ".venv-foreign/bin/deno"


def install(cellbox: Cellbox, scope: str, name: str, **spec: Any) -> None:
    """As its user would, so the name is there for every session of the scope."""
    content = json.dumps({"display_name": name, "language": "x"} | spec)
    code = f"d=~/.local/share/jupyter/kernels/{name}; mkdir -p $d; cat > $d/kernel.json"
    assert cellbox.exec(code, language="bash", scope=scope, stdin=content)["exit_code"] == 0


def text_of(answer: dict[str, Any]) -> str | None:
    return next((entry["data"]["text/plain"] for entry in answer["results"] if entry["type"] == "result"), None)


def test_stock_ipykernel(cellbox: Cellbox, scope: str) -> None:
    install(cellbox, scope, "stock", argv=["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    stock = {"scope": scope, "language": "Stock", "session": "a"}
    first = cellbox.cell("x = 41\nprint('out')\nx + 1", **stock)
    assert (text_of(first), first["stdout"], first["state"], first["generation"]) == ("42", "out\n", "new", 1)
    interrupted = cellbox.cell("import time\ntime.sleep(60)", timeout=0.5, **stock)
    assert (interrupted["status"], interrupted["exit_code"], interrupted["state"]) == ("timeout", 124, "kept")
    assert text_of(cellbox.cell("x", **stock)) == "41"
    other = cellbox.cell("x", context="other", **stock)
    assert (other["status"], other["error"]["name"]) == ("error", "NameError")
    listed = cellbox.client.get(f"/v1/kernels/{scope}", params={"session": "a"}).json()["kernels"]
    assert sorted((kernel["language"], kernel["context"]) for kernel in listed) == [
        ("stock", "default"),
        ("stock", "other"),
    ]
    died = cellbox.cell("import os\nos._exit(3)", **stock)
    assert (died["status"], died["reason"], died["exit_code"], died["state"]) == ("died", "exit", 3, "lost")
    assert cellbox.cell("1", **stock)["generation"] == 2


@pytest.mark.parametrize("field", [{"env": {"A": "b"}}, {"cwd": "/tmp"}, {"stdin": "x"}])
def test_what_it_cannot_do_is_refused_by_name(cellbox: Cellbox, scope: str, field: dict[str, Any]) -> None:
    install(cellbox, scope, "stock", argv=["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    response = cellbox.post(scope=scope, language="stock", code="1", stateful=True, **field)
    assert (response.status_code, response.json()["code"]) == (400, "unsupported_field")
    assert response.json()["message"].startswith(next(iter(field)))


def test_an_unknown_one_is_answered_with_those_there_are(cellbox: Cellbox, scope: str) -> None:
    install(cellbox, scope, "stock", argv=["true"])
    response = cellbox.post(scope=scope, language="nothing", code="1", stateful=True)
    assert (response.status_code, response.json()["code"]) == (400, "unknown_language")
    for name in ("python", "node", "bash"):
        assert name in response.json()["message"]
    broken = cellbox.post(scope=scope, language="stock", code="1", stateful=True)
    assert (broken.status_code, broken.json()["code"]) == (503, "kernel_start_failed")


@pytest.mark.alone  # it publishes a result some time after it has said that it is idle
@pytest.mark.skipif(not DENO.exists(), reason="deno is not installed: make test")
def test_deno(cellbox: Cellbox, scope: str) -> None:
    argv = ["/opt/user/deno", "jupyter", "--kernel", "--conn", "{connection_file}"]
    install(cellbox, scope, "deno", argv=argv, interrupt_mode="message")
    program = cellbox.root / scope / "workspace" / "deno"
    shutil.copy(DENO, program)
    deno = {"scope": scope, "language": "deno", "session": "a"}
    first = cellbox.cell("const x: number = 41; console.log('out'); x + 1", **deno)
    assert (text_of(first), first["stdout"], first["state"]) == ("42", "out\n", "new")
    interrupted = cellbox.cell("while (true) {}", timeout=0.5, **deno)
    assert (interrupted["status"], interrupted["exit_code"], interrupted["state"]) == ("timeout", 124, "kept")
    assert text_of(cellbox.cell("x", **deno)) == "41"
    failed = cellbox.cell("throw new RangeError('no')", **deno)
    assert (failed["status"], failed["error"]["name"], failed["error"]["value"]) == ("error", "RangeError", "no")
    died = cellbox.cell("Deno.exit(4)", **deno)
    assert (died["status"], died["reason"], died["exit_code"]) == ("died", "exit", 4)
    assert cellbox.cell("1", **deno)["state"] == "new"
    assert cellbox.client.delete(f"/v1/scopes/{scope}?purge=true").status_code == 200  # a hundred megabytes
