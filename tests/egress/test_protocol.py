"""The lines between service and egress process."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress import protocol
from egress.protocol import (
    Close,
    Counted,
    Denied,
    Failed,
    Noted,
    Open,
    Opened,
    Own,
    Policy,
    ProtocolError,
    Synced,
)

POLICY = Policy(
    allow=("example.org", "*.example.com:8443", "*"), deny=("bad.example.com",), private_cidrs=("10.0.0.0/8",)
)
TO_EGRESS = [
    Own(("192.0.2.7", "2001:db8::7"), (8090,)),
    Open("s-1", "/run/x/egress", POLICY),
    Close("s-1"),
    Synced(),
    Noted(7),
]
TO_SERVICE = [
    Opened("s-1"),
    Failed("s-1", "no entry"),
    Denied(1, "s-1", "example.net", 443, "not_allowed", "sandbox egress denied: host example.net is not in allowlist"),
    Counted("s-1", 1, 2, 3, 4, 5, 6, 7),
]
WRONG = [
    b"",
    b"\n",
    b"{}",
    b"[]",
    b"null",
    b'{"kind":"Exec"}',
    b'{"kind":"Close"}',
    b'{"kind":"Close","sandbox":""}',
    b'{"kind":"Close","sandbox":7}',
    b'{"kind":"Close","sandbox":"a","more":1}',
    b'{"kind":"Noted","number":-1}',
    b'{"kind":"Noted","number":1e400}',
    b'{"kind":"Noted","number":NaN}',
    b'{"kind":"Noted","number":9007199254740993}',
    b'{"kind":"Own","addresses":[],"ports":[0]}',
    b'{"kind":"Own","addresses":[],"ports":[65536]}',
    b'{"kind":"Open","sandbox":"a","path":"' + b"x" * 1_001 + b'","policy":{}}',
    b'{"kind":"Close","sandbox":"\xff"}',
    b'{"kind":"Close","sandbox":"\\ud800"}',
    b"[" * 100_000,
    b'{"kind":"Close","sandbox":"' + b"x" * protocol.MAX_LINE + b'"}',
]


@pytest.mark.parametrize("message", TO_EGRESS, ids=lambda message: type(message).__name__)
def test_what_the_service_says_arrives(message: protocol.FromService) -> None:
    line = protocol.encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert protocol.from_service(line) == message


@pytest.mark.parametrize("message", TO_SERVICE, ids=lambda message: type(message).__name__)
def test_what_the_egress_process_says_arrives(message: protocol.FromEgress) -> None:
    assert protocol.from_egress(protocol.encode(message)) == message


@pytest.mark.parametrize("line", WRONG, ids=range(len(WRONG)))
def test_a_line_that_is_none_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.from_service(line)
    with pytest.raises(ProtocolError):
        protocol.from_egress(line)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_whatever_the_bytes_nothing_but_a_protocol_error(line: bytes) -> None:
    for decode in (protocol.from_service, protocol.from_egress):
        with contextlib.suppress(ProtocolError):
            decode(line)


def test_neither_end_takes_what_only_the_other_may_say() -> None:
    with pytest.raises(ProtocolError):
        protocol.from_egress(protocol.encode(Noted(1)))
    with pytest.raises(ProtocolError):
        protocol.from_service(protocol.encode(Opened("a")))


def test_a_message_too_long_for_a_line_is_not_sent() -> None:
    with pytest.raises(ProtocolError):
        protocol.encode(Open("a", "/x", Policy(allow=("x" * 300,) * 2_000, deny=("x" * 300,) * 2_000)))


def test_the_default_policy_reaches_nothing() -> None:
    assert Policy().allow == ()
