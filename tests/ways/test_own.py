"""What no sandbox may reach, whatever its policy allows."""

from __future__ import annotations

import socket

import pytest

from interpreter.egress.own import own
from interpreter.listen import parse_listen

ROUTE = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
     +-- 172.17.0.0/16 2 0 2
        |-- 172.17.0.0
           /16 link UNICAST
        |-- 172.17.0.2
           /32 host LOCAL
"""
IF_INET6 = "00000000000000000000000000000001 01 80 10 80 lo\nfd000000000000000000000000000002 02 40 00 80 eth0\n"
ROUTE6 = (
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
    "fd000000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n"
)


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "net").mkdir()
    for name, text in (("route", ROUTE), ("fib_trie", TRIE), ("if_inet6", IF_INET6), ("ipv6_route", ROUTE6)):
        (tmp_path / "net" / name).write_text(text)
    return tmp_path


def test_the_addresses_of_this_machine_and_its_gateway_are_own(proc):
    found = own(parse_listen("127.0.0.1:8090"), None, proc=proc)
    assert found.addresses == ("172.17.0.1", "172.17.0.2", "fd00::1", "fd00::2")
    assert found.ports == (8090,)


def test_the_engine_and_the_address_listened_on_are_own(proc, tmp_path):
    found = own(parse_listen("192.0.2.7:8090"), "tcp://192.0.2.9:2376", proc=tmp_path / "nothing")
    assert (found.addresses, found.ports) == (("192.0.2.7", "192.0.2.9"), (2376, 8090))


def test_sockets_that_are_files_are_nobodys_address(tmp_path):
    found = own(parse_listen("unix:/run/api.sock"), "unix:///var/run/docker.sock", proc=tmp_path)
    assert (found.addresses, found.ports) == ((), ())


def test_what_it_reads_of_this_machine_is_what_the_machine_has():
    found = own(parse_listen("127.0.0.1:8090"), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.200", 9))
        except OSError:
            pytest.skip("this machine has no network")
        assert probe.getsockname()[0] in (*found.addresses, "127.0.0.1")
