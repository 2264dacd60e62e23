"""What ``cellbox doctor`` says of the way out: the policy file, the proxy, and what this machine's resolver makes of names.

Promises: only reads and resolves, a few names and for a few seconds; without a way out it says nothing.
"""

from __future__ import annotations

import concurrent.futures
import ipaddress
import socket
from collections.abc import Iterator

from interpreter.cli.findings import Finding, error, ok, warning
from interpreter.egress import entries, tools
from interpreter.egress.policies import File, Policies, PolicyError, Rules
from interpreter.egress.ways import read_policies
from interpreter.settings import Settings

WHAT = "egress"
FAKE = ipaddress.ip_network("198.18.0.0/15")
"""From which proxies on a machine that take all of its traffic (fake-ip) answer for every name."""

_MOST_NAMES = 8
_RESOLVE_S = 5.0
_RANGES = "SANDBOX_EGRESS_PRIVATE_CIDRS"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def examine(found: Settings) -> Iterator[Finding]:
    """Yield what there is to say."""
    if found.network != "proxy":
        return
    file = found.egress_policy_file
    try:
        said = File() if file is None else read_policies(file)
        Policies(Rules(tuple(found.egress_allowlist)), file=said).check()
    except PolicyError as wrong:
        yield error(WHAT, f"the policy is wrong: {wrong}", f"put {file or 'SANDBOX_EGRESS_ALLOWLIST'} right")
    if found.egress_control is not None and not found.egress_control.is_socket():
        yield error(
            WHAT,
            f"no proxy listens at {found.egress_control}",
            f"start it: python -m egress --control {found.egress_control}        (compose: the service `egress`)",
        )
    names = _names(found)
    resolved = resolve(names)
    yield from _judged(resolved, [ipaddress.ip_network(text) for text in found.egress_private_cidrs])


def resolve(names: list[str]) -> dict[str, list[Address]]:
    """Return the addresses that this machine has for each of ``names``; none where it has none, or not in time."""
    pool = concurrent.futures.ThreadPoolExecutor(max(1, len(names)))
    asked = {name: pool.submit(_addresses, name) for name in names}
    concurrent.futures.wait(asked.values(), timeout=_RESOLVE_S)
    pool.shutdown(wait=False, cancel_futures=True)
    return {name: answer.result() if answer.done() and not answer.cancelled() else [] for name, answer in asked.items()}


def _judged(
    resolved: dict[str, list[Address]], lifted: list[ipaddress.IPv4Network | ipaddress.IPv6Network]
) -> Iterator[Finding]:
    refused = {
        name: strange
        for name, addresses in resolved.items()
        if (strange := [each for each in addresses if not each.is_global and not any(each in net for net in lifted)])
    }
    missing = [name for name, addresses in resolved.items() if not addresses]
    fake = [name for name, addresses in refused.items() if any(each in FAKE for each in addresses)]
    if fake:
        yield warning(
            WHAT,
            f"the resolver here answers {fake[0]} with {refused[fake[0]][0]}, as one does that has an address of its own for "
            "every name (fake-ip): the proxy refuses such addresses until they are allowed",
            f"{_RANGES}={FAKE}        (beside those that are there)",
        )
    for name in [name for name in refused if name not in fake][:1]:
        yield warning(
            WHAT,
            f"{name} has the address {refused[name][0]} here, which is not of the public Internet: the proxy refuses it",
            f"{_RANGES}={refused[name][0]}        (if that is meant; beside those that are there)",
        )
    if missing:
        yield warning(WHAT, f"{missing[0]} has no address here", f"getent hosts {missing[0]}; see /etc/resolv.conf")
    if not (refused or missing):
        text = (
            f"{len(resolved)} of the allowed hosts have addresses that may be reached"
            if resolved
            else "there is a proxy"
        )
        yield ok(WHAT, text)


def _names(found: Settings) -> list[str]:
    """Return names of single hosts that sandboxes may reach, those of pip and npm as they were found before."""
    known = tools.remembered(found.data_root)
    hosts = [
        host for word in found.egress_allowlist for host in (known.get(word, ()) if word in entries.TOOLS else (word,))
    ]
    plain = [
        host.partition(":")[0]
        for host in hosts
        if "*" not in host and not host.startswith(("[", "@")) and host.count(":") < 2
    ]
    return list(dict.fromkeys(plain))[:_MOST_NAMES]


def _addresses(name: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(name, 443, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
