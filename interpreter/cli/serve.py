"""``cellbox serve``."""

from __future__ import annotations

import argparse
import asyncio
import sys

from interpreter import logs, settings
from interpreter.app import StartError, check, serve
from interpreter.cli import CANNOT, OK, WRONG


def run(_arguments: argparse.Namespace) -> int:
    """Serve until a signal says otherwise."""
    logs.configure()
    try:
        found = settings.load()
        check(found)
    except settings.SettingsError as error:
        print(error, file=sys.stderr)
        return WRONG
    try:
        asyncio.run(serve(found, say=_say))
    except StartError as error:
        print(error, file=sys.stderr)
        return CANNOT
    return OK


def _say(line: str) -> None:
    print(line, flush=True)
