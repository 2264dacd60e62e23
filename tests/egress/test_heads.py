"""Heads: what can be read in two ways is refused, what goes on is written anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress import heads
from egress.heads import Malformed, Request, Response

GOOD = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"

BAD_HEADS = [
    b"GET http://a.example/ HTTP/1.1\nHost: a.example\n\n",
    b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nA: b\0c\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nA: b\rc\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\r\nHost: a.example\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nA: b\r\n folded\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nA: b\r\n\tfolded\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\n Host: a.example\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nHost : a.example\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nHost\t: a.example\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nHost\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\n: a.example\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nA\x0bB: c\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nA(: c\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nA: \x7f\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nA: \x1b[0m\r\n\r\n",
    b"GET  http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
    b"GET http://a.example/  HTTP/1.1\r\nHost: a.example\r\n\r\n",
    b"GET\thttp://a.example/\tHTTP/1.1\r\nHost: a.example\r\n\r\n",
    b"GET http://a.example/a b HTTP/1.1\r\nHost: a.example\r\n\r\n",
    b"GET http://a.example/\xc3\xa9 HTTP/1.1\r\nHost: a.example\r\n\r\n",
    b" GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
    b"\r\nGET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
    b"GET http://a.example/\r\n\r\n",
    b"GET http://a.example/ HTTP/0.9\r\n\r\n",
    b"GET http://a.example/ HTTP/1.2\r\n\r\n",
    b"GET http://a.example/ HTTP/2.0\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1 \r\n\r\n",
    b"GET http://a.example/ http/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\n",
    b"G(T http://a.example/ HTTP/1.1\r\n\r\n",
    b"G\xc3\x89T http://a.example/ HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"GET http://a.example/ HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    b"GET http://a.example/ HTTP/1.1\r\nA: " + b"b" * heads.MAX_HEAD + b"\r\n\r\n",
]


@pytest.mark.parametrize("raw", BAD_HEADS, ids=range(len(BAD_HEADS)))
def test_a_head_that_is_refused(raw: bytes) -> None:
    with pytest.raises(Malformed):
        heads.parse_request(raw[: heads.end_of_head(raw)])


@pytest.mark.parametrize("raw", [GOOD[:n] for n in range(len(GOOD))])
def test_a_head_that_has_not_ended_is_waited_for(raw: bytes) -> None:
    assert heads.end_of_head(raw) is None


def test_a_head_without_end_is_refused_before_it_is_longer_than_a_head_may_be() -> None:
    with pytest.raises(Malformed) as raised:
        heads.end_of_head(b"GET / HTTP/1.1\r\nA: ".ljust(heads.MAX_HEAD, b"x"))
    assert raised.value.status == 431


def test_a_line_without_cr_is_refused_without_waiting_for_an_empty_one() -> None:
    with pytest.raises(Malformed):
        heads.end_of_head(b"GET / HTTP/1.1\nHo")


def request(raw: str) -> Request:
    return heads.parse_request(raw.replace("\n", "\r\n").encode("latin-1"))


BAD_TARGETS = [
    ("GET / HTTP/1.1\nHost: a.example\n\n", "origin form"),
    ("GET * HTTP/1.1\nHost: a.example\n\n", "asterisk"),
    ("GET a.example HTTP/1.1\nHost: a.example\n\n", "authority"),
    ("GET https://a.example/ HTTP/1.1\nHost: a.example\n\n", "https"),
    ("GET ftp://a.example/ HTTP/1.1\nHost: a.example\n\n", "ftp"),
    ("GET file:///etc/passwd HTTP/1.1\nHost: a.example\n\n", "file"),
    ("GET http:/a.example/ HTTP/1.1\nHost: a.example\n\n", "one slash"),
    ("GET http:///a.example HTTP/1.1\nHost: a.example\n\n", "no host"),
    ("GET http://u@a.example/ HTTP/1.1\nHost: a.example\n\n", "user"),
    ("GET http://u:p@a.example/ HTTP/1.1\nHost: a.example\n\n", "user and password"),
    ("GET http://a.example@b.example/ HTTP/1.1\nHost: b.example\n\n", "user like a host"),
    ("GET http://a.example\\@b.example/ HTTP/1.1\nHost: a.example\n\n", "backslash"),
    ("GET http://a.example:80:80/ HTTP/1.1\nHost: a.example\n\n", "two ports"),
    ("GET http://a.example:8_0/ HTTP/1.1\nHost: a.example\n\n", "odd port"),
    ("GET http://a.example:/ HTTP/1.1\nHost: a.example\n\n", "empty port"),
    ("GET http://a.example/#f HTTP/1.1\nHost: a.example\n\n", "fragment"),
    ("GET http://a.example#@b.example/ HTTP/1.1\nHost: a.example\n\n", "fragment in the authority"),
    ("GET http://::1/ HTTP/1.1\nHost: a.example\n\n", "IPv6 without brackets"),
    ("GET http://0x7f.1/ HTTP/1.1\nHost: 0x7f.1\n\n", "odd address"),
    ("GET http://a.example/ HTTP/1.1\nHost: b.example\n\n", "another Host"),
    ("GET http://a.example/ HTTP/1.1\nHost: a.example:8080\n\n", "another port"),
    ("GET http://a.example:8080/ HTTP/1.1\nHost: a.example\n\n", "the usual port"),
    ("GET http://a.example/ HTTP/1.1\nHost: a.example\nHost: a.example\n\n", "two Hosts"),
    ("GET http://a.example/ HTTP/1.1\nHost: a.example\nhost: b.example\n\n", "two Hosts that differ"),
    ("GET http://a.example/ HTTP/1.1\nHost:\n\n", "empty Host"),
    ("GET http://a.example/ HTTP/1.1\nHost: a.example, b.example\n\n", "list of Hosts"),
    ("GET http://a.example/ HTTP/1.1\nHost: u@a.example\n\n", "user in Host"),
]


@pytest.mark.parametrize("raw", [raw for raw, _ in BAD_TARGETS], ids=[name for _, name in BAD_TARGETS])
def test_a_target_that_is_refused(raw: str) -> None:
    with pytest.raises(Malformed):
        heads.absolute_target(request(raw))


@pytest.mark.parametrize(
    ("raw", "authority", "path"),
    [
        ("GET http://a.example/ HTTP/1.1\nHost: a.example\n\n", "a.example", "/"),
        ("GET http://a.example HTTP/1.1\nHost: a.example\n\n", "a.example", "/"),
        ("GET http://a.example?q=1 HTTP/1.1\nHost: a.example\n\n", "a.example", "/?q=1"),
        ("GET HTTP://A.Example./x HTTP/1.1\nHost: a.EXAMPLE:80\n\n", "a.example", "/x"),
        ("GET http://a.example:80/x HTTP/1.1\nHost: a.example\n\n", "a.example", "/x"),
        ("GET http://a.example:8080/x HTTP/1.1\nHost: a.example:8080\n\n", "a.example:8080", "/x"),
        ("GET http://a.example/x HTTP/1.1\n\n", "a.example", "/x"),
        ("GET http://[2001:db8:0::1]:81/x HTTP/1.1\nHost: [2001:db8::1]:81\n\n", "[2001:db8::1]:81", "/x"),
        ("GET http://[2001:db8::1]/x HTTP/1.1\nHost: [2001:db8::1]\n\n", "[2001:db8::1]", "/x"),
        (
            "GET http://a.example/http://b.example/@:[ HTTP/1.1\nHost: a.example\n\n",
            "a.example",
            "/http://b.example/@:[",
        ),
        ("OPTIONS http://a.example HTTP/1.1\nHost: a.example\n\n", "a.example", "*"),
    ],
)
def test_a_target(raw: str, authority: str, path: str) -> None:
    found = heads.absolute_target(request(raw))
    assert (found.authority, found.path) == (authority, path)


@pytest.mark.parametrize(
    "raw",
    [
        "CONNECT a.example HTTP/1.1\n\n",
        "CONNECT http://a.example:443 HTTP/1.1\n\n",
        "CONNECT a.example:443/ HTTP/1.1\n\n",
        "CONNECT u@a.example:443 HTTP/1.1\n\n",
        "CONNECT a.example:0 HTTP/1.1\n\n",
        "CONNECT ::1:443 HTTP/1.1\n\n",
        "CONNECT a.example:443 HTTP/1.1\nHost: b.example:443\n\n",
        "CONNECT a.example:443 HTTP/1.1\nHost: a.example:80\n\n",
        "CONNECT a.example:443 HTTP/1.1\nHost: a.example:443\nHost: a.example:443\n\n",
        "CONNECT a.example:443 HTTP/1.1\nContent-Length: 1\n\n",
        "CONNECT a.example:443 HTTP/1.1\nTransfer-Encoding: chunked\n\n",
    ],
)
def test_a_connect_that_is_refused(raw: str) -> None:
    with pytest.raises(Malformed):
        heads.connect_target(request(raw))


@pytest.mark.parametrize(
    "raw",
    [
        "CONNECT a.example:443 HTTP/1.1\n\n",
        "CONNECT A.example.:443 HTTP/1.1\nHost: a.example:443\n\n",
        "CONNECT a.example:443 HTTP/1.1\nHost: a.example\nUser-Agent: x\nProxy-Connection: Keep-Alive\n\n",
        "CONNECT a.example:443 HTTP/1.0\nContent-Length: 0\n\n",
    ],
)
def test_a_connect(raw: str) -> None:
    host, port = heads.connect_target(request(raw))
    assert (host.text, port) == ("a.example", 443)


LENGTHS = [
    ("Content-Length: +5", None),
    ("Content-Length: -5", None),
    ("Content-Length: 05", None),
    ("Content-Length: 0x5", None),
    ("Content-Length: 5.0", None),
    ("Content-Length: 5,5", None),
    ("Content-Length: 5 5", None),
    ("Content-Length: 5;", None),
    ("Content-Length: 1_0", None),
    ("Content-Length:", None),
    ("Content-Length: \xb2", None),
    ("Content-Length: 9999999999999999999999", None),
    ("Content-Length: 5\nContent-Length: 5", None),
    ("Content-Length: 5\ncontent-length: 6", None),
    ("Content-Length: 5\nTransfer-Encoding: chunked", None),
    ("Transfer-Encoding: chunked\nContent-Length: 0", None),
    ("Transfer-Encoding: gzip, chunked", None),
    ("Transfer-Encoding: chunked, identity", None),
    ("Transfer-Encoding: chunked, chunked", None),
    ("Transfer-Encoding: xchunked", None),
    ("Transfer-Encoding: identity", None),
    ("Transfer-Encoding: \x0bchunked", None),
    ("Transfer-Encoding: chunked;q=1", None),
    ('Transfer-Encoding: "chunked"', None),
    ("Transfer-Encoding:", None),
    ("Transfer-Encoding: chunked\nTransfer-Encoding: chunked", None),
    ("Transfer-Encoding: chunked\nTransfer-Encoding: identity", None),
    ("A: b", 0),
    ("Content-Length: 0", 0),
    ("content-length:  5 ", 5),
    ("Transfer-Encoding: Chunked", "chunked"),
]


@pytest.mark.parametrize(("fields", "length"), LENGTHS)
def test_how_long_a_body_is(fields: str, length: heads.Length | None) -> None:
    def read() -> heads.Length:
        return heads.request_length(request(f"POST http://a.example/ HTTP/1.1\n{fields}\n\n"))

    def read_answer() -> heads.Length:
        raw = f"HTTP/1.1 200 OK\n{fields}\n\n".replace("\n", "\r\n").encode("latin-1")
        return heads.response_length(heads.parse_response(raw), "GET")

    if length is None:
        for reading in (read, read_answer):
            with pytest.raises(Malformed):
                reading()
    else:
        assert read() == length
        assert read_answer() == (length if "-" in fields else "close")


def test_chunks_are_not_of_http_1_0() -> None:
    with pytest.raises(Malformed):
        heads.request_length(request("POST http://a.example/ HTTP/1.0\nTransfer-Encoding: chunked\n\n"))


def test_nothing_that_concerns_a_proxy_goes_on() -> None:
    raw = request(
        "POST http://a.example/p?q=secret HTTP/1.1\nHost: a.example\nProxy-Authorization: Basic eDp5\nProxy-Connection: x\n"
        "Forwarded: for=1\nX-Forwarded-For: 1\nX-Forwarded-Host: b\nX-Real-IP: 1\nVia: 1.1 x\nTE: trailers\nTrailer: T\n"
        "Upgrade: h2c\nHTTP2-Settings: AAMAAABk\nConnection: Upgrade, HTTP2-Settings, x-mine, Content-Length\n"
        "Keep-Alive: 5\nX-Mine: 1\nETag: kept\nContent-Length: 3\nAccept: */*\n\n"
    )
    out = heads.outgoing_request(raw, heads.absolute_target(raw), heads.request_length(raw))
    assert out.decode().split("\r\n") == [
        "POST /p?q=secret HTTP/1.1",
        "Host: a.example",
        "ETag: kept",
        "Accept: */*",
        "Content-Length: 3",
        "",
        "",
    ]


def answer(raw: str) -> Response:
    return heads.parse_response(raw.replace("\n", "\r\n").encode("latin-1"))


@pytest.mark.parametrize(
    "raw",
    [
        "HTTP/1.1 20 OK\n\n",
        "HTTP/1.1 2000 OK\n\n",
        "HTTP/1.1 099 OK\n\n",
        "HTTP/2 200 OK\n\n",
        "ICY 200 OK\n\n",
        "200\n\n",
        "HTTP/1.1  200 OK\n\n",
        "HTTP/1.1 200OK\n\n",
        " HTTP/1.1 200 OK\n\n",
        "HTTP/1.1 200 O\x01K\n\n",
        "\n\n",
        "",
    ],
)
def test_an_answer_that_is_none(raw: str) -> None:
    with pytest.raises(Malformed):
        answer(raw)


@pytest.mark.parametrize(
    ("raw", "method", "old", "head"),
    [
        (
            "HTTP/1.1 200 OK\nContent-Length: 3\nConnection: close, x\nX: 1\n\n",
            "GET",
            False,
            "200 OK|Content-Length: 3",
        ),
        ("HTTP/1.1 200\nTransfer-Encoding: chunked\n\n", "GET", False, "200 |Transfer-Encoding: chunked"),
        ("HTTP/1.1 200 OK\nContent-Length: 7\n\n", "HEAD", False, "200 OK|Content-Length: 7"),
        ("HTTP/1.1 304 Not Modified\nContent-Length: 7\n\n", "GET", False, "304 Not Modified|Content-Length: 7"),
        ("HTTP/1.1 204 No Content\nContent-Length: 7\n\n", "DELETE", False, "204 No Content"),
        ("HTTP/1.1 103 Early Hints\nLink: x\n\n", "GET", False, "103 Early Hints|Link: x"),
        ("HTTP/1.1 200 Gr\xfc\xdfe\nContent-Length: 0\n\n", "GET", False, "200 Gr\xfc\xdfe|Content-Length: 0"),
        ("HTTP/1.1 200 OK\nContent-Length: 3\n\n", "GET", True, "200 OK|Content-Length: 3|Connection: keep-alive"),
        (
            "HTTP/1.1 200 OK\nProxy-Authenticate: Basic\nVia: x\nContent-Length: 0\n\n",
            "GET",
            False,
            "200 OK|Content-Length: 0",
        ),
    ],
)
def test_how_an_answer_goes_on(raw: str, method: str, old: bool, head: str) -> None:
    response = answer(raw)
    length = heads.response_length(response, method)
    out = heads.outgoing_response(response, length, method=method, old=old, keeps=True)
    assert out.decode("latin-1") == "HTTP/1.1 " + head.replace("|", "\r\n") + "\r\n\r\n"


def test_an_answer_in_chunks_for_http_1_0_ends_with_its_connection() -> None:
    response = answer("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n")
    out = heads.outgoing_response(response, "chunked", method="GET", old=True, keeps=False)
    assert out == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


def test_an_expectation_is_of_100_or_refused() -> None:
    assert heads.expects_continue(request("PUT http://a.example/ HTTP/1.1\nExpect: 100-Continue\n\n"))
    assert not heads.expects_continue(request("PUT http://a.example/ HTTP/1.1\n\n"))
    with pytest.raises(Malformed) as raised:
        heads.expects_continue(request("PUT http://a.example/ HTTP/1.1\nExpect: miracles\n\n"))
    assert raised.value.status == 417


@given(st.binary(max_size=300))
def test_whatever_the_bytes_nothing_but_malformed(raw: bytes) -> None:
    try:
        found = heads.parse_request(raw)
        heads.request_length(found)
        heads.absolute_target(found)
    except Malformed:
        pass
    try:
        response = heads.parse_response(raw)
        heads.response_length(response, "GET")
    except Malformed:
        pass


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_what_goes_on_has_one_line_for_each_field(target: str, name: str, value: str) -> None:
    raw = f"GET http://a.example/{target} HTTP/1.1\r\n{name}: {value}\r\n\r\n".encode("utf-8", "surrogatepass")
    try:
        end = heads.end_of_head(raw)
        found = heads.parse_request(raw[: end or 0])
        out = heads.outgoing_request(found, heads.absolute_target(found), heads.request_length(found))
    except Malformed:
        return
    assert heads.end_of_head(out) == len(out)
    assert out.count(b"\r\n") <= 5
