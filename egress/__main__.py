"""``python -m egress``: the proxy as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from pathlib import Path

from egress import logs
from egress.limits import Limits
from egress.process import raise_descriptors, run
from egress.resolve import SystemResolver

_ABOUT = """\
The way out of the sandboxes: a forward proxy that lets each reach the hosts its policy names, and nothing else.

It is started and told what to do by the service: for each sandbox a Unix socket to listen at and a policy. A
sandbox that connects there speaks HTTP to it, CONNECT host:port or GET http://host/path, as to any proxy:

  printf 'GET http://example.org/ HTTP/1.1\\r\\nConnection: close\\r\\n\\r\\n' | nc -U SOCKET
"""
_AFTER = """\
What it refuses is answered with 403 and a sentence, and stands in the log as `egress denied`. Names are resolved
here, by this host's resolver, and only those that are allowed. Addresses of clouds' metadata services, of this
host and of the service are refused whatever a policy says.

It needs no access to the container engine or to files of the service: only the directories of the sockets.
"""


def main() -> int:
    """Run until told to stop; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m egress",
        description=_ABOUT,
        epilog=_AFTER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--control",
        type=Path,
        metavar="PATH",
        help="listen for the service at this Unix socket; when it goes, sandboxes go on and the next one is waited for",
    )
    where.add_argument(
        "--control-fd",
        type=int,
        metavar="N",
        help="the service is at the other end of this inherited socket; when it goes, this process ends",
    )
    given = parser.parse_args()
    logs.configure()
    limits = Limits()
    raise_descriptors(limits)
    try:
        control = given.control if given.control is not None else socket.socket(fileno=given.control_fd)
        asyncio.run(_run(control, limits))
    except OSError as error:
        sys.stderr.write(f"egress: {error}\n")
        return 1
    return 0


async def _run(control: Path | socket.socket, limits: Limits) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    resolver = SystemResolver()
    try:
        await run(control, resolver, limits=limits, stop=stop)
    finally:
        resolver.close()


if __name__ == "__main__":
    sys.exit(main())
