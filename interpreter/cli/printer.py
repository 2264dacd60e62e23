"""What a terminal shows of the events of an execution."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import TextIO

from interpreter.client import Event, NotReachable, Stream
from interpreter.client.results import png


class Printer:
    """Shows output, values and displays as text, and saves pictures.

    pictures: where to; None leaves them. as_json: shows each event as a line of JSON instead. asks: answers input by asking here.
    """

    def __init__(self, *, pictures: Path | None = None, as_json: bool = False, asks: bool = False) -> None:
        self._pictures = pictures
        self._json = as_json
        self._asks = asks
        self._started_line = False

    def follow(self, stream: Stream) -> Event:
        """Show all of it and return its last event. Ctrl-C interrupts the code, a second one ends the command.

        Raises CellboxError.
        """
        try:
            return self._follow(stream)
        except KeyboardInterrupt:
            if stream.execution_id is None:
                raise
            stream.cancel()
            return self._follow(stream)

    def _follow(self, stream: Stream) -> Event:
        for event in stream:
            self._show(event, stream)
            if event.type == "finished":
                return event
        raise NotReachable("The stream ended before the execution.")

    def _show(self, event: Event, stream: Stream) -> None:
        if self._json:
            print(json.dumps(event.fields), flush=True)
        elif event.type in ("stdout", "stderr"):
            self._write(event.text or "", sys.stdout if event.type == "stdout" else sys.stderr)
        elif event.type in ("result", "display", "update_display"):
            self._show_bundle(event)
        if event.type == "input_request" and self._asks:
            sys.stdout.flush()
            stream.answer(getpass.getpass(event.prompt or "") if event.password else input(event.prompt or ""))

    def _show_bundle(self, event: Event) -> None:
        data = event.data or {}
        picture = png(data)
        if picture is not None and self._pictures is not None:
            self._line(str(_saved(picture, self._pictures)))
        elif isinstance(text := data.get("text/plain"), str):
            self._line(text)

    def _line(self, text: str) -> None:
        self._write(("\n" if self._started_line else "") + text.rstrip("\n") + "\n", sys.stdout)

    def _write(self, text: str, to: TextIO) -> None:
        to.write(text)
        to.flush()
        if text and to is sys.stdout:
            self._started_line = not text.endswith("\n")


def _saved(picture: bytes, folder: Path) -> Path:
    """Write a picture under the next free number, and return where."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(file.stem) for file in folder.glob("*.png") if file.stem.isdecimal()), default=0)
    while True:
        try:
            with (folder / f"{number:03}.png").open("xb") as file:
                file.write(picture)
            return folder / f"{number:03}.png"
        except FileExistsError:
            number += 1
