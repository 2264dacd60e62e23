"""``cellbox image``."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from interpreter import settings
from interpreter.backends.docker import image
from interpreter.cli import FAILED, OK, WRONG

_MIB = 2**20


class Progress:
    """Shows what goes on: on a terminal one line that changes, elsewhere a line per step."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._shown = ""

    def say(self, line: str) -> None:
        """Show this line."""
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{self._elapsed()} {line}"[: width + 4], end="", file=sys.stderr, flush=True)
        elif line.partition(" ")[0] != self._shown.partition(" ")[0]:
            print(f"{self._elapsed()} {line[:100]}", file=sys.stderr, flush=True)
        self._shown = line

    def end(self) -> None:
        """Leave the terminal as it was."""
        if self._terminal and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _elapsed(self) -> str:
        return f"[{time.monotonic() - self._since:4.0f} s]"


def run(arguments: argparse.Namespace) -> int:
    """Do what ``cellbox image`` was told. Exit code 1: it could not be done."""
    try:
        name = settings.load().image
    except settings.SettingsError as error:
        print(error, file=sys.stderr)
        return WRONG
    progress = Progress()
    try:
        _do(arguments, name, progress)
    except image.ImageError as error:
        progress.end()
        print(error, file=sys.stderr)
        return FAILED
    return OK


def _do(arguments: argparse.Namespace, name: str, progress: Progress) -> None:
    if arguments.action == "inputs":
        print(image.digest(image.inputs()))
    elif arguments.action == "build":
        since = time.monotonic()
        built = image.build(name, progress.say, fresh=arguments.fresh)
        progress.end()
        how = f"made in {time.monotonic() - since:.0f} s" if built.made else "up to date"
        print(f"{built.name}: {how}, {built.bytes / _MIB:.0f} MiB, inputs {built.inputs[:12]}")
    elif arguments.action == "save":
        size = image.save(name, Path(arguments.file), progress.say)
        progress.end()
        print(f"{name}: saved, {size / _MIB:.0f} MiB")
    else:
        names = image.load(Path(arguments.file), progress.say)
        progress.end()
        print(f"loaded: {', '.join(names)}")
