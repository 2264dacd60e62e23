"""A real browser, where there is one: Chromium (Debian: chromium) opens a page of ours without a window and goes on until the
page says what it found."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needed = pytest.mark.skipif(PROGRAM is None, reason="needs a browser: apt-get install chromium")

_ARGUMENTS = (
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--autoplay-policy=no-user-gesture-required",
    "--mute-audio",
)


class Page:
    """Files that are served to the browser at ``url``, and what the page has posted to ``/told``."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)
        self.told: list[str] = []
        self._news = threading.Event()
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page.files.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Type", "text/javascript" if self.path.endswith(".js") else "text/html")
                self.end_headers()
                self.wfile.write((body or "").encode())

            def do_POST(self) -> None:
                page.told.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                page._news.set()
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def opened(self, profile: Path, *, within_s: float = 60) -> str:
        """Open ``/`` in the browser and return what it tells first. profile: a directory of its own."""
        assert PROGRAM is not None
        serving = threading.Thread(target=self._server.serve_forever)
        serving.start()
        arguments = [*_ARGUMENTS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        log = profile.parent / f"{profile.name}.log"
        try:
            with log.open("wb") as out:
                browser = subprocess.Popen(
                    [PROGRAM, *arguments, f"--user-data-dir={profile}", f"{self.url}/"],
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            try:
                assert self._news.wait(within_s), f"the page told nothing: {log.read_text(errors='replace')[-2000:]}"
            finally:
                os.killpg(browser.pid, 9)
                browser.wait()
        finally:
            self._server.shutdown()
            serving.join()
        return self.told[0]

    def close(self) -> None:
        """Give the port back."""
        self._server.server_close()


@contextmanager
def page(files: Mapping[str, str]) -> Iterator[Page]:
    """A page of these files, by their paths in its URL. More can be added to ``files`` before it is opened."""
    made = Page(files)
    try:
        yield made
    finally:
        made.close()
