"""Log lines: one per event, always with the same fields, safe to print.

Promises: a value cannot break its line or end the next field, and is cut. ``request_id`` is on each line that a request
caused.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="-")
"""Of the request that is being served; set by http/base.py, inherited by the tasks it starts."""

MAX_VALUE = 200
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class Formatter(logging.Formatter):
    """``2026-10-16T10:00:00.000Z INFO cellbox.http request status=200 …``: extras as sorted ``name=value`` pairs."""

    default_msec_format = "%s.%03dZ"
    default_time_format = "%Y-%m-%dT%H:%M:%S"

    def __init__(self) -> None:
        super().__init__()
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it if there is one."""
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields.setdefault("request_id", REQUEST_ID.get())
        pairs = " ".join(f"{name}={_value(fields[name])}" for name in sorted(fields))
        line = f"{self.formatTime(record)} {record.levelname} {record.name} {_plain(record.getMessage())} {pairs}"
        if not record.exc_info:
            return line
        # An error may quote what a sandbox sent: indented, no line of it can be taken for one of the log.
        below = (f"  {_plain(text)}" for text in self.formatException(record.exc_info).split("\n"))
        return "\n".join([line, *below])


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:2000])


def _value(value: object) -> str:
    if isinstance(value, int | float) or value is None:
        return str(value)
    text = str(value)[:MAX_VALUE]
    return text if text.isascii() and text.replace("-", "").replace("_", "").isalnum() else json.dumps(text)


def configure(level: int = logging.INFO) -> None:
    """Send the service's log to stderr. Tornado's own lines quote what clients sent: only its warnings are kept."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("cellbox").setLevel(level)
    logging.getLogger("interpreter").setLevel(level)
