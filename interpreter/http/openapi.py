"""The OpenAPI document, made from the routes and models, and the page that shows it."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from interpreter import errors, wire
from interpreter.errors import ServiceError
from interpreter.http.base import ApiHandler
from interpreter.http.errors import (
    STATUS,
    HeadTooLarge,
    RequestTimeout,
    TooManyBodies,
    TooManyConnections,
    UnsupportedEncoding,
)
from interpreter.http.operations import Operation, Route

COMMON: tuple[type[ServiceError], ...] = (
    errors.InvalidRequest,
    errors.UnknownField,
    errors.ForbiddenHost,
    errors.ForbiddenOrigin,
    errors.RouteNotFound,
    errors.MethodNotAllowed,
    RequestTimeout,
    errors.BodyTooLarge,
    UnsupportedEncoding,
    TooManyBodies,
    TooManyConnections,
    HeadTooLarge,
    errors.InternalError,
    errors.RuntimeUnavailable,
)
"""Errors of every call."""

_T = TypeVar("_T")
_REF = "#/components/schemas/{model}"


class OpenApiHandler(ApiHandler):
    """The document."""

    async def on_get(self, _query: wire.NoQuery, _body: wire.NoBody) -> None:
        """Send it."""
        self.send(self.application.settings["openapi"])


class DocsHandler(ApiHandler):
    """The page."""

    async def on_get(self, _query: wire.NoQuery, _body: wire.NoBody) -> None:
        """Send it, with a policy under which nothing but its own script runs and nothing but this service is asked."""
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Referrer-Policy", "no-referrer")
        self.finish(_PAGE)


def document(routes: Sequence[Route], version: str) -> bytes:
    """Return the OpenAPI 3.1 document of ``routes`` as JSON."""
    operations = [operation for route in routes for operation in route.operations.values()]
    models: list[type[BaseModel]] = [wire.ErrorBody, *(one.body for one in operations)]
    models = _unique([*models, *(one.answer for one in operations if one.answer is not None)])
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    definitions: dict[str, Any] = schemas["$defs"]
    definitions["ErrorBody"]["properties"]["code"] |= {
        "enum": [kind.code for kind in STATUS],
        "description": "\n".join(f"- `{kind.code}` ({status}): {_sentence(kind)}" for kind, status in STATUS.items()),
    }
    definitions["ExecutionView"]["description"] += " Then the fields of ExecAnswer stand beside `phase`."
    found = {
        "openapi": "3.1.0",
        "info": {
            "title": "Cellbox",
            "version": version,
            "description": "A stateful code interpreter. Errors of the user's code are no HTTP errors: they are 200.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"apiKey": []}, {"bearer": []}],
        "paths": {route.path: _path(route) for route in routes},
        "components": {
            "schemas": definitions,
            "securitySchemes": {
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def _path(route: Route) -> dict[str, Any]:
    return {method.lower(): _operation(route, method, operation) for method, operation in route.operations.items()}


def _operation(route: Route, method: str, operation: Operation) -> dict[str, Any]:
    words = re.findall(r"[A-Za-z0-9]+", route.path)
    found: dict[str, Any] = {
        "operationId": "_".join([method.lower(), *words]),
        "summary": operation.summary,
        "parameters": [*_path_parameters(route, operation), *_query_parameters(operation)],
        "responses": {"101" if operation.upgrade else "200": _success(operation), **_failures(operation)},
    }
    if operation.public:
        found["security"] = []
    if operation.takes is not None:
        found["requestBody"] = {"required": True, "content": {operation.takes: {"schema": {"type": "string"}}}}
    elif operation.body is not wire.NoBody:
        content: dict[str, Any] = {"schema": {"$ref": _REF.format(model=operation.body.__name__)}}
        if operation.example:
            content["example"] = dict(operation.example)
        found["requestBody"] = {"required": True, "content": {"application/json": content}}
    return found


def _path_parameters(route: Route, operation: Operation) -> Iterable[dict[str, Any]]:
    for name in route.names:
        schema = {"type": "string"} if name in ("language", "path") else {"type": "string", "pattern": wire.NAME}
        parameter: dict[str, Any] = {"name": name, "in": "path", "required": True, "schema": schema}
        if name in operation.example:
            parameter["example"] = operation.example[name]
        yield parameter


def _query_parameters(operation: Operation) -> Iterable[dict[str, Any]]:
    for name, schema in operation.query.model_json_schema().get("properties", {}).items():
        kept = {key: value for key, value in schema.items() if key not in ("title", "description", "examples")}
        if "anyOf" in kept:  # a query has no null
            kept = kept["anyOf"][0]
        yield {
            "name": name,
            "in": "query",
            "required": False,
            "description": schema.get("description", ""),
            "schema": kept,
        }


def _success(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {"description": operation.summary}
    if operation.media is not None:
        found["content"] = {operation.media: {"schema": {"type": "string"}}}
    if operation.answer is not None:
        schema = {"$ref": _REF.format(model=operation.answer.__name__)}
        found["content"] = {**found.get("content", {}), "application/json": {"schema": schema}}
        if operation.media is None:
            found["description"] = _sentence(operation.answer)
    return found


def _failures(operation: Operation) -> dict[str, Any]:
    kinds = _unique([*COMMON, *operation.errors])
    if not operation.public:
        kinds = _unique([*kinds, errors.Unauthorized, errors.ShuttingDown])
    by_status: dict[int, list[type[ServiceError]]] = {}
    for kind in kinds:
        by_status.setdefault(STATUS[kind], []).append(kind)
    schema = {"$ref": _REF.format(model="ErrorBody")}
    return {
        str(status): {
            "description": " ".join(f"`{kind.code}`: {_sentence(kind)}" for kind in of_status),
            "content": {"application/json": {"schema": schema}},
        }
        for status, of_status in sorted(by_status.items())
    }


def _sentence(of: type[ServiceError] | type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(of) or "").split())


def _unique(items: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(items))


def _hash(element: str) -> str:
    match = re.search(rf"<{element}>(.*?)</{element}>", _PAGE, re.DOTALL)
    digest = hashlib.sha256(match[1].encode() if match else b"").digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


_PAGE = resources.files("interpreter.http").joinpath("docs.html").read_text(encoding="utf-8")
_POLICY = (
    f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
