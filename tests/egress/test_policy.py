"""What is allowed, and why not: tables, hostile rows first."""

from __future__ import annotations

import socket

import pytest

from egress import protocol
from egress.names import parse_host
from egress.policy import Denial, Own, PolicyError, Rules, decide
from egress.protocol import Policy

PUBLIC = socket.inet_aton("93.184.216.34")


def judged(
    policy: Policy, host: str, port: int = 443, address: str | None = None, own: Own | None = None
) -> str | None:
    """The reason, or None for what is allowed."""
    target = parse_host(host)
    packed = parse_host(address).packed if address is not None else target.packed or PUBLIC
    assert packed is not None
    denial = decide(Rules(policy), own or Own(), target, port, packed)
    return None if denial is None else denial.reason


NAMES = [
    # entry of allow, host, port, reason
    ("example.org", "evil.example", 443, "not_allowed"),
    ("example.org", "notexample.org", 443, "not_allowed"),
    ("example.org", "example.org.evil.example", 443, "not_allowed"),
    ("example.org", "sub.example.org", 443, "not_allowed"),
    ("example.org", "org", 443, "not_allowed"),
    ("*.example.org", "example.org", 443, "not_allowed"),
    ("*.example.org", "evilexample.org", 443, "not_allowed"),
    ("*.example.org", "a.example.org.evil.example", 443, "not_allowed"),
    ("*.2", "93.184.216.34", 443, "entry"),
    ("*.216.34", "93.184.216.34", 443, "entry"),
    ("93.184.216.3", "93.184.216.34", 443, "not_allowed"),
    ("example.org", "example.org", 22, "port"),
    ("example.org:8443", "example.org", 443, "port"),
    ("example.org:8443", "example.org", 8443, None),
    ("example.org", "example.org", 443, None),
    ("example.org", "example.org", 80, None),
    ("Example.ORG.", "example.org", 443, None),
    ("*.example.org", "a.example.org", 443, None),
    ("*.example.org", "a.b.c.example.org", 443, None),
    ("*.example.org:8443", "a.example.org", 443, "port"),
    ("*.example.org:8443", "a.example.org", 8443, None),
    ("*", "anything.example", 443, None),
    ("*", "anything.example", 8443, "port"),
    ("*:8443", "anything.example", 8443, None),
    ("*:8443", "anything.example", 443, "port"),
    ("*", "93.184.216.34", 443, None),
    ("93.184.216.34", "93.184.216.34", 443, None),
    ("93.184.216.34:53", "93.184.216.34", 53, None),
    ("2606:4700::1111", "[2606:4700:0::1111]", 443, None),
    ("[2606:4700::1111]", "[2606:4700::1111]", 443, None),
    ("[2606:4700::1111]:53", "[2606:4700::1111]", 53, None),
    ("[2606:4700::1111]:53", "[2606:4700::1111]", 443, "port"),
]


@pytest.mark.parametrize(("entry", "host", "port", "reason"), NAMES)
def test_entries_of_allow(entry: str, host: str, port: int, reason: str | None) -> None:
    if reason == "entry":
        with pytest.raises(PolicyError):
            Rules(Policy(allow=(entry,)))
    else:
        assert judged(Policy(allow=(entry,)), host, port) == reason


@pytest.mark.parametrize(
    ("deny", "host", "port", "reason"),
    [
        ("example.org", "example.org", 443, "denied_by_rule"),
        ("example.org", "a.example.org", 443, None),
        ("*.example.org", "a.b.example.org", 443, "denied_by_rule"),
        ("*.example.org", "example.org", 443, None),
        ("*", "example.org", 443, "denied_by_rule"),
        ("*:80", "example.org", 80, "denied_by_rule"),
        ("*:80", "example.org", 443, None),
        ("example.org:80", "example.org", 80, "denied_by_rule"),
        ("example.org:80", "example.org", 443, None),
        ("93.184.216.34", "93.184.216.34", 443, "denied_by_rule"),
        ("93.184.216.34", "name.example", 443, "denied_by_rule"),  # by what the name leads to
        ("93.184.216.34:80", "name.example", 443, None),
    ],
)
def test_deny_beats_allow(deny: str, host: str, port: int, reason: str | None) -> None:
    assert judged(Policy(allow=("*", "example.org", "*.example.org"), deny=(deny,)), host, port) == reason


ADDRESSES = [
    ("169.254.169.254", "metadata_address"),
    ("168.63.129.16", "metadata_address"),
    ("100.100.100.200", "metadata_address"),
    ("[fd00:ec2::254]", "metadata_address"),
    ("127.0.0.1", "private_address"),
    ("[::1]", "private_address"),
    ("10.1.2.3", "private_address"),
    ("100.64.1.2", "private_address"),
    ("198.18.1.2", "private_address"),
    ("203.0.113.7", "private_address"),
    ("[fc00::1]", "private_address"),
    ("[::ffff:93.184.216.34]", "reserved_address"),
    ("[64:ff9b::5db8:d822]", "reserved_address"),
    ("[2002:5db8:d822::1]", "reserved_address"),
    ("169.254.1.1", "reserved_address"),
    ("[fe80::1]", "reserved_address"),
    ("224.0.0.1", "reserved_address"),
    ("0.0.0.0", "reserved_address"),
    ("255.255.255.255", "reserved_address"),
    ("93.184.216.34", None),
    ("[2606:4700::1111]", None),
]


@pytest.mark.parametrize(("address", "reason"), ADDRESSES)
@pytest.mark.parametrize("named", [True, False])
def test_a_star_does_not_reach_what_is_inside(address: str, reason: str | None, *, named: bool) -> None:
    assert judged(Policy(allow=("*",)), "name.example" if named else address, 443, address) == reason
    assert judged(Policy(allow=(address, "name.example")), "name.example" if named else address, 443, address) == reason


@pytest.mark.parametrize(("address", "reason"), ADDRESSES)
def test_all_ranges_lift_what_is_private_and_nothing_else(address: str, reason: str | None) -> None:
    lifted = None if reason == "private_address" else reason
    policy = Policy(allow=("*",), private_cidrs=("0.0.0.0/0", "::/0"))
    assert judged(policy, "name.example", 443, address) == lifted


def test_a_range_lifts_its_own_addresses_only_and_for_allowed_hosts_only() -> None:
    policy = Policy(allow=("db.example:5432",), private_cidrs=("10.1.0.0/16",))
    assert judged(policy, "db.example", 5432, "10.1.2.3") is None
    assert judged(policy, "db.example", 5432, "10.2.2.3") == "private_address"
    assert judged(policy, "other.example", 5432, "10.1.2.3") == "not_allowed"
    assert judged(policy, "10.1.2.3", 5432) == "not_allowed"


def test_own_addresses_and_ports_are_refused_whatever_the_policy() -> None:
    own = Own.of(protocol.Own(("10.1.2.3", "93.184.216.34", "2606:4700::1111"), (8090,)))
    policy = Policy(allow=("*", "*:8090"), private_cidrs=("0.0.0.0/0", "::/0"))
    for address in ("10.1.2.3", "93.184.216.34", "[2606:4700::1111]"):
        assert judged(policy, "name.example", 443, address, own) == "own_address"
    for address in ("127.0.0.1", "127.9.9.9", "[::1]", "10.9.9.9"):
        assert judged(policy, "name.example", 8090, address, own) == "own_address"
        assert judged(policy, "name.example", 443, address, own) is None
    assert judged(policy, "name.example", 8090, "93.184.216.35", own) is None


def test_the_default_reaches_nothing() -> None:
    assert judged(Policy(), "example.org") == "not_allowed"


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "exämple.org",
        "http://example.org",
        "example.org/path",
        "example.org:",
        "example.org:0",
        "example.org:https",
        "*.",
        "*example.org",
        "a.*.example.org",
        "**",
        "*.*",
        "*.10.0.0.1",
        "10.0.0.0/8",
        "[::1",
        "[::1]80",
        "@pypi",
        "example.org:80:90",
    ],
)
def test_an_entry_that_is_none_is_named(entry: str) -> None:
    for policy in (Policy(allow=("a.example", entry)), Policy(deny=(entry,))):
        with pytest.raises(PolicyError) as raised:
            Rules(policy)
        assert repr(entry) in str(raised.value)


def test_a_range_that_is_none_is_named() -> None:
    with pytest.raises(PolicyError, match=r"10\.0\.0\.1/8"):
        Rules(Policy(private_cidrs=("10.0.0.1/8",)))


def test_an_own_address_that_is_a_name_is_refused() -> None:
    with pytest.raises(PolicyError, match="name"):
        Own.of(protocol.Own(("host.example",), ()))


@pytest.mark.parametrize("reason", protocol.Reason.__args__)
def test_each_reason_has_a_sentence(reason: protocol.Reason) -> None:
    sentence = Denial(reason, "host.example", 8443).sentence
    assert sentence.startswith("sandbox egress denied: ")
    assert "host.example" in sentence


def test_the_sentence_of_an_allowlist() -> None:
    expected = "sandbox egress denied: host evil.example is not in allowlist"
    assert Denial("not_allowed", "evil.example", 443).sentence == expected
