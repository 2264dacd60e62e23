"""The service with requests alone: run, upload, download. For those who want no client library."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

URL = os.environ.get("CELLBOX_URL", "http://127.0.0.1:8090")
HEADERS = {"X-API-Key": os.environ.get("CELLBOX_API_KEY", "")}


def run(scope: str, session: str, code: str, language: str = "python") -> dict[str, Any]:
    """Run code in the kernel of its language, and return the answer. Raises requests.HTTPError where it could not be run."""
    body = {"scope": scope, "session": session, "language": language, "code": code, "stateful": True}
    answer = requests.post(f"{URL}/v1/exec", json=body, headers=HEADERS, timeout=900)
    answer.raise_for_status()
    return dict(answer.json())


def upload(scope: str, session: str, file: Path, path: str) -> None:
    """Store a file of this machine in the session's workspace."""
    with file.open("rb") as opened:
        answer = requests.put(_url(scope, path), params={"session": session}, data=opened, headers=HEADERS, timeout=900)
    answer.raise_for_status()


def download(scope: str, session: str, path: str, file: Path) -> None:
    """Store a file of the session's workspace on this machine."""
    with requests.get(
        _url(scope, path), params={"session": session}, headers=HEADERS, stream=True, timeout=900
    ) as answer:
        answer.raise_for_status()
        with file.open("wb") as opened:
            for chunk in answer.iter_content(2**18):
                opened.write(chunk)


def _url(scope: str, path: str) -> str:
    if {"", ".", ".."} & set(path.split("/")):  # a URL would swallow them, and lead to somebody else's files
        raise ValueError(f"{path!r} is no path of a file")
    return f"{URL}/v1/files/{quote(scope, safe='')}/{quote(path)}"
