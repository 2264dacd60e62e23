"""Ports of the loopback for kernels that listen on tcp."""

import socket

from sandboxd import ports


def test_free_ports_can_be_had_and_are_none_that_a_connection_gets():
    found = ports.free(5)
    assert len(set(found)) == 5
    assert not ports.taken(found)
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        lowest, highest = map(int, file.read().split())
    assert not any(lowest <= port <= highest for port in found)
    assert ports.free(5) != found


def test_one_taken_port_is_enough():
    found = ports.free(2)
    with socket.socket() as other:
        other.bind((ports.LOOPBACK, found[1]))
        assert ports.taken(found)
    assert not ports.taken(())
