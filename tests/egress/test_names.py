"""Forms of hosts and ports: what a resolver would turn into another host is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.names import Host, MalformedName, parse_authority, parse_host, parse_port

NO_HOSTS = [
    "",
    ".",
    "..",
    "a..b",
    ".example.org",
    "example.org..",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0x",
    "1.0x",
    "017700000001",
    "0177.0.0.1",
    "127.0.0.01",
    "127.0.0.1.",
    "127.0.0.256",
    "127.0.0.1.1",
    "256.1.1.1",
    "1.2.3.4.5",
    "example.1",
    "①②⑦.⓪.⓪.①",
    "１２７.0.0.1",
    "exämple.org",
    "еxample.org",  # the first letter is Cyrillic
    "example。org",
    "example.org\0.evil.example",
    "example.org%00",
    "example%2eorg",
    "exa mple.org",
    " example.org",
    "example.org ",
    "example.org\t",
    "example.org\r\n",
    "example.org\n",
    "example\\.org",
    "example.org/",
    "example.org#",
    "example.org?",
    "user@example.org",
    "a_b.example.org",
    "*.example.org",
    "::1",
    "[::1",
    "::1]",
    "[]",
    "[127.0.0.1]",
    "[example.org]",
    "[::1%lo]",
    "[fe80::1%25eth0]",
    "[::1]x",
    "[[::1]]",
    "[v1.x]",
    "[:::1]",
    "[1::2::3]",
    "[::ffff:1.2.3]",
    "a" * 64 + ".example",
    ".".join(["a" * 60] * 5),
]
HOSTS = [
    ("example.org", "example.org"),
    ("EXAMPLE.Org", "example.org"),
    ("example.org.", "example.org"),
    ("xn--exmple-cua.org", "xn--exmple-cua.org"),
    ("a-b--c.example", "a-b--c.example"),
    ("localhost", "localhost"),
    ("1a.example", "1a.example"),
    ("3com.example2", "3com.example2"),
    ("0xg.example", "0xg.example"),
    ("1.2.3.4", "1.2.3.4"),
    ("0.0.0.0", "0.0.0.0"),
    ("[::1]", "::1"),
    ("[2001:DB8:0:0::1]", "2001:db8::1"),
    ("[::ffff:1.2.3.4]", "::ffff:1.2.3.4"),
]
NO_PORTS = [
    "",
    "0",
    "00000",
    "65536",
    "99999",
    "100000",
    "000080",
    "-1",
    "+80",
    " 80",
    "80 ",
    "8_0",
    "８０",
    "٨٠",
    "0x50",
    "80a",
    "8.0",
    "1e2",
    "80\n",
]


@pytest.mark.parametrize("text", NO_HOSTS)
def test_no_host(text: str) -> None:
    with pytest.raises(MalformedName):
        parse_host(text)


@pytest.mark.parametrize(("text", "canonical"), HOSTS)
def test_a_host_has_one_form(text: str, canonical: str) -> None:
    found = parse_host(text)
    assert found.text == canonical
    assert parse_host(found.in_url) == found


@pytest.mark.parametrize("text", NO_PORTS)
def test_no_port(text: str) -> None:
    with pytest.raises(MalformedName):
        parse_port(text)
    with pytest.raises(MalformedName):
        parse_authority(f"example.org:{text}")


@pytest.mark.parametrize(("text", "port"), [("1", 1), ("80", 80), ("00443", 443), ("65535", 65535)])
def test_a_port(text: str, port: int) -> None:
    assert parse_port(text) == port


@pytest.mark.parametrize(
    "text",
    ["a@b:80", "a:b@c:80", "@c:80", "c:80@", "a:80:90", "::1:80", "[::1]80", "[::1]:", "[::1]:80:90", ":80", "a:", "a"],
)
def test_no_authority(text: str) -> None:
    with pytest.raises(MalformedName):
        parse_authority(text)


def test_an_authority() -> None:
    assert parse_authority("Example.Org.:8443") == (Host("example.org"), 8443)
    assert parse_authority("[::1]:443") == (Host("::1", b"\0" * 15 + b"\1"), 443)
    assert parse_authority("example.org", 80) == (Host("example.org"), 80)
    assert parse_authority("[::1]", 80)[1] == 80


@given(st.text(max_size=80))
def test_a_host_is_ascii_whatever_the_text(text: str) -> None:
    try:
        found = parse_host(text)
    except MalformedName:
        return
    assert set(found.text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.:")
