"""``cellbox ps``: the sandboxes that exist, and the kernels in them."""

from __future__ import annotations

import argparse
import json

from interpreter import wire
from interpreter.cli import OK
from interpreter.cli.calling import called
from interpreter.client import Client


def run(arguments: argparse.Namespace) -> int:
    """Print them, a line for each sandbox."""
    return called(arguments, lambda client: _ps(client, arguments))


def _ps(client: Client, arguments: argparse.Namespace) -> int:
    scopes = [arguments.scope] if arguments.scope else client.scopes()
    found = [(scope, each) for scope in scopes for each in client.sessions(scope)]
    if arguments.json:
        print(json.dumps([{"scope": scope, **each.model_dump()} for scope, each in found], indent=2))
        return OK
    rows = [("SCOPE", "SESSION", "STATE", "MEMORY", "LAST USED", "KERNELS")]
    rows += [(scope, each.session or "", *_columns(each)) for scope, each in found]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return OK


def _columns(each: wire.SessionInfo) -> tuple[str, str, str, str]:
    memory = "" if each.memory_bytes is None else f"{each.memory_bytes / 2**20:.0f} MB"
    kernels = [
        f"{kernel.language}{'' if kernel.context == 'default' else ':' + kernel.context} ({kernel.state})"
        for kernel in each.kernels
    ]
    return each.state, memory, each.last_used_at, ", ".join(kernels)
