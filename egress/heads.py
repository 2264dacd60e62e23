"""Heads of HTTP/1.1 messages: read strictly, judged by their target, written anew.

Two parsers that read one head differently are how requests are smuggled. So whatever can be read in two ways is refused,
and what goes on is not what came but what was understood: one line, one Host, one framing field, nothing that is meant
for a proxy.

Promises: pure. ``Malformed`` and nothing else is raised, whatever the bytes.
Leaves to bodies.py: what follows the head. Leaves to policy.py: whether the target may be reached.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from egress.names import Host, MalformedName, parse_authority

MAX_HEAD = 16 * 1024
"""Bytes, both ways, the empty line included."""

_MAX_FIELDS = 128
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[\x21-\x7e]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_VERSION = re.compile(r"HTTP/1\.[01]")
_STATUS = re.compile(r"(HTTP/1\.[01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_LENGTH = re.compile(r"0|[1-9][0-9]{0,14}")
"""Up to a petabyte. A sign, a leading zero, a list or a digit of another script is read differently by others."""

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "http2-settings",
        "host",
    }
)
_OF_PROXIES = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "client-ip"})
_OF_PROXIES_BEGIN = ("proxy-", "x-forwarded-")


class Field(NamedTuple):
    """One field of a head. name: lower-cased. written: as it came. value: without white space around it."""

    name: str
    written: str
    value: str


Fields = tuple[Field, ...]
Length = int | Literal["chunked", "close"]
"""How long a body is: bytes; in chunks; until its sender closes (answers only)."""


class Malformed(Exception):
    """A message that is not taken. Text: one sentence that quotes nothing of it. status: for the client, if it is its fault."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came. old: of HTTP/1.0."""

    method: str
    target: str
    old: bool
    fields: Fields

    @property
    def keeps(self) -> bool:
        """Whether the client expects to use the connection again."""
        return _keeps(self.fields, old=self.old)


@dataclass(frozen=True, slots=True)
class Response:
    """The head of an answer as it came."""

    status: int
    reason: str
    old: bool
    fields: Fields

    @property
    def keeps(self) -> bool:
        """Whether the origin will take another request on the connection."""
        return _keeps(self.fields, old=self.old)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request of plain HTTP goes. path: with its query, as the origin is sent it."""

    host: Host
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the one Host field."""
        return self.host.in_url if self.port == 80 else f"{self.host.in_url}:{self.port}"


def end_of_head(data: bytes | bytearray) -> int | None:
    """Return how many bytes of ``data`` the head takes, its empty line included; None if it has not ended.

    Raises Malformed as soon as it can be none: too long, a line that ends without CR, a NUL.
    """
    found = data.find(b"\r\n\r\n")
    end = found + 4 if found >= 0 else len(data)
    if end > MAX_HEAD or (found < 0 and end == MAX_HEAD):
        raise Malformed(f"the head is longer than {MAX_HEAD} bytes", 431)
    lines = data.count(b"\n", 0, end)
    if lines != data.count(b"\r\n", 0, end) or data.find(b"\0", 0, end) >= 0:
        raise Malformed("a line of the head does not end with CR LF, or holds a NUL")
    return end if found >= 0 else None


def parse_request(head: bytes) -> Request:
    """Return the request whose head is ``head``, its empty line included. Raises Malformed."""
    first, fields = _lines(head)
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if not (_TOKEN.fullmatch(method) and _TARGET.fullmatch(target) and _VERSION.fullmatch(version)):
        raise Malformed("the request line is not METHOD, target and HTTP/1.1 with one space between them")
    return Request(method, target, version == "HTTP/1.0", fields)


def parse_response(head: bytes) -> Response:
    """Return the answer whose head is ``head``. Raises Malformed."""
    first, fields = _lines(head)
    if (found := _STATUS.fullmatch(first)) is None:
        raise Malformed("the status line is none")
    return Response(int(found[2]), found[3] or "", found[1] == "HTTP/1.0", fields)


def connect_target(request: Request) -> tuple[Host, int]:
    """Return host and port of a CONNECT, which decide. Raises Malformed, also for another Host and for a body."""
    try:
        host, port = parse_authority(request.target)
    except MalformedName as error:
        raise Malformed(f"the target of CONNECT is host:port; {error}") from error
    if request_length(request) != 0:
        raise Malformed("CONNECT has no body")
    _same_host(request, host, port, port)
    return host, port


def absolute_target(request: Request) -> Target:
    """Return where a request to a proxy goes: its target decides, and a Host must say the same. Raises Malformed."""
    scheme, colon, rest = request.target.partition("://")
    if not colon or scheme.lower() != "http":
        raise Malformed("this is a proxy: it takes CONNECT host:port, and http://host/path for plain HTTP")
    cut = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    authority, path = rest[:cut], rest[cut:]
    try:
        host, port = parse_authority(authority, 80)
    except MalformedName as error:
        raise Malformed(f"the target is no URL; {error}") from error
    _same_host(request, host, port, 80)
    if not path and request.method == "OPTIONS":
        return Target(host, port, "*")
    return Target(host, port, _path(path if path.startswith("/") else f"/{path}"))


def tunnelled_target(request: Request, host: Host, port: int) -> Target:
    """Return where a request goes that came through CONNECT to a port of plain HTTP: nowhere else. Raises Malformed."""
    if not request.target.startswith("/"):
        target = absolute_target(request)
        if (target.host, target.port) != (host, port):
            raise Malformed("the target is another host than the tunnel's")
        return target
    if not _values(request.fields, "host"):
        raise Malformed("the Host is missing")
    _same_host(request, host, port, 80)
    return Target(host, port, _path(request.target))


def request_length(request: Request) -> Length:
    """Return how long the body of a request is; 0 where no field says so. Raises Malformed."""
    length = _length(request.fields, old=request.old)
    return 0 if length is None else length


def response_length(response: Response, method: str) -> Length:
    """Return how long the body of the final answer to ``method`` is. Raises Malformed."""
    length = _length(response.fields, old=response.old)
    if method == "HEAD" or response.status in (204, 304):
        return 0
    return "close" if length is None else length


def expects_continue(request: Request) -> bool:
    """Whether the client waits for 100 before it sends its body. Raises Malformed for any other expectation."""
    expected = [value.lower() for value in _values(request.fields, "expect")]
    if expected not in ([], ["100-continue"]):
        raise Malformed("it expects what nobody promises", 417)
    return bool(expected)


def outgoing_request(request: Request, target: Target, length: Length) -> bytes:
    """Return the head for the origin. Whether the origin's connection is kept is no business of the client's."""
    lines = [f"{request.method} {target.path} HTTP/1.1", f"Host: {target.authority}"]
    lines += _passed(request.fields)
    if length == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif length != 0 or _values(request.fields, "content-length"):
        lines.append(f"Content-Length: {length}")
    return _written(lines)


def outgoing_response(response: Response, length: Length, *, method: str, old: bool, keeps: bool) -> bytes:
    """Return the head for the client. old: it speaks HTTP/1.0, where what comes in chunks ends when the connection does."""
    lines = [f"HTTP/1.1 {response.status} {response.reason}", *_passed(response.fields)]
    if 100 <= response.status < 200:
        return _written(lines)
    if method == "HEAD" or response.status == 304:
        # What the body would have been: said, not sent.
        lines += [f"Content-Length: {value}" for value in _values(response.fields, "content-length")]
    elif length == "chunked":
        lines += [] if old else ["Transfer-Encoding: chunked"]
    elif length != "close" and response.status != 204:
        lines.append(f"Content-Length: {length}")
    lines += ["Connection: keep-alive"] if keeps and old else [] if keeps else ["Connection: close"]
    return _written(lines)


def own_response(status: int, sentence: str) -> bytes:
    """Return a whole answer of the proxy's own, after which the connection is closed.

    sentence: stands in the body and in the status line, since many clients show nothing else of a refused CONNECT.
    """
    body = f"{sentence}\n".encode()
    lines = [
        f"HTTP/1.1 {status} {sentence}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return _written(lines) + body


def _lines(head: bytes) -> tuple[str, Fields]:
    first, *rest = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    if len(rest) > _MAX_FIELDS:
        raise Malformed(f"the head has more than {_MAX_FIELDS} fields", 431)
    fields = []
    for line in rest:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Malformed("a field of the head is not `Name: value` on one line")
        fields.append(Field(name.lower(), name, value))
    return first, tuple(fields)


def _values(fields: Fields, name: str) -> list[str]:
    return [field.value for field in fields if field.name == name]


def _length(fields: Fields, *, old: bool) -> int | Literal["chunked"] | None:
    lengths = _values(fields, "content-length")
    codings = _values(fields, "transfer-encoding")
    if codings:
        if lengths or old or len(codings) > 1 or codings[0].lower() != "chunked":
            raise Malformed("Transfer-Encoding is `chunked`, once, and without Content-Length")
        return "chunked"
    if lengths:
        if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
            raise Malformed("Content-Length is one decimal number, once")
        return int(lengths[0])
    return None


def _same_host(request: Request, host: Host, port: int, default_port: int) -> None:
    hosts = _values(request.fields, "host")
    if len(hosts) > 1:
        raise Malformed("there is more than one Host")
    if hosts:
        try:
            same = parse_authority(hosts[0], default_port) == (host, port)
        except MalformedName as error:
            raise Malformed(f"the Host is none; {error}") from error
        if not same:
            raise Malformed("the Host is another than the target's")


def _path(path: str) -> str:
    if "#" in path:
        raise Malformed("a fragment is not sent to a server")
    return path


def _options(fields: Fields) -> set[str]:
    return {word.strip(" \t").lower() for value in _values(fields, "connection") for word in value.split(",")}


def _keeps(fields: Fields, *, old: bool) -> bool:
    options = _options(fields)
    return "close" not in options and (not old or "keep-alive" in options)


def _passed(fields: Fields) -> list[str]:
    """The fields that concern both ends, each as one line."""
    dropped = _HOP_BY_HOP | _OF_PROXIES | _options(fields)
    return [
        f"{field.written}: {field.value}"
        for field in fields
        if field.name not in dropped and not field.name.startswith(_OF_PROXIES_BEGIN)
    ]


def _written(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
