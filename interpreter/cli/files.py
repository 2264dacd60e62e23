"""``cellbox files``: files of a session, from and to this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from interpreter.cli import OK
from interpreter.cli.calling import called, session
from interpreter.client import Client, Files, InvalidRequest


def run(arguments: argparse.Namespace) -> int:
    """List, get, put or remove."""
    return called(arguments, lambda client: _files(client, arguments))


def _files(client: Client, arguments: argparse.Namespace) -> int:
    files = session(client, arguments).files
    act = {"ls": _ls, "get": _get, "put": _put, "rm": _rm}[arguments.action]
    try:
        told = act(files, arguments)
    except OSError as error:
        raise InvalidRequest(f"{error.filename}: {error.strerror}", code="invalid_request") from error
    if arguments.json:
        print(json.dumps(told, indent=2))
    return OK


def _ls(files: Files, arguments: argparse.Namespace) -> Any:
    found = files.list(arguments.path)
    if not arguments.json:
        for each in found:
            print(
                f"{'' if each.is_dir else each.size:>12}  {each.mod_time:20}  {each.name}{'/' if each.is_dir else ''}"
            )
    return [each.model_dump() for each in found]


def _get(files: Files, arguments: argparse.Namespace) -> Any:
    if arguments.to == "-":
        sys.stdout.buffer.write(files.read(arguments.path))
        sys.stdout.buffer.flush()
        return {"path": arguments.path}
    to = Path(arguments.to or PurePosixPath(arguments.path).name)
    to = to / PurePosixPath(arguments.path).name if to.is_dir() else to
    files.download(arguments.path, to)
    return {"path": arguments.path, "to": str(to)}


def _put(files: Files, arguments: argparse.Namespace) -> Any:
    if arguments.file != "-":
        return files.upload(arguments.file, arguments.path).model_dump()
    if not arguments.path:
        raise InvalidRequest("Standard input has no name: give one.", code="invalid_request")
    return files.write(arguments.path, sys.stdin.buffer.read()).model_dump()


def _rm(files: Files, arguments: argparse.Namespace) -> Any:
    files.remove(arguments.path)
    return {"removed": arguments.path}
