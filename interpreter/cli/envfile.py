"""The file ``.env`` beside a docker-compose.yml, read as Compose reads an ``env_file``."""

from __future__ import annotations

import re
from pathlib import Path

from interpreter.settings import SettingsError

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


def read(file: Path) -> dict[str, str]:
    """Return the variables that ``file`` sets. Raises SettingsError: it cannot be read, or a line sets none."""
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}.") from error
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise SettingsError(f"{file}, line {number}: not of the form NAME=value.")
        found[match[1]] = _value(match[2])
    return found


def _value(text: str) -> str:
    """Return what a value means: without its quotes, or without the comment after it."""
    if quoted := re.fullmatch(r"""(['"])(.*?)\1\s*(?:#.*)?""", text):
        return quoted[2]
    return re.split(r"(?:^|\s+)#", text, maxsplit=1)[0].rstrip()
