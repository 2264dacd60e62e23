"""From bytes and query strings to the models of the wire, or to one sentence that says what is wrong.

Promises: raises InvalidRequest or UnknownField and nothing else; what a caller sent is quoted by name only, cut and in
ASCII.
"""

from __future__ import annotations

import difflib
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, ValidationError

from interpreter import wire
from interpreter.errors import InvalidRequest, ServiceError, UnknownField
from interpreter.http import strict_json

M = TypeVar("M", bound=BaseModel)

_MESSAGES = {
    "missing": "is required",
    "string_pattern_mismatch": wire.NAME_RULE,
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "dict_type": "must be an object",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must not be negative",
}


def read_body(model: type[M], body: bytes | bytearray) -> M:
    """Return ``body`` as ``model``; an empty body counts as ``{}`` where the model needs nothing."""
    if not body and not any(field.is_required() for field in model.model_fields.values()):
        return model()
    if not body:
        raise InvalidRequest("The body is empty; send a JSON object.")
    return read_values(model, strict_json.parse(body))


def read_values(model: type[M], values: dict[str, Any]) -> M:
    """Return an object of JSON as ``model``."""
    return _validate(model, values, "field")


def read_query(model: type[M], query: str) -> M:
    """Return the query string as ``model``. A repeated, unknown or malformed parameter is refused by name."""
    values: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        name = _text(name)
        if name in values:
            raise InvalidRequest(f"The query has {quoted(name)} twice.")
        values[name] = _text(value)
    return _validate(model, values, "query parameter")


def quoted(name: str) -> str:
    """Return a caller's word so that it can stand in a message: cut, in ASCII, in quotes."""
    return ascii(name[:64])


def _text(part: str) -> str:
    raw = unquote_to_bytes(part.replace("+", " "))
    if part.count("%") != len([p for p in part.split("%")[1:] if len(p) >= 2 and _is_hex(p[:2])]):
        raise InvalidRequest("The query has a malformed percent encoding.")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The query is not UTF-8.") from None


def _is_hex(text: str) -> bool:
    return all(char in "0123456789abcdefABCDEF" for char in text)


def _validate(model: type[M], values: dict[str, Any], kind: str) -> M:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _explained(model, error, kind) from None


def _explained(model: type[BaseModel], error: ValidationError, kind: str) -> ServiceError:
    details = error.errors(include_url=False)
    for detail in details:
        if detail["type"] == "extra_forbidden":
            name = str(detail["loc"][0])
            near = difflib.get_close_matches(name.lower(), model.model_fields, n=1, cutoff=0.6)
            hint = f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(sorted(model.model_fields))}."
            return UnknownField(f"There is no {kind} {quoted(name)}{hint}")
    detail = details[0]
    if detail["type"] == "value_error":
        said = str(detail["ctx"]["error"])
    else:
        said = _MESSAGES.get(detail["type"]) or detail["msg"].lower().replace("input should", "must")
    name = str(detail["loc"][0])
    if len(detail["loc"]) > 1:
        name = f"{name}[{quoted(str(detail['loc'][1]))}]"
    hints = model.HINTS if issubclass(model, wire.Request) else {}
    if detail["type"] == "missing" and name in hints:
        said += f": {hints[name]}"
    return InvalidRequest(f"{name} {said}.")
