"""What ``@pypi`` and ``@npm`` stand for: asked of the tools, and of pages of their indexes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from interpreter.egress import tools


@pytest.fixture
def index() -> Iterator[str]:
    """An index whose files are elsewhere."""
    pages = {
        "/simple/pip/": b'<a href="https://files.example/pip.whl#sha256=0">pip</a><a href="../x.whl">x</a>'
        b"<a href='http://mirror.example:8081/y'>y</a><a href=\"https://bad_host/z\">z</a>",
        "/npm/latest": b'{"dist": {"tarball": "https://tarballs.example/npm.tgz"}}',
    }

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            self.send_response(200 if page else 404)
            self.end_headers()
            self.wfile.write(page or b"")

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_hosts_are_those_of_the_index_and_of_its_links(index):
    at = index.removeprefix("http://")
    found = tools.hosts({"pip": f"{index}/simple", "npm": f"{index}/"})
    assert found == {"@pypi": (at, "files.example", "mirror.example:8081"), "@npm": (at, "tarballs.example")}


def test_indexes_that_are_set_are_added_to_those_of_the_tools(index):
    found = tools.hosts(
        {"pip": "http://127.0.0.1:1/simple"}, pip_index_url=f"{index}/simple", npm_registry="http://127.0.0.1:1/"
    )
    assert found["@pypi"][1:3] == ("files.example", "mirror.example:8081")
    assert found["@pypi"][-1] == "127.0.0.1:1"
    assert found["@npm"] == ("127.0.0.1:1",)


def test_where_no_page_can_be_had_the_tool_may_know_where_the_files_are():
    found = tools.hosts({"pip": "http://127.0.0.1:1/simple", "files": "https://files.example", "npm": ""})
    assert found == {"@pypi": ("127.0.0.1:1", "files.example"), "@npm": ()}


@pytest.mark.parametrize(
    "answer", ["", "x", "[]", '{"pip": 3}', '{"pip": [], "npm": [7]}', '{"pip": ["file:///etc"], "npm": []}']
)
def test_an_answer_that_is_none_is_left_out(answer):
    assert tools.asked(answer) == {}


def test_what_was_found_is_remembered_and_what_is_no_host_is_not(tmp_path):
    assert tools.remembered(tmp_path) == {}
    tools.remember(tmp_path, {"@pypi": ("index.example",), "@npm": ("registry.example:8443",)})
    assert tools.remembered(tmp_path) == {"@pypi": ("index.example",), "@npm": ("registry.example:8443",)}
    (tmp_path / ".egress-hosts").write_text(json.dumps({"@pypi": ["*; DROP"], "@npm": []}))
    assert tools.remembered(tmp_path) == {"@pypi": (), "@npm": ()}
