"""May this sandbox reach that host, and why not: decided without I/O.

A host is judged twice: by its name before it is resolved (a refused name is never looked up, since a lookup tells its
resolver something), and by each address before it is connected to.

Promises: pure; nothing is allowed that no entry allows; deny beats allow; no entry reaches metadata addresses or ours.
Leaves to names.py and addresses.py: what a host is, and what kind of place an address is.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from egress import protocol
from egress.addresses import LIFTABLE, Range, classify
from egress.names import Host, MalformedName, parse_host, parse_ipv6, parse_port
from egress.protocol import Reason

_SENTENCES: dict[Reason, str] = {
    "not_allowed": "host {host} is not in allowlist",
    "denied_by_rule": "host {host} is denied by a rule",
    "port": "port {port} of host {host} is not in allowlist",
    "metadata_address": "host {host} has a metadata address",
    "own_address": "host {host} has an address of the service or its host",
    "private_address": "host {host} has a private address",
    "reserved_address": "host {host} has an address that is not of the public Internet",
    "not_tls": "connection to host {host} port {port} does not start with TLS",
    "no_server_name": "TLS to host {host} names no server",
    "other_server_name": "TLS to host {host} names another server",
}


class PolicyError(ValueError):
    """An entry is none. Text: one sentence that quotes it."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a host was refused."""

    reason: Reason
    host: str
    port: int

    @property
    def sentence(self) -> str:
        """What the sandbox is told."""
        return "sandbox egress denied: " + _SENTENCES[self.reason].format(host=self.host, port=self.port)


@dataclass(frozen=True, slots=True)
class Own:
    """Addresses (packed) that nobody reaches, and ports that nobody reaches on addresses that are not public."""

    addresses: frozenset[bytes] = frozenset()
    ports: frozenset[int] = frozenset()

    @classmethod
    def of(cls, told: protocol.Own) -> Own:
        """Return what the service told, read. Raises PolicyError."""
        packed = (_literal(text).packed for text in told.addresses)
        return cls(frozenset(each for each in packed if each is not None), frozenset(told.ports))


@dataclass(slots=True)
class _Ports:
    """Ports that entries for one pattern name. unnamed: an entry names none."""

    named: set[int] = field(default_factory=set)
    unnamed: bool = False


class _Entries:
    """Patterns with their ports; asked by host, whole labels at a time."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._exact: dict[str, _Ports] = {}
        self._below: dict[str, _Ports] = {}
        self._all: _Ports | None = None
        for entry in entries:
            try:
                self._add(*_split(entry))
            except MalformedName as error:
                raise PolicyError(f"egress entry {entry!r}: {error}") from error

    def _add(self, pattern: str, port: int | None) -> None:
        if pattern == "*":
            self._all = ports = self._all or _Ports()
        elif pattern.startswith("*."):
            host = parse_host(pattern[2:])
            if host.packed is not None:
                raise MalformedName("nothing is below an IP address")
            ports = self._below.setdefault(host.text, _Ports())
        else:
            ports = self._exact.setdefault(_literal_or_name(pattern).text, _Ports())
        if port is None:
            ports.unnamed = True
        else:
            ports.named.add(port)

    def of(self, host: Host) -> Iterator[_Ports]:
        """The ports of each entry that holds ``host``."""
        if self._all is not None:
            yield self._all
        if found := self._exact.get(host.text):
            yield found
        rest = "" if host.packed is not None else host.text
        while "." in rest:
            rest = rest.partition(".")[2]
            if found := self._below.get(rest):
                yield found


class Rules:
    """A policy, read."""

    def __init__(self, policy: protocol.Policy) -> None:
        """Raises PolicyError."""
        self._allow = _Entries(policy.allow)
        self._deny = _Entries(policy.deny)
        self._ports = frozenset(policy.ports)
        self._lifted: list[Range] = []
        for text in policy.private_cidrs:
            try:
                self._lifted.append(Range(text))
            except ValueError as error:
                raise PolicyError(f"egress range {text!r}: {error}") from error

    def judge_name(self, host: Host, port: int) -> Denial | None:
        """Return why ``host`` may not be looked up and reached, or None."""
        if self._denied(host, port):
            return Denial("denied_by_rule", host.text, port)
        held = list(self._allow.of(host))
        if not held:
            return Denial("not_allowed", host.text, port)
        if not any(port in each.named or (each.unnamed and port in self._ports) for each in held):
            return Denial("port", host.text, port)
        return None

    def judge_address(self, host: Host, port: int, packed: bytes, own: Own) -> Denial | None:
        """Return why ``host``, which ``judge_name`` has passed, may not be reached at this address of it, or None."""
        reason = self._reason(port, packed, own)
        return None if reason is None else Denial(reason, host.text, port)

    def _reason(self, port: int, packed: bytes, own: Own) -> Reason | None:
        kind = classify(packed)
        reason: Reason | None = None
        if kind == "metadata":
            reason = "metadata_address"
        elif packed in own.addresses or (kind in LIFTABLE and port in own.ports):
            reason = "own_address"
        elif kind in LIFTABLE and not any(packed in each for each in self._lifted):
            reason = "private_address"
        elif kind not in LIFTABLE and kind != "public":
            reason = "reserved_address"
        elif self._denied(Host(_text(packed), packed), port):
            reason = "denied_by_rule"
        return reason

    def _denied(self, host: Host, port: int) -> bool:
        return any(each.unnamed or port in each.named for each in self._deny.of(host))


def decide(rules: Rules, own: Own, host: Host, port: int, packed: bytes) -> Denial | None:
    """Return why ``host`` may not be reached at the address ``packed``, or None: both judgements, as for what is open already."""
    return rules.judge_name(host, port) or rules.judge_address(host, port, packed, own)


def _split(entry: str) -> tuple[str, int | None]:
    """Pattern and port of an entry; an IPv6 literal may stand without brackets where no port follows."""
    if entry.startswith("["):
        end = entry.find("]") + 1
        pattern, port = entry[:end] or entry, entry[end:] if end else ""
        if port and not port.startswith(":"):
            raise MalformedName("only a port can follow the bracket")
        return pattern, parse_port(port[1:]) if port else None
    if entry.count(":") > 1:
        return entry, None
    pattern, colon, port = entry.partition(":")
    return pattern, parse_port(port) if colon else None


def _literal_or_name(pattern: str) -> Host:
    return parse_ipv6(pattern) if ":" in pattern and not pattern.startswith("[") else parse_host(pattern)


def _literal(text: str) -> Host:
    try:
        host = _literal_or_name(text)
    except MalformedName as error:
        raise PolicyError(f"address {text!r}: {error}") from error
    if host.packed is None:
        raise PolicyError(f"address {text!r}: a name is none")
    return host


def _text(packed: bytes) -> str:
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed)
