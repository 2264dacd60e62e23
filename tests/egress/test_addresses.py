"""The table of addresses, hostile rows first."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.addresses import LIFTABLE, Range, classify

ROWS = [
    # Metadata: never lifted, also those that is_global calls public, or that lie in a range that may be lifted.
    ("169.254.169.254", "metadata"),
    ("169.254.170.2", "metadata"),
    ("169.254.170.23", "metadata"),
    ("169.254.169.253", "metadata"),
    ("168.63.129.16", "metadata"),
    ("100.100.100.200", "metadata"),
    ("192.0.0.192", "metadata"),
    ("fd00:ec2::254", "metadata"),
    ("fd00:ec2::23", "metadata"),
    ("fd20:ce::254", "metadata"),
    ("fe80::a9fe:a9fe", "metadata"),
    # IPv4 in the clothes of IPv6, the loopback address and a public one in each.
    ("::ffff:127.0.0.1", "translated"),
    ("::ffff:93.184.216.34", "translated"),
    ("::ffff:169.254.169.254", "translated"),
    ("::ffff:0:127.0.0.1", "translated"),
    ("::127.0.0.1", "translated"),
    ("64:ff9b::7f00:1", "translated"),
    ("64:ff9b::5db8:d822", "translated"),
    ("64:ff9b:1::7f00:1", "translated"),
    ("2002:7f00:1::", "translated"),
    ("2002:5db8:d822::1", "translated"),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "translated"),
    ("192.88.99.1", "translated"),
    # Every 127, not only the usual one.
    ("127.0.0.1", "loopback"),
    ("127.255.255.255", "loopback"),
    ("::1", "loopback"),
    ("::", "translated"),
    ("0.0.0.0", "reserved"),
    ("0.1.2.3", "reserved"),
    ("10.0.0.0", "private"),
    ("10.255.255.255", "private"),
    ("172.16.0.0", "private"),
    ("172.31.255.255", "private"),
    ("192.168.255.255", "private"),
    ("fc00::", "private"),
    ("fdff:ffff::1", "private"),
    ("100.64.0.0", "shared"),
    ("100.127.255.255", "shared"),
    ("169.254.0.1", "link_local"),
    ("fe80::1", "link_local"),
    ("febf::1", "link_local"),
    ("fec0::1", "link_local"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.255", "multicast"),
    ("ff02::1", "multicast"),
    ("192.0.2.1", "documentation"),
    ("198.51.100.1", "documentation"),
    ("203.0.113.1", "documentation"),
    ("2001:db8::1", "documentation"),
    ("3fff::1", "documentation"),
    ("198.18.0.1", "benchmark"),
    ("198.19.255.255", "benchmark"),
    ("2001:2::1", "benchmark"),
    ("192.0.0.9", "reserved"),
    ("192.31.196.1", "reserved"),
    ("192.52.193.1", "reserved"),
    ("192.175.48.1", "reserved"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
    ("100::1", "reserved"),
    ("2001:1::1", "reserved"),
    ("2001:20::1", "reserved"),
    ("2620:4f:8000::1", "reserved"),
    ("5f00::1", "reserved"),
    ("4000::1", "reserved"),
    ("1fff::1", "reserved"),
    # Just outside.
    ("9.255.255.255", "public"),
    ("11.0.0.0", "public"),
    ("100.63.255.255", "public"),
    ("100.128.0.0", "public"),
    ("126.255.255.255", "public"),
    ("128.0.0.0", "public"),
    ("168.63.129.15", "public"),
    ("169.253.255.255", "public"),
    ("172.15.255.255", "public"),
    ("172.32.0.0", "public"),
    ("192.0.1.0", "public"),
    ("192.167.255.255", "public"),
    ("198.17.255.255", "public"),
    ("198.20.0.0", "public"),
    ("223.255.255.255", "public"),
    ("2000::1", "public"),
    ("2001:200::1", "public"),
    ("2001:4860:4860::8888", "public"),
    ("2606:4700::1111", "public"),
    ("3ffe:ffff::1", "public"),
]


def packed(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


@pytest.mark.parametrize(("text", "kind"), ROWS)
def test_the_kind_of(text: str, kind: str) -> None:
    assert classify(packed(text)) == kind


@pytest.mark.parametrize("length", [0, 1, 3, 5, 8, 15, 17])
def test_what_has_the_length_of_no_address_is_reserved(length: int) -> None:
    assert classify(b"\x08" * length) == "reserved"


@given(st.ip_addresses())
def test_nothing_is_public_that_the_standard_library_calls_private(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not address.is_global or address.is_multicast:
        assert classify(address.packed) != "public"


@given(st.ip_addresses(v=6, network="2000::/3") | st.ip_addresses(v=6))
def test_of_ipv6_nothing_but_2000_is_public(address: ipaddress.IPv6Address) -> None:
    if classify(address.packed) == "public":
        assert address.packed[0] >> 5 == 1


def test_no_metadata_address_can_be_lifted() -> None:
    assert LIFTABLE.isdisjoint({"metadata", "translated", "link_local", "multicast", "reserved"})


def test_a_range_holds_no_address_of_the_other_version() -> None:
    assert packed("::") not in Range("0.0.0.0/0")
    assert packed("0.0.0.0") not in Range("::/0")
    assert packed("10.1.2.3") in Range("10.0.0.0/8")
    assert packed("11.1.2.3") not in Range("10.0.0.0/8")


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "host", "", "10.0.0/8"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Range(text)
