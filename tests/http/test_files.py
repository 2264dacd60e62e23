"""Files over HTTP: what each call does, and what each hostile one gets."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import os
import re
import shutil
import socket
import struct
import tarfile
import threading
import zipfile
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from interpreter.files import service as files_service
from interpreter.http.operations import ExecLimits
from interpreter.http.server import ConnectionLimits
from tests.http.scripted import KEY, Reply, Served, serving, until

AT = "/v1/files/u1/"
TEXT = b"0123456789"


def workspace(served: Served, session: str | None = None) -> Path:
    scope = served.service.data.path / "u1"
    return scope / "workspace" if session is None else scope / "sessions" / session


async def put(served: Served, path: str, body: bytes = TEXT, **headers: str) -> Reply:
    return await served.call("PUT", AT + path, body, **headers)


async def get(served: Served, path: str, **headers: str) -> Reply:
    return await served.call("GET", AT + path, **headers)


async def names(served: Served, path: str = "") -> list[str]:
    return [entry["name"] for entry in (await get(served, path)).json["entries"]]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_file_is_stored_with_its_parents_sent_and_replaced(served: Served):
    reply = await put(served, "a/b/f.txt")
    assert reply.status == 201
    assert reply.json == {"path": "a/b/f.txt", "size": 10, "sha256": hashlib.sha256(TEXT).hexdigest()}
    reply = await get(served, "a/b/f.txt")
    assert (reply.status, reply.body) == (200, TEXT)
    assert (await put(served, "a/b/f.txt", b"")).status == 200
    assert (await get(served, "a/b/f.txt")).body == b""


async def test_sessions_and_the_scope_have_files_of_their_own(served: Served):
    await put(served, "f?session=a", b"of a")
    assert (await get(served, "f?session=a")).body == b"of a"
    for path in ("f", "f?session=b", "?session=b"):
        assert (await get(served, path)).code == "file_not_found"
    assert not (served.service.data.path / "u1/sessions/b").exists()


async def test_an_upload_warms_its_session_and_a_look_does_not(served: Served):
    await get(served, "f?session=a")
    await put(served, "f")
    assert served.service.calls == []
    await put(served, "f?session=a")
    assert served.service.calls == [("warm", "u1", "a")]


@pytest.mark.parametrize(
    ("name", "media"),
    [
        ("x.html", "application/octet-stream"),
        ("x.svg", "application/octet-stream"),
        ("x", "application/octet-stream"),
        ("x.PNG", "image/png"),
        ("x.mp4", "video/mp4"),
        ("mp3", "audio/mpeg"),
        ("a%0D%0ASet-Cookie:%20b.png", "image/png"),
    ],
)
async def test_a_download_is_an_attachment_that_no_browser_runs(served: Served, name, media):
    await put(served, name)
    reply = await get(served, name)
    assert reply.headers["content-type"] == media
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-disposition"] == f"attachment; filename*=UTF-8''{name.replace(':', '%3A')}"
    assert "set-cookie" not in reply.headers


async def test_head_has_the_headers_of_get_and_no_body(served: Served):
    await put(served, "f.mp4")
    asked, got = await served.call("HEAD", AT + "f.mp4"), await get(served, "f.mp4")
    own = {"x-request-id", "date"}
    assert {k: v for k, v in asked.headers.items() if k not in own} == {
        k: v for k, v in got.headers.items() if k not in own
    }
    assert (asked.body, asked.headers["content-length"]) == (b"", "10")


@pytest.mark.parametrize(
    ("given", "body", "content_range"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-2", b"89", "bytes 8-9/10"),
        ("bytes=-99", TEXT, "bytes 0-9/10"),
        ("bytes=5-99999", b"56789", "bytes 5-9/10"),
        ("BYTES= 1 - 1", b"1", "bytes 1-1/10"),
        ("bytes=99-,2-3", b"23", "bytes 2-3/10"),
    ],
)
async def test_a_range_is_sent_alone(served: Served, given, body, content_range):
    await put(served, "f")
    reply = await get(served, "f", Range=given)
    assert (reply.status, reply.body, reply.headers["content-range"]) == (206, body, content_range)


@pytest.mark.parametrize(
    "given",
    ["bytes=3-1", "bytes=", "bytes=a-b", "bytes=-", "lines=0-1", "bytes=0-5,3-9", "bytes=" + ",".join(["0-0"] * 17)],
)
async def test_a_range_that_is_malformed_or_costly_is_the_whole(served: Served, given):
    await put(served, "f")
    reply = await get(served, "f", Range=given)
    assert (reply.status, reply.body) == (200, TEXT)


@pytest.mark.parametrize("given", ["bytes=10-", "bytes=-0", "bytes=999-,10-11"])
async def test_a_range_behind_the_end_is_416_with_the_size(served: Served, given):
    await put(served, "f")
    reply = await get(served, "f", Range=given)
    assert (reply.status, reply.code, reply.headers["content-range"]) == (416, "range_not_satisfiable", "bytes */10")


async def test_several_ranges_are_sent_in_the_order_asked_for(served: Served):
    await put(served, "f.mp4")
    reply = await get(served, "f.mp4", Range="bytes=8-9, 0-1")
    assert reply.status == 206
    boundary = reply.headers["content-type"].removeprefix("multipart/byteranges; boundary=")
    _, first, second, end = reply.body.split(f"--{boundary}".encode())
    assert first == b"\r\nContent-Type: video/mp4\r\nContent-Range: bytes 8-9/10\r\n\r\n89\r\n"
    assert second == b"\r\nContent-Type: video/mp4\r\nContent-Range: bytes 0-1/10\r\n\r\n01\r\n"
    assert end == b"--\r\n"


async def test_conditions_are_kept(served: Served):
    await put(served, "f")
    first = await get(served, "f")
    tag, modified = first.headers["etag"], first.headers["last-modified"]
    for headers in ({"If_None_Match": tag}, {"If_None_Match": f'"x", W/{tag}'}, {"If_Modified_Since": modified}):
        reply = await get(served, "f", **headers)
        assert (reply.status, reply.body, reply.headers["etag"]) == (304, b"", tag)
    assert (await get(served, "f", If_Match='"x"')).status == 412
    assert (await get(served, "f", If_Unmodified_Since="Thu, 01 Jan 1970 00:00:00 GMT")).code == "precondition_failed"
    assert (await get(served, "f", If_Range=tag, Range="bytes=0-0")).status == 206
    assert (await get(served, "f", If_Range=modified, Range="bytes=0-0")).status == 206
    assert (await get(served, "f", If_Range='"x"', Range="bytes=0-0")).status == 200
    assert (await get(served, "f", If_None_Match='"x"', If_Modified_Since=modified)).status == 200


async def test_an_upload_is_stored_under_its_conditions_only(served: Served):
    assert (await put(served, "f", If_Match="*")).status == 412
    assert (await put(served, "f", If_None_Match="*")).status == 201
    assert (await put(served, "f", b"no", If_None_Match="*")).code == "precondition_failed"
    tag = (await get(served, "f")).headers["etag"]
    replies = await asyncio.gather(*(put(served, "f", b"%d" % n, If_Match=tag) for n in range(8)))
    assert sorted(reply.status for reply in replies) == [200] + [412] * 7
    (winner,) = [n for n, reply in enumerate(replies) if reply.status == 200]
    assert (await get(served, "f")).body == b"%d" % winner
    assert os.listdir(served.service.data.path / "u1/.staging") == []


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "a/../b",
        "%2e%2e/x",
        "a/./b",
        "a//b",
        "a/",
        "",
        "/a",
        "a%00",
        "%zz",
        "%",
        "a%2F",
        "x" * 256,
        "a/" * 64 + "b",
    ],
)
async def test_a_path_that_names_no_file_is_400(served: Served, path):
    reply = await put(served, path)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert not (served.service.data.path / "u1").exists()


@pytest.mark.parametrize("scope", ["..", "a%2Fb", "%2e%2e", "a b".replace(" ", "%20"), "%ff", "x" * 65])
async def test_a_scope_is_checked_before_anything_is_made(served: Served, scope):
    for method in ("PUT", "GET", "DELETE"):
        reply = await served.call(method, f"/v1/files/{scope}/f", b"" if method == "PUT" else None)
        assert (reply.status, reply.code) == (400, "invalid_request")
    assert served.service.data.scopes() == []


@pytest.mark.parametrize(
    ("sent", "name", "raw"),
    [
        ("caf%C3%A9", "café", None),
        ("cafe%CC%81", "cafe\u0301", None),
        ("a%20b%25c", "a b%c", None),
        (".hidden", ".hidden", None),
        ("%FF%FEx", "��x", "%FF%FEx"),
        ("x" * 255, "x" * 255, None),
    ],
)
async def test_every_name_comes_back_and_leads_to_its_file(served: Served, sent, name, raw):
    assert (await put(served, sent)).status == 201
    (entry,) = (await get(served, "")).json["entries"]
    assert (entry["name"], entry.get("raw")) == (name, raw)
    assert (await get(served, raw or sent)).body == TEXT
    assert (await served.call("DELETE", AT + sent)).json == {"removed": 1}
    assert await names(served) == []


async def test_an_encoded_slash_is_a_separator(served: Served):
    await put(served, "a%2Fb")
    assert await names(served, "a") == ["b"]


async def test_a_directory_is_listed_sorted_and_in_pages(served: Served):
    root = served.service.data.prepare(files_service.Key("u1", None)).workspace
    for name in ("b", "a", "é", "B", "c"):
        (root / name).write_bytes(TEXT)
    (root / "d").mkdir()
    os.utime(root / "a", (1_792_144_800, 1_792_144_800))
    os.utime(root / "b", (1e17, 1e17))
    reply = await get(served, "")
    assert [entry["name"] for entry in reply.json["entries"]] == ["B", "a", "b", "c", "d", "é"]
    assert reply.json["entries"][1] == {"name": "a", "is_dir": False, "size": 10, "mod_time": "2026-10-16T10:00:00Z"}
    assert reply.json["entries"][2]["mod_time"].endswith("Z")
    assert reply.json["entries"][4]["is_dir"] is True
    assert (reply.json["path"], reply.json["truncated"], reply.json["next"]) == ("", False, None)
    seen, after = [], ""
    while after is not None:
        page = (await get(served, f"?limit=4&after={after}")).json
        seen += [entry["name"] for entry in page["entries"]]
        after = page["next"] and page["next"].replace("%", "%25")
        assert page["truncated"] is (after is not None)
    assert seen == ["B", "a", "b", "c", "d", "é"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=10001", "limit=x", "limit=1&limit=2", "recursiv=true", "session=.."]
)
async def test_a_malformed_query_is_400(served: Served, query):
    await put(served, "f")
    assert (await get(served, f"?{query}")).status == 400


async def test_what_is_no_plain_file_is_refused_at_once(served: Served, tmp_path: Path):
    (tmp_path / "secret").write_text("of the host")
    await put(served, "d/f")
    root = workspace(served)
    os.mkfifo(root / "fifo")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("../../../secret")
    (root / "in").symlink_to("d/f")
    for name, code in [("fifo", "not_a_regular_file"), ("out", "outside_directory"), ("up", "outside_directory")]:
        async with asyncio.timeout(2):
            reply = await get(served, name)
        assert (reply.status, reply.code) == (403, code)
    assert (await get(served, "in")).body == TEXT
    assert (await get(served, "d/f/")).code == "file_not_found"
    assert (await put(served, "d")).code == "file_exists"
    for name in ("fifo", "out"):
        assert (await put(served, name, b"new")).status == 200
        assert (await get(served, name)).body == b"new"
    assert (tmp_path / "secret").read_text() == "of the host"


async def test_what_is_deleted_is_out_of_sight_at_once_and_gone_soon(served: Served):
    for name in ("d/e/f", "d/g", "h"):
        await put(served, name)
    assert (await served.call("DELETE", AT + "d")).json == {"removed": 1}
    assert await names(served) == ["h"]
    assert (await served.call("DELETE", AT + "d")).code == "file_not_found"
    assert (await served.call("DELETE", AT)).code == "invalid_request"
    staging = served.service.data.path / "u1/.staging"
    await until(lambda: os.listdir(staging) == [])


async def test_refusals_leave_no_descriptor(served: Served):
    await put(served, "f")
    os.mkfifo(workspace(served) / "fifo")
    before = descriptors()
    for _ in range(20):
        for path in ("fifo", "none", "f/x", "..", "f?session=none", "f/"):
            assert (await get(served, path)).status >= 400
        assert (await put(served, "f/x")).status == 409
        assert (await put(served, "f", If_None_Match="*")).status == 412
    await until(lambda: descriptors() <= before)


async def post(served: Served, path: str, query: str) -> Reply:
    return await served.call("POST", f"{AT}{path}?{query}", b"")


async def test_directories_are_made_and_entries_moved_copied_and_changed(served: Served):
    assert (await post(served, "d/e", "op=mkdir")).json == {"path": "d/e"}
    assert (await post(served, "d/e", "op=mkdir")).code == "file_exists"
    await put(served, "f")
    assert (await post(served, "f", "op=move&to=d/e/a%20b")).json == {"path": "d/e/a b"}
    assert (await post(served, "d", "op=copy&to=new/d")).status == 200
    assert (await get(served, "new/d/e/a%20b")).body == (await get(served, "d/e/a%20b")).body == TEXT
    await put(served, "f", b"other")
    for op in ("move", "copy"):
        assert (await post(served, "f", f"op={op}&to=d/e/a%20b")).code == "file_exists"
    assert (await post(served, "f", "op=copy&to=d/e/a%20b&overwrite=true")).status == 200
    assert (await get(served, "d/e/a%20b")).body == b"other"
    assert (await post(served, "f", "op=chmod&mode=600")).status == 200
    assert (workspace(served) / "f").stat().st_mode & 0o7777 == 0o600


@pytest.mark.parametrize(
    "query",
    [
        "",
        "op=rm",
        "op=move",
        "op=copy&to=",
        "op=move&to=../x",
        "op=move&to=/x",
        "op=chmod",
        "op=chmod&mode=4755",
        "op=chmod&mode=9",
        "op=mkdir&to=x",
        "op=mkdir&overwrite=true",
        "op=move&to=f",
        "op=move&to=f/x",
    ],
)
async def test_a_change_that_is_malformed_is_400(served: Served, query):
    await put(served, "f")
    assert (await post(served, "f", query)).code in ("invalid_request", "unknown_field")
    assert await names(served) == ["f"]


@pytest.mark.parametrize("media", ["application/octet-stream", "multipart/form-data; boundary=b"])
async def test_a_body_that_is_posted_to_a_path_is_told_where_files_go(served: Served, media):
    reply = await served.call("POST", AT, TEXT, Content_Type=media)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert "stored by PUT" in reply.json["message"]
    assert "POST of multipart/form-data to /v1/files/{scope}," in reply.json["message"]


async def test_what_is_below_a_directory_is_listed_with_paths(served: Served):
    for name in ("d/a.csv", "d/e/b.csv", "d/e/%FF"):
        await put(served, name)
    page = (await get(served, "d?recursive=true")).json
    assert [entry["name"] for entry in page["entries"]] == ["a.csv", "e", "e/b.csv", "e/�"]
    assert page["entries"][3]["raw"] == "e/%FF"
    page = (await get(served, "?glob=**/*.csv&limit=1")).json
    assert ([entry["name"] for entry in page["entries"]], page["truncated"]) == (["d/a.csv"], True)
    page = (await get(served, f"?glob=**/*.csv&limit=1&after={page['next']}")).json
    assert [entry["name"] for entry in page["entries"]] == ["d/e/b.csv"]
    assert (await get(served, "?glob=/x")).code == "invalid_request"


# --- several files at once ------------------------------------------------------------------------------------------


async def form(served: Served, files: list[tuple[str, bytes]], **fields: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", trust_env=False) as client:
        given = [("file", one) for one in files]
        return await client.post("/v1/files/u1", files=given, data=fields, headers={"X-API-Key": KEY}, timeout=20)


async def test_several_files_are_stored_together(served: Served):
    await put(served, "d/old", b"old")
    large = os.urandom(3 * 2**20)
    reply = await form(served, [("d/old", b"new"), ('a "b".txt', b""), ("é/large", large)])
    assert reply.status_code == 200
    assert [(one["path"], one["size"]) for one in reply.json()["files"]] == [
        ("d/old", 3),
        ('a "b".txt', 0),
        ("é/large", len(large)),
    ]
    assert (await get(served, "%C3%A9/large")).body == large
    assert (await get(served, "d/old")).body == b"new"
    assert (await get(served, "a%20%22b%22.txt")).body == b""
    staging = served.service.data.path / "u1/.staging"
    await until(lambda: os.listdir(staging) == [])


@pytest.mark.parametrize(
    ("bad", "fields", "status"),
    [
        ("taken", {}, 409),
        ("../x", {}, 400),
        ("a/", {}, 400),
        ("new", {}, 400),
        ("x", {"field": "that is no file"}, 400),
    ],
)
async def test_of_several_files_none_is_stored_where_one_cannot_be(served: Served, bad, fields, status):
    await put(served, "old", b"old")
    await put(served, "taken/f")
    before = descriptors()
    good = [("old", b"other"), ("new", b"new"), ("made/deep/new", b"new")]
    reply = await form(served, [*good, (bad, b"bad"), ("last", b"")], **fields)
    assert reply.status_code == status, reply.text
    assert await names(served) == ["old", "taken"]
    assert (await get(served, "old")).body == b"old"
    staging = served.service.data.path / "u1/.staging"
    await until(lambda: os.listdir(staging) == [] and descriptors() <= before)


async def test_several_files_have_one_limit():
    async with limited() as served:
        reply = await form(served, [("a", bytes(2**19)), ("b", bytes(2**19 + 1))])
        assert reply.status_code == 413
        assert (await get(served, "")).code == "file_not_found"


# --- archives -------------------------------------------------------------------------------------------------------


async def archived(served: Served, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", trust_env=False) as client:
        return await client.get(AT + path, headers={"X-API-Key": KEY}, timeout=20)


async def filled(served: Served) -> None:
    await put(served, "d/e/b.csv", b"1,2\n" * 400_000)
    await put(served, "d/%FF", b"bytes")
    await put(served, "d/empty", b"")
    root = workspace(served) / "d"
    (root / "link").symlink_to("e/b.csv")
    (root / "out").symlink_to("/etc/passwd")
    os.mkfifo(root / "fifo")
    os.utime(root / "empty", (1e15, 1e15))
    (root / "e/b.csv").chmod(0o4750)


async def test_a_directory_is_sent_as_tar_gz_with_links_as_links(served: Served):
    await filled(served)
    reply = await archived(served, "d?archive=tar.gz")
    assert reply.headers["content-disposition"] == "attachment; filename*=UTF-8''d.tar.gz"
    assert reply.headers["content-type"] == "application/gzip"
    with tarfile.open(fileobj=io.BytesIO(reply.content), mode="r:gz") as tar:
        found = {one.name: one for one in tar.getmembers()}
        content = tar.extractfile("e/b.csv")
        assert content is not None
        assert content.read() == b"1,2\n" * 400_000
    assert sorted(found) == sorted(["e", "e/b.csv", "empty", "link", "out", "\udcff"])
    assert (found["link"].linkname, found["out"].linkname) == ("e/b.csv", "/etc/passwd")
    assert (found["e/b.csv"].mode, found["e/b.csv"].uid, found["e"].isdir()) == (0o750, 0, True)


async def test_a_directory_is_sent_as_zip_without_links(served: Served):
    await filled(served)
    reply = await archived(served, "?archive=zip")
    assert reply.headers["content-disposition"] == "attachment; filename*=UTF-8''u1.zip"
    with zipfile.ZipFile(io.BytesIO(reply.content)) as made:
        assert made.testzip() is None
        assert sorted(made.namelist()) == sorted(["d/", "d/e/", "d/e/b.csv", "d/empty", "d/%FF"])
        assert made.read("d/e/b.csv") == b"1,2\n" * 400_000


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
async def test_what_is_too_much_or_no_directory_is_refused_before_the_first_byte(kind):
    async with limited(download=100) as served:
        await put(served, "d/f", bytes(101))
        for path, status in (("d", 413), ("d/f", 404), ("none", 404), ("..", 400)):
            assert (await get(served, f"{path}?archive={kind}")).status == status


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
async def test_an_archive_of_a_file_that_shrinks_is_broken_off(kind):
    size = 256 * 2**20
    async with limited(download=size) as served:
        await put(served, "d/f")
        path = workspace(served) / "d/f"
        path.write_bytes(os.urandom(2**20) * 32)  # what no compression makes small, or it would be sent at once
        before = descriptors()
        reader, writer = await served.connect()
        writer.write(head(served, f"d?archive={kind}").replace(b"PUT", b"GET", 1))
        await reader.readuntil(b"\r\n\r\n")
        os.truncate(path, 2**20)
        async with asyncio.timeout(20):
            assert not (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()
        await until(lambda: descriptors() <= before)


async def test_so_many_archives_at_once_and_one_more_is_told_to_wait(monkeypatch):
    monkeypatch.setattr(files_service, "MAX_ARCHIVES", 1)
    async with limited(download=2**30) as served:
        await put(served, "d/f")
        await put(served, "small/f")
        # Random, so that no compression makes it small: it does not fit into what lies between us.
        (workspace(served) / "d/f").write_bytes(os.urandom(2**20) * 64)
        before = descriptors()
        reader, writer = await served.connect()
        writer.write(head(served, "d?archive=zip").replace(b"PUT", b"GET", 1))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        refused = await get(served, "small?archive=zip")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "too_many_archives", "1")
        assert (await get(served, "small/f")).body == TEXT
        writer.close()
        await until(lambda: descriptors() <= before)
        assert (await get(served, "small?archive=zip")).status == 200


async def test_deletes_that_wait_for_their_turn_hold_no_descriptor(served: Served):
    await put(served, "first?session=s")
    goes_on = threading.Event()
    served.service.files.disposals._thread.submit(goes_on.wait, 20)
    for number in range(20):
        await put(served, f"d{number}/f?session=s")
    before = descriptors()
    for number in range(20):
        assert (await served.call("DELETE", f"{AT}d{number}?session=s")).status == 200
    assert descriptors() <= before
    staging = served.service.data.path / "u1/.staging"
    assert len(list(staging.iterdir())) == 20
    shutil.rmtree(workspace(served, "s"))  # as a purge of the session does: what is left of it goes all the same
    goes_on.set()
    await until(lambda: not list(staging.iterdir()))


# --- uploads that do not go well ------------------------------------------------------------------------------------


@asynccontextmanager
async def limited(upload: int = 2**20, download: int = 2**20, **connections: float):
    limits = ExecLimits(max_upload_bytes=upload, max_download_bytes=download)
    async with serving(limits=limits, connections=ConnectionLimits(**connections)) as served:
        yield served


def head(served: Served, path: str, *lines: str) -> bytes:
    given = [f"PUT {AT}{path} HTTP/1.1", f"Host: 127.0.0.1:{served.port}", f"X-API-Key: {KEY}", *lines]
    return "\r\n".join(given).encode() + b"\r\n\r\n"


async def test_a_body_beyond_what_fits_in_memory_is_streamed():
    async with limited(upload=80 * 2**20, download=80 * 2**20) as served:
        body = os.urandom(2**20) * 70
        reply = await put(served, "big", body)
        assert (reply.status, reply.json["sha256"]) == (201, hashlib.sha256(body).hexdigest())
        assert served.api.bodies.used == 0
        got = await get(served, "big")
        assert hashlib.sha256(got.body).hexdigest() == hashlib.sha256(body).hexdigest()


async def test_an_upload_over_the_limit_is_413_by_its_length_or_as_it_comes():
    async with limited() as served:
        await put(served, "f", b"old")
        asked = await served.raw(head(served, "f", f"Content-Length: {2**20 + 1}", "Expect: 100-continue"))
        assert (asked.status, asked.code) == (413, "body_too_large")
        assert (await put(served, "f", bytes(2**20 + 1))).code == "body_too_large"
        chunk = b"%x\r\n%s\r\n" % (2**18, bytes(2**18))
        reply = await served.raw(head(served, "f", "Transfer-Encoding: chunked") + chunk * 5 + b"0\r\n\r\n")
        assert (reply.status, reply.code) == (413, "body_too_large")
        assert (await put(served, "f", bytes(2**20))).status == 200
        staging = served.service.data.path / "u1/.staging"
        await until(lambda: os.listdir(staging) == [])


async def test_an_upload_that_is_asked_for_first_is_let_in(served: Served):
    reader, writer = await served.connect()
    writer.write(head(served, "f", "Content-Length: 10", "Expect: 100-continue"))
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20) == b"HTTP/1.1 100 (Continue)\r\n\r\n"
    writer.write(TEXT)
    assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 201")
    writer.close()


async def test_an_upload_that_is_cut_leaves_the_old_file_and_nothing_else(served: Served):
    await put(served, "f", b"old")
    before = descriptors()
    staging = served.service.data.path / "u1/.staging"
    for size in (0, 100, 3 * 2**20):
        _, writer = await served.connect()
        writer.write(head(served, "f", f"Content-Length: {2**23}") + bytes(size))
        await writer.drain()
        await until(lambda: os.listdir(staging))
        writer.close()
        await until(lambda: os.listdir(staging) == [])
    assert (await get(served, "f")).body == b"old"
    await until(lambda: descriptors() <= before)
    assert served.service.files._uploads == 0


async def test_an_upload_of_which_nothing_comes_is_408_and_one_that_goes_on_is_not():
    async with limited(body_timeout_s=1.0) as served:
        reply = await served.raw(head(served, "f", "Content-Length: 10") + b"1")
        assert (reply.status, reply.code) == (408, "request_timeout")
        reader, writer = await served.connect()
        writer.write(head(served, "g", "Content-Length: 15"))
        for _ in range(15):
            writer.write(b"x")
            await asyncio.sleep(0.1)  # the pace of this caller
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 201")
        writer.close()


async def test_so_many_uploads_at_once_and_one_more_is_told_to_wait(served: Served, monkeypatch):
    monkeypatch.setattr(files_service, "MAX_UPLOADS", 1)
    _, writer = await served.connect()
    writer.write(head(served, "f", "Content-Length: 10"))
    await until(lambda: served.service.files._uploads == 1)
    reply = await put(served, "g")
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (429, "too_many_uploads", "1")
    writer.close()
    await until(lambda: served.service.files._uploads == 0)
    assert (await put(served, "g")).status == 201


async def test_a_refused_upload_makes_nothing(served: Served):
    for key, path in ((None, "f"), ("wrong", "f"), (KEY, "a/../f")):
        reply = await served.call("PUT", AT + path, bytes(2**20), key=key)
        assert reply.status in (400, 401)
    assert (await served.call("PUT", AT + "f", TEXT, Content_Encoding="gzip")).status == 415
    assert served.service.data.scopes() == []


# --- downloads of files that change ---------------------------------------------------------------------------------


async def test_a_file_over_the_limit_is_413_whatever_it_really_has():
    async with limited() as served:
        await put(served, "f")
        os.truncate(workspace(served) / "f", 2**43)
        reply = await get(served, "f", Range="bytes=0-1")
        assert (reply.status, reply.code) == (413, "body_too_large")


async def test_a_file_that_grows_is_sent_as_it_was_and_one_that_shrinks_ends_the_connection():
    size = 64 * 2**20
    async with limited(download=2 * size) as served:
        await put(served, "f")
        path = workspace(served) / "f"
        for change, whole in ((2 * size, True), (2**20, False)):
            os.truncate(path, size)
            reader, writer = await served.connect()
            writer.write(head(served, "f").replace(b"PUT", b"GET", 1))
            length = re.search(rb"Content-Length: (\d+)", await reader.readuntil(b"\r\n\r\n"))
            os.truncate(path, change)
            assert length is not None
            assert int(length[1]) == size
            async with asyncio.timeout(20):
                got = 0
                while got < size and (chunk := await reader.read(2**20)):
                    got += len(chunk)
                assert (got == size) is whole
                assert not whole or (writer.write_eof() or not await reader.read())
            writer.close()


async def test_a_reader_that_leaves_costs_no_descriptor():
    size = 64 * 2**20
    async with limited(download=size) as served:
        await put(served, "f")
        os.truncate(workspace(served) / "f", size)
        before = descriptors()
        for _ in range(5):
            reader, writer = await served.connect()
            writer.write(head(served, "f").replace(b"PUT", b"GET", 1))
            await reader.readexactly(1000)
            writer.close()
        await until(lambda: descriptors() <= before)


async def test_readers_that_read_nothing_of_a_file_hinder_nobody_and_are_dropped():
    size = 64 * 2**20
    async with serving(connections=ConnectionLimits(stall_timeout_s=1.0)) as served:
        await put(served, "f")
        os.truncate(workspace(served) / "f", size)
        await put(served, "small")
        before = descriptors()
        idle = []
        for _ in range(2 * files_service.THREADS):
            reader, writer = await served.connect()
            writer.write(head(served, "f").replace(b"PUT", b"GET", 1))
            await reader.readuntil(b"\r\n\r\n")
            reader._transport.pause_reading()
            idle.append(writer)
        assert (await get(served, "small")).body == TEXT
        await until(lambda: not served.server.connections)
        for writer in idle:
            writer.close()
        await until(lambda: descriptors() <= before)


async def test_a_reader_that_breaks_off_in_the_middle_of_a_file_is_no_fault_of_ours(caplog):
    async with serving() as served:
        await put(served, "f")
        os.truncate(workspace(served) / "f", 64 * 2**20)
        before = descriptors()
        for _ in range(5):
            reader, writer = await served.connect()
            writer.write(head(served, "f").replace(b"PUT", b"GET", 1))
            await reader.readuntil(b"\r\n\r\n")
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()  # which is a reset, told to whoever writes next
        await until(lambda: not served.server.connections)
        await until(lambda: descriptors() <= before)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_reader_at_any_pace_gets_every_byte_of_a_file():
    async with limited(download=2**30) as served:
        await put(served, "f")
        content = os.urandom(2**20) * 24
        (workspace(served) / "f").write_bytes(content)
        reader, writer = await served.connect()
        writer.write(head(served, "f").replace(b"PUT", b"GET", 1))
        await reader.readuntil(b"\r\n\r\n")
        for at in range(0, len(content), 3 * 2**20):
            assert await reader.readexactly(3 * 2**20) == content[at : at + 3 * 2**20]
            await asyncio.sleep(0.02)  # its pace: what is on its way is full meanwhile
        writer.write(head(served, "f").replace(b"PUT", b"HEAD", 1))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")  # the connection is kept
        writer.close()
