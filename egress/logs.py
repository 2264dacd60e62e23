"""Log lines: one per decision, always with the same fields, safe to print: most of what is in them was said by a sandbox.

The form is that of the service's log, whose lines these stand between; this process imports nothing of the service.
"""

from __future__ import annotations

import json
import logging
import sys
import time

_MAX_VALUE = 300
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Formatter(logging.Formatter):
    """``2026-10-16T10:00:00.000Z INFO egress egress denied host=example.org port=443 …``: fields sorted by name."""

    default_msec_format = "%s.%03dZ"
    default_time_format = "%Y-%m-%dT%H:%M:%S"

    def __init__(self) -> None:
        super().__init__()
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it if there is one."""
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        pairs = "".join(f" {name}={_value(fields[name])}" for name in sorted(fields))
        line = f"{self.formatTime(record)} {record.levelname} {record.name} {_plain(record.getMessage())}{pairs}"
        if not record.exc_info:
            return line
        below = (f"  {_plain(text)}" for text in self.formatException(record.exc_info).split("\n"))
        return "\n".join([line, *below])


def configure() -> None:
    """Send the log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:2000])


def _value(value: object) -> str:
    if isinstance(value, int | float) or value is None:
        return str(value)
    text = str(value)[:_MAX_VALUE]
    return text if text.isascii() and text.translate(_MARKS).isalnum() else json.dumps(text)


_MARKS = str.maketrans("", "", "-_.")
