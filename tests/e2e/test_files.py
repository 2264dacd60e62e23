"""Files over HTTP and the same files inside: what is stored is met there, whose it is, and what hostile code can make of it."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import statistics
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests import browser
from tests.attempts import in_time
from tests.e2e.conftest import CONFINED, KEY, Cellbox

RUNTIMES = CONFINED
MIB = 2**20
FFMPEG = "ffmpeg -nostdin -v error -y"


def url(scope: str, path: str, session: str | None = "chatA") -> str:
    return f"/v1/files/{scope}/{path}" + (f"?session={session}" if session else "")


def put(cellbox: Cellbox, scope: str, path: str, content: bytes, session: str | None = "chatA") -> httpx.Response:
    return cellbox.client.put(url(scope, path, session), content=content)


def bash(cellbox: Cellbox, scope: str, code: str, **fields: object) -> str:
    answer = cellbox.exec(code, language="bash", scope=scope, session="chatA", **fields)
    assert answer["exit_code"] == 0, answer
    stdout: str = answer["stdout"]
    return stdout


def test_what_is_stored_is_met_inside_and_belongs_to_the_sandbox(cellbox: Cellbox, scope: str) -> None:
    assert put(cellbox, scope, "d/in put.txt", b"hello\n").status_code == 201
    assert cellbox.client.post(url(scope, "d/e") + "&op=mkdir").status_code == 200
    assert cellbox.client.post(url(scope, "d") + "&op=copy&to=copied").status_code == 200
    out = bash(
        cellbox,
        scope,
        "cat 'd/in put.txt'; me=$(id -u):$(id -g); find . -mindepth 1 -printf '%U:%G %m %p\\n' | sort -k3 | sed \"s/^$me/mine/\";"
        " echo more >> 'd/in put.txt'; mkdir d/e/f; rm -r copied",
    )
    assert out.splitlines() == [
        "hello",
        "mine 755 ./copied",
        "mine 755 ./copied/e",
        "mine 644 ./copied/in put.txt",
        "mine 755 ./d",
        "mine 755 ./d/e",
        "mine 644 ./d/in put.txt",
    ]
    assert cellbox.client.get(url(scope, "d/in%20put.txt")).content == b"hello\nmore\n"


def test_what_is_made_inside_is_sent_listed_and_deleted(cellbox: Cellbox, scope: str) -> None:
    bash(cellbox, scope, "mkdir -p a/b; echo 1 > a/b/c; chmod 000 a/b; umask 077; echo 2 > a/d; mkfifo a/fifo")
    listed = cellbox.client.get(url(scope, "a") + "&recursive=true").json()
    assert [entry["name"] for entry in listed["entries"]] == ["b", "b/c", "d", "fifo"]
    assert cellbox.client.get(url(scope, "a/b/c")).content == b"1\n"
    assert cellbox.client.get(url(scope, "a/fifo")).json()["code"] == "not_a_regular_file"
    assert cellbox.client.delete(url(scope, "a")).json() == {"removed": 1}
    assert bash(cellbox, scope, "ls -A") == ""


def test_without_a_session_files_are_those_of_the_scope(cellbox: Cellbox, scope: str) -> None:
    assert put(cellbox, scope, "note", b"kept", session=None).status_code == 201
    assert bash(cellbox, scope, "cat /opt/user/note; echo -n ' inside' >> /opt/user/note") == "kept"
    assert cellbox.client.get(url(scope, "note", session=None)).content == b"kept inside"
    assert cellbox.client.get(url(scope, "note")).status_code == 404


def test_an_upload_starts_the_sandbox_of_its_session(cellbox: Cellbox, scope: str) -> None:
    put(cellbox, scope, "f", b"x")
    cellbox.wait_for(
        lambda: (
            [each["state"] for each in cellbox.client.get(f"/v1/scopes/{scope}/sessions").json()["sessions"]]
            == ["idle"]
        ),
        within_s=20,
    )


def test_an_upload_is_no_more_refused_than_a_sandbox_has_room(serve, scope: str) -> None:
    service = serve(max_sessions="1")
    service.exec("x = 1", scope=scope, session="first", stateful=True)
    assert put(service, scope, "f", b"x").status_code == 201


def test_a_new_session_that_begins_with_an_upload_gets_a_spare(serve, scope: str) -> None:
    service = serve(pool="1")
    service.wait_for(lambda: _metric(service, 'cellbox_sandboxes{state="spare"}') == 1, within_s=30)
    assert put(service, scope, "f", b"of the upload").status_code == 201
    assert bash(service, scope, "cat f") == "of the upload"
    assert "could not be given away" not in service.log


def test_every_call_of_the_contract(cellbox: Cellbox, scope: str) -> None:
    """The table of API.md, row by row."""
    client = cellbox.client
    # PUT
    stored = client.put(url(scope, "a/b.txt"), content=b"one")
    assert (stored.status_code, stored.json()) == (
        201,
        {"path": "a/b.txt", "size": 3, "sha256": hashlib.sha256(b"one").hexdigest()},
    )
    assert client.put(url(scope, "a/b.txt"), content=b"three").status_code == 200
    assert client.put(url(scope, "a/b.txt"), content=b"", headers={"If-None-Match": "*"}).status_code == 412
    assert client.put(url(scope, "a/b.txt"), content=b"", headers={"If-Match": '"other"'}).status_code == 412
    # GET of a file
    got = client.get(url(scope, "a/b.txt"))
    assert (got.status_code, got.content) == (200, b"three")
    assert got.headers["Content-Type"] == "application/octet-stream"
    assert got.headers["Content-Disposition"].startswith("attachment")
    assert {"ETag", "Last-Modified", "Accept-Ranges"} <= {name.title().replace("Etag", "ETag") for name in got.headers}
    assert client.get(url(scope, "a/b.txt"), headers={"If-None-Match": got.headers["ETag"]}).status_code == 304
    part = client.get(url(scope, "a/b.txt"), headers={"Range": "bytes=1-2"})
    assert (part.status_code, part.content, part.headers["Content-Range"]) == (206, b"hr", "bytes 1-2/5")
    several = client.get(url(scope, "a/b.txt"), headers={"Range": "bytes=0-0,4-4"})
    assert several.status_code == 206
    assert several.headers["Content-Type"].startswith("multipart/byteranges")
    assert client.get(url(scope, "a/b.txt"), headers={"Range": "bytes=9-"}).status_code == 416
    head = client.head(url(scope, "a/b.txt"))
    assert (head.status_code, head.headers["Content-Length"], head.content) == (200, "5", b"")
    put(cellbox, scope, "clip.mp4", b"x")
    assert client.get(url(scope, "clip.mp4")).headers["Content-Type"] == "video/mp4"
    # GET of a directory
    listed = client.get(url(scope, "")).json()
    assert [(each["name"], each["is_dir"], each["size"]) for each in listed["entries"]] == [
        ("a", True, 0),
        ("clip.mp4", False, 1),
    ]
    assert [each["name"] for each in client.get(url(scope, "") + "&recursive=true").json()["entries"]] == [
        "a",
        "a/b.txt",
        "clip.mp4",
    ]
    assert [each["name"] for each in client.get(url(scope, "") + "&glob=**/*.txt").json()["entries"]] == ["a/b.txt"]
    page = client.get(url(scope, "") + "&limit=1").json()
    assert [each["name"] for each in client.get(url(scope, "") + f"&after={page['next']}").json()["entries"]] == [
        "clip.mp4"
    ]
    with tarfile.open(fileobj=io.BytesIO(client.get(url(scope, "a") + "&archive=tar.gz").content)) as archive:
        assert archive.getnames() == ["b.txt"]
    with zipfile.ZipFile(io.BytesIO(client.get(url(scope, "a") + "&archive=zip").content)) as archive:
        assert archive.read("b.txt") == b"three"
    # POST
    assert client.post(url(scope, "d/e") + "&op=mkdir").status_code == 200
    assert client.post(url(scope, "d/e") + "&op=mkdir").status_code == 409
    assert client.post(url(scope, "a/b.txt") + "&op=copy&to=d/copy").status_code == 200
    assert client.post(url(scope, "clip.mp4") + "&op=move&to=d/copy").status_code == 409
    assert client.post(url(scope, "clip.mp4") + "&op=move&to=d/copy&overwrite=true").status_code == 200
    assert client.post(url(scope, "d/copy") + "&op=chmod&mode=755").status_code == 200
    assert bash(cellbox, scope, "stat -c %a:%s d/copy") == "755:1\n"
    several = client.post(
        url(scope, "")[: -len("/?session=chatA")] + "?session=chatA",
        files=[("f", ("m/x", b"1")), ("f", ("m/y", b"22"))],
    )
    assert [(each["path"], each["size"]) for each in several.json()["files"]] == [("m/x", 1), ("m/y", 2)]
    # what is neither file nor directory
    bash(cellbox, scope, "mkfifo fifo; ln -s /etc/passwd out; ln -s a/b.txt in")
    assert client.get(url(scope, "fifo")).json()["code"] == "not_a_regular_file"
    assert client.get(url(scope, "out")).json()["code"] == "outside_directory"
    assert client.get(url(scope, "in")).content == b"three"
    # DELETE
    assert client.delete(url(scope, "m")).json() == {"removed": 1}
    assert client.delete(url(scope, "m")).status_code == 404
    assert client.delete(url(scope, "")).status_code == 400
    owners = bash(cellbox, scope, "find . -not -uid $(id -u)")
    assert owners == ""


def test_a_video_goes_up_is_scaled_inside_and_comes_down(cellbox: Cellbox, scope: str) -> None:
    if cellbox.exec("command -v ffmpeg", language="bash", scope=scope)["exit_code"]:
        pytest.skip("needs ffmpeg in the sandbox: it is in the image")
    bash(cellbox, scope, f"{FFMPEG} -f lavfi -i testsrc=size=320x240:rate=25 -t 2 -pix_fmt yuv420p made.mp4")
    video = cellbox.client.get(url(scope, "made.mp4")).content
    assert video[4:8] == b"ftyp"
    assert put(cellbox, scope, "in/clip.mp4", video).status_code == 201
    answer = cellbox.exec(
        f"{FFMPEG} -i in/clip.mp4 -vf scale=160:-2 out.mp4", language="bash", scope=scope, session="chatA"
    )
    assert [(each["path"], each["change"]) for each in answer["files"]] == [("out.mp4", "created")], answer
    scaled = cellbox.client.get(url(scope, "out.mp4"))
    assert (scaled.headers["Content-Type"], scaled.content[4:8]) == ("video/mp4", b"ftyp")
    assert len(scaled.content) == answer["files"][0]["size"]
    shape = "ffprobe -v error -select_streams v -show_entries stream=width,height -of csv=p=0"
    assert bash(cellbox, scope, f"{shape} out.mp4") == "160,120\n"
    middle = cellbox.client.get(url(scope, "out.mp4"), headers={"Range": "bytes=100-199"})
    assert (middle.status_code, middle.content) == (206, scaled.content[100:200])


def _metric(service: Cellbox, name: str) -> float:
    lines = service.client.get("/metrics").text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), -1)


# --- races ----------------------------------------------------------------------------------------------------------

EXCHANGING = """
import ctypes, os
libc = ctypes.CDLL(None)
os.makedirs("p/d", exist_ok=True); os.makedirs("mine", exist_ok=True)
for name in ("p/f", "mine/f", "mine/g"): open(name, "w").write("ours")
os.symlink({target!r}, "other")
os.symlink({target!r} + "/f", "p/link")
os.mkfifo("p/fifo")
open("ready", "w").close()
names = ["p/link", "p/fifo", "p/d"]
n = 0
while not os.path.exists("stop"):
    n += 1
    libc.renameat2(-100, b"mine", -100, b"other", 2)
    name = names[n % 3].encode()
    libc.renameat2(-100, b"p/f", -100, name, 2)
    libc.renameat2(-100, b"p/f", -100, name, 2)
"""


@contextmanager
def exchanging(cellbox: Cellbox, scope: str, target: Path) -> Iterator[None]:
    """Code of the tenant that exchanges a file, and the directory of another one, with links, a FIFO and a directory."""

    def run() -> None:
        cellbox.exec(EXCHANGING.format(target=str(target)), scope=scope, session="chatA", timeout=90)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        cellbox.wait_for(lambda: cellbox.client.get(url(scope, "ready")).status_code == 200, within_s=30)
        yield
    finally:
        put(cellbox, scope, "stop", b"")
        thread.join()


@pytest.mark.parametrize("rounds", [150, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_whatever_is_exchanged_nothing_outside_is_read_written_listed_or_deleted(
    cellbox: Cellbox, scope: str, tmp_path: Path, rounds: int
) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "f").write_text("of the host")
    (tmp_path / "secret-name").write_text("of the host")
    seen: set[int] = set()
    put(cellbox, scope, "seed", b"")
    left = rounds
    while left:
        with exchanging(cellbox, scope, tmp_path):
            until = time.monotonic() + 60
            while left and time.monotonic() < until:
                left -= 1
                for path in ("p/f", "mine/f"):
                    got = cellbox.client.get(url(scope, path))
                    assert got.status_code in (200, 403, 404, 409), got.text
                    assert b"of the host" not in got.content
                    seen.add(got.status_code)
                assert b"secret-name" not in cellbox.client.get(url(scope, "mine")).content
                assert b"secret-name" not in cellbox.client.get(url(scope, "") + "&recursive=true").content
                assert put(cellbox, scope, "mine/g", b"ours").status_code in (200, 201, 403, 404, 409)
                assert cellbox.client.delete(url(scope, "mine/f")).status_code in (200, 403, 404, 409)
                assert put(cellbox, scope, "mine/f", b"ours").status_code in (200, 201, 403, 404, 409)
        cellbox.client.delete(url(scope, "stop"))
        bash(cellbox, scope, "rm -rf p mine other ready")
    assert sorted(os.listdir(tmp_path)) == ["f", "secret-name"]
    assert (tmp_path / "f").read_text() == "of the host"
    assert len(seen) > 1, "nothing was exchanged"


# --- size -----------------------------------------------------------------------------------------------------------


def curl(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["curl", "-sS", "-H", f"X-API-Key: {KEY}", *words], capture_output=True, check=False, timeout=600
    )


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.alone
@pytest.mark.long_on_docker
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("mib", [64, pytest.param(2047, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_large_files_go_up_and_down_and_are_resumed_while_others_are_served(
    cellbox: Cellbox, scope: str, tmp_path: Path, mib: int
) -> None:
    large, got = tmp_path / "large", tmp_path / "got"
    with large.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
    where = cellbox.url + url(scope, "large", session=None)
    cellbox.cell("1", scope=scope, session="other")
    times: list[float] = []
    stop = threading.Event()

    def others() -> None:
        with httpx.Client(base_url=cellbox.url, headers={"X-API-Key": KEY}, timeout=60) as client:
            body = {"scope": scope, "session": "other", "language": "python", "stateful": True, "code": "1 + 1"}
            while not stop.is_set():
                begun = time.monotonic()
                assert client.post("/v1/exec", json=body).json()["status"] == "ok"
                times.append(time.monotonic() - begun)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        with large.open("rb") as file:  # cut half-way
            cut = subprocess.Popen(["curl", "-sS", "-H", f"X-API-Key: {KEY}", "-T", "-", where], stdin=subprocess.PIPE)
            assert cut.stdin is not None
            shutil.copyfileobj(_Half(file, mib * MIB // 2), cut.stdin)
            cut.kill()
            cut.communicate()
        assert cellbox.client.get(url(scope, "large", session=None)).status_code == 404
        assert curl("-T", str(large), where).returncode == 0
        part = cellbox.client.get(url(scope, "large", session=None), headers={"Range": f"bytes=0-{mib * MIB // 3}"})
        got.write_bytes(part.content)
        assert curl("-C", "-", "-o", str(got), where).returncode == 0
        assert sha256(got) == sha256(large)
    finally:
        stop.set()
        thread.join()
    in_time(statistics.median(times), 0.2)
    status = Path(f"/proc/{cellbox.process.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 150 * 1024, f"{peak} KiB"


class _Half:
    """The first bytes of a file."""

    def __init__(self, file, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data


# --- a browser ------------------------------------------------------------------------------------------------------

PAGE = """
<video id="v" muted></video><script>
const told = text => fetch('/told', {method: 'POST', body: text}), worker = navigator.serviceWorker
worker.register('/key.js')
worker.ready.then(async () => {
  if (!worker.controller) await new Promise(done => worker.oncontrollerchange = done)
  v.onloadedmetadata = () => v.currentTime = 100
  v.onseeked = () => told(`at ${v.currentTime} of ${Math.round(v.duration)}`)
  v.onerror = () => told(`error ${v.error.code} ${v.error.message}`)
  v.src = 'VIDEO'
})
</script>
"""
KEY_WORKER = """
self.onactivate = event => event.waitUntil(clients.claim())
self.onfetch = event => {
  if (!event.request.url.startsWith('VIDEO')) return
  const headers = {'X-API-Key': 'KEY'}, range = event.request.headers.get('range')
  if (range) headers.Range = range
  event.respondWith(fetch(event.request.url, {headers}))
}
"""


@browser.needed
def test_a_browser_seeks_in_a_video_behind_a_page_that_adds_the_key(serve, scope: str, tmp_path: Path) -> None:
    with browser.page({}) as page:
        service = serve(allowed_origins=page.url)
        if service.exec("command -v ffmpeg", language="bash", scope=scope)["exit_code"]:
            pytest.skip("needs ffmpeg in the sandbox: it is in the image")
        source = "-f lavfi -i testsrc2=size=640x360:rate=25 -t 120 -g 50 -pix_fmt yuv420p"
        bash(service, scope, f"{FFMPEG} {source} -preset ultrafast -crf 12 clip.mp4", timeout=120)
        video = service.url + url(scope, "clip.mp4")
        page.files["/"] = PAGE.replace("VIDEO", video)
        page.files["/key.js"] = KEY_WORKER.replace("VIDEO", video).replace("KEY", KEY)
        assert page.opened(tmp_path / "profile", within_s=90) == "at 100 of 120"
        statuses = [line for line in service.log.splitlines() if "/v1/files" in line and "status=206" in line]
        assert len(statuses) > 1
