"""``cellbox config``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from interpreter import settings
from interpreter.cli import OK, WRONG
from interpreter.settings import Settings, variable

MASK = "********"


def run(arguments: argparse.Namespace) -> int:
    """Print the settings as they would hold for a service started here."""
    try:
        entries = list(described(settings.load()))
    except settings.SettingsError as error:
        print(error, file=sys.stderr)
        return WRONG
    if arguments.json:
        print(json.dumps(entries, indent=2))
        return OK
    for entry in entries:
        unit = f" {entry['unit']}" if entry["unit"] and entry["value"] is not None else ""
        default = "none" if entry["default"] in (None, "") else entry["default"]
        print(f"{entry['variable']}={_plain(entry['value'])}{unit}  (default: {_plain(default)})")
        print(f"    {entry['sentence']}")
    return OK


def described(found: Settings) -> Iterator[dict[str, Any]]:
    """Yield each variable with its value, unit, default and sentence; JSON values, keys masked."""
    for name, field in Settings.model_fields.items():
        yield {
            "variable": variable(name),
            "value": _value(getattr(found, name)),
            "unit": _unit(field),
            "default": _value(field.default),
            "sentence": field.description,
        }


def _unit(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra["unit"]) if isinstance(extra, dict) else ""


def _value(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, PurePath) else value


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)
