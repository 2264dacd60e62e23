"""A web server with TLS on this machine, for the way out of sandboxes: files, a repository of git, a certificate of its own."""

from __future__ import annotations

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOST = "127.0.0.2"
"""Not the loopback address that programs reach without a proxy."""


class Origin:
    """host: with the port, as it stands in an allowlist. certificate: of the authority, as PEM."""

    def __init__(self, root: Path, port: int, certificate: str) -> None:
        self.root = root
        self.host = f"{HOST}:{port}"
        self.url = f"https://{self.host}"
        self.certificate = certificate


class _Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[Origin]:
    """Serve ``hello.txt`` and ``repository.git`` until left."""
    root = folder / "served"
    root.mkdir()
    (root / "hello.txt").write_text("hello from outside\n")
    _repository(folder, root / "repository.git")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    _run(
        *(
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ),
        *(
            "-keyout",
            str(key),
            "-out",
            str(certificate),
            "-subj",
            f"/CN={HOST}",
            "-addext",
            f"subjectAltName=IP:{HOST}",
        ),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer((HOST, 0), partial(_Quiet, directory=root)) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Origin(root, server.server_port, certificate.read_text())
        finally:
            server.shutdown()
            thread.join()


def _repository(folder: Path, at: Path) -> None:
    tree = folder / "tree"
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@data.example"]
    _run("git", "init", "-q", str(tree))
    (tree / "told.txt").write_text("cloned\n")
    _run("git", "-C", str(tree), "add", "told.txt")
    _run("git", "-C", str(tree), *identity, "commit", "-q", "-m", "told")
    _run("git", "clone", "-q", "--bare", str(tree), str(at))
    _run("git", "-C", str(at), "update-server-info")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
