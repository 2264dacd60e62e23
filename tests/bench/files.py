"""Rows of files: large ones beside nginx, which takes and serves the same, and a long listing.

Without nginx (Debian: nginx), the rows that are beside it are left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import apart
from tests.bench import measure
from tests.bench.rows import Caller, fresh
from tests.e2e.conftest import KEY, Cellbox

MIB = 2**20
LARGE_MIB = 1024
ENTRIES = 10_000
ROUNDS = 5

_NGINX = """
worker_processes 1; daemon off; pid {root}/pid; error_log stderr crit; {user}
events {{}}
http {{
  access_log off; sendfile on; client_max_body_size 0; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;
  fastcgi_temp_path {root}/fastcgi; uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
  server {{ listen 127.0.0.1:{port}; root {root}/files; location / {{ dav_methods PUT; }} }}
}}
"""


def large_get(service: Cellbox, _caller: Caller) -> measure.Rows:
    """A file of 1 GiB to curl, beside the same file from nginx."""
    return _large(service, "GET of 1 GiB", ["-o", "/dev/null"], limit=1.67)


def large_put(service: Cellbox, _caller: Caller) -> measure.Rows:
    """A file of 1 GiB from curl, hashed and synced, beside nginx, which does neither."""
    return _large(service, "PUT of 1 GiB", None, limit=2)


def _large(service: Cellbox, name: str, words: list[str] | None, *, limit: float) -> measure.Rows:
    if shutil.which("nginx") is None:
        return [measure.LeftOut(name, "there is no nginx: apt-get install nginx-light")]
    scope = fresh("large")
    with tempfile.TemporaryDirectory(prefix="cellbox-bench-", dir=service.root.parent) as directory:
        file = Path(directory) / "large"
        with file.open("wb") as out:
            for _ in range(LARGE_MIB):
                out.write(os.urandom(MIB))
        with _nginx(Path(directory)) as other:
            ours = f"{service.url}/v1/files/{scope}/large"
            for where in (ours, other):
                _curl("-T", str(file), where)
            given = ["-T", str(file)] if words is None else words
            return [
                measure.against(
                    name,
                    lambda: _curl(*given, ours),
                    "nginx",
                    lambda: _curl(*given, other),
                    n=ROUNDS,
                    warm_up=1,
                    limit=limit,
                )
            ]


def listing(service: Cellbox, caller: Caller) -> measure.Rows:
    """A listing of 10,000 files."""
    scope = fresh("listing")
    made = caller.exec(
        f"import os\nos.mkdir('d')\nfor n in range({ENTRIES}): open(f'd/file-{{n}}.csv', 'w').close()", scope=scope
    )
    assert made["exit_code"] == 0, made
    path = f"/v1/files/{scope}/d?limit={ENTRIES}"

    def ask() -> Any:
        found = service.client.get(path)
        assert found.status_code == 200
        return found

    assert len(ask().json()["entries"]) == ENTRIES
    return [
        measure.alone("listing of 10,000 files", lambda: measure.elapsed_ms(ask), unit="ms", n=20, warm_up=2, limit=100)
    ]


def _curl(*words: str) -> None:
    subprocess.run(["curl", "-sSf", "-o", "/dev/null", "-H", f"X-API-Key: {KEY}", *words], check=True, timeout=300)


@contextmanager
def _nginx(root: Path) -> Iterator[str]:
    """The address at which nginx serves and takes files."""
    (root / "files").mkdir()
    user = "user root;" if os.geteuid() == 0 else ""
    with apart.port() as port:
        config = root / "nginx.conf"
        config.write_text(_NGINX.format(root=root, port=port, user=user))
        process = subprocess.Popen(["nginx", "-e", "stderr", "-c", str(config), "-p", str(root)])
        try:
            deadline = time.monotonic() + 10
            while not (root / "pid").exists():
                assert process.poll() is None, "nginx has ended"
                assert time.monotonic() < deadline, "nginx does not start"
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/large"
        finally:
            process.terminate()
            process.wait(20)


ROWS = {"large-get": large_get, "large-put": large_put, "listing": listing}
