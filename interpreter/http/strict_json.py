"""JSON as the contract takes it: strict UTF-8, one value per key, nothing that JSON does not have.

Promises: ``parse`` returns an object or raises InvalidRequest, whatever the bytes, in time linear in them.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from interpreter.errors import InvalidRequest

MAX_DEPTH = 32
MAX_VALUES = 100_000
"""Of lists and objects together: 32 MiB of `[],` would become a gigabyte of empty lists."""

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class _Wrong(ValueError):
    """Found while parsing; the text is for the caller."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # as meant
        raise _Wrong(f"has the key {twice[:64]!a} twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise _Wrong(f"has {text}, which is not JSON")


def _integer(text: str) -> int:
    if len(text) > 40:
        raise _Wrong("has a number of more than 40 digits")
    return int(text)


_decoder = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_no_constant, parse_int=_integer)


def parse(body: bytes | bytearray) -> dict[str, Any]:
    """Return the object in ``body``. Raises InvalidRequest, whose text quotes nothing but keys."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not UTF-8.") from None
    if _marks(text) > MAX_VALUES and _marks(_STRING.sub("", text)) > MAX_VALUES:
        raise InvalidRequest(f"The body has more than {MAX_VALUES} values.")
    try:
        value = _decoder.decode(text)
    except _Wrong as error:
        raise InvalidRequest(f"The body {error}.") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not JSON: line {error.lineno}, column {error.colno}.") from None
    except RecursionError:
        raise InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    _check(value, lone_surrogates="\\u" in text)
    return value


def _marks(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def _check(value: dict[str, Any], *, lone_surrogates: bool) -> None:
    """Refuse what is too deep and, if asked, strings that are not text."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper.extend(item.values())
                if lone_surrogates:
                    deeper.extend(item)
            elif isinstance(item, list):
                deeper.extend(item)
            elif lone_surrogates and isinstance(item, str) and not _is_text(item):
                raise InvalidRequest("The body has a lone surrogate, which is not text.")
        if not deeper:
            return
        level = deeper
    raise InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
