"""The table of names in the wire contract, row by row: what a path in a URL stores, how it is shown, and that it leads back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import interpreter
from tests.http.scripted import Served

AT = "/v1/files/u1/"
ROW = re.compile(r"\| (?P<path>[^|]+) \| (?P<status>201|400) \| (?P<listed>[^|]*?) ?\|[^|]*\|")
TIMES = re.compile(r"(\d+) × `(.*)`")


def rows() -> list[tuple[str, int, dict[str, str]]]:
    """The path of each row, its status, and what a listing has of it."""
    contract = (Path(interpreter.__file__).parent / "API.md").read_text()
    _, _, table = contract.partition("| path in the URL | `PUT` | in a listing | |\n| --- | --- | --- | --- |\n")
    found = []
    for line in table.partition("\n\n")[0].splitlines():
        row = ROW.fullmatch(line)
        assert row is not None, line
        listed = _written(row["listed"]) if row["listed"] else "{}"
        shown = json.loads(listed) if listed.startswith("{") else {"name": listed}
        found.append((_written(row["path"]), int(row["status"]), shown))
    return found


def _written(cell: str) -> str:
    times = TIMES.fullmatch(cell)
    return times[2] * int(times[1]) if times else cell.strip("`")


@pytest.mark.parametrize(("path", "status", "listed"), rows(), ids=lambda value: str(value)[:20])
async def test_a_name_is_what_the_wire_contract_says(
    served: Served, path: str, status: int, listed: dict[str, str]
) -> None:
    content = path.encode()
    reply = await served.call("PUT", AT + path, content)
    if status == 400:
        assert (reply.status, reply.code) == (400, "invalid_request")
        assert not (served.service.data.path / "u1").exists()
        return
    assert reply.status == 201
    entries = (await served.call("GET", f"{AT}?recursive=true")).json["entries"]
    (entry,) = [entry for entry in entries if not entry["is_dir"]]
    assert {key: entry[key] for key in ("name", "raw") if key in entry} == listed
    for way in (path, listed.get("raw", path)):
        assert (await served.call("GET", AT + way)).body == content
    assert (await served.call("DELETE", AT + listed.get("raw", path))).json == {"removed": 1}
    assert (await served.call("GET", AT + path)).status == 404


async def test_the_normal_forms_of_a_name_are_two_files(served: Served) -> None:
    for path, content in (("caf%C3%A9", b"NFC"), ("cafe%CC%81", b"NFD")):
        assert (await served.call("PUT", AT + path, content)).status == 201
    assert (await served.call("GET", f"{AT}caf%C3%A9")).body == b"NFC"
    assert (await served.call("GET", f"{AT}cafe%CC%81")).body == b"NFD"


async def test_a_directory_may_be_named_with_a_slash_at_its_end(served: Served) -> None:
    assert (await served.call("POST", f"{AT}d/?op=mkdir")).status == 200
    assert (await served.call("GET", f"{AT}d/")).json["entries"] == []
    assert (await served.call("DELETE", f"{AT}d/")).json == {"removed": 1}


def test_the_table_has_what_is_asked_about_names() -> None:
    paths = {path for path, _, _ in rows()}
    assert {"caf%C3%A9", "cafe%CC%81", "a%20b", "a%2Fb", ".hidden", "x" * 255, "x" * 256, "%FF%FEx", "a/"} <= paths
