"""``cellbox stop``."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import select
import signal
import sys
from pathlib import Path

from interpreter import app, settings
from interpreter.cli import FAILED, OK, WRONG
from interpreter.wording import counted

MARGIN_S = 40.0
"""What a service may need to close everything, beyond the time it waits for running calls."""


def run(arguments: argparse.Namespace) -> int:
    """Stop the service of the data root. Exit code 1: none runs, or it did not end in time."""
    try:
        found = settings.load()
    except settings.SettingsError as error:
        print(error, file=sys.stderr)
        return WRONG
    process = _service(found.data_root)
    if process is None:
        if arguments.all and (found.data_root / ".lock").exists():
            return _remove_all(found)
        print(f"No service uses the data root {found.data_root}.", file=sys.stderr)
        return FAILED
    try:
        signal.pidfd_send_signal(process, signal.SIGINT if arguments.all else signal.SIGTERM)
        ended, _, _ = select.select([process], [], [], found.drain_timeout + MARGIN_S)
    except PermissionError:
        print("The service belongs to another user: stop it as that user or as root.", file=sys.stderr)
        return FAILED
    finally:
        os.close(process)
    if not ended:
        print("The service has not ended yet; it was asked to.", file=sys.stderr)
        return FAILED
    print("stopped")
    return OK


def _remove_all(found: settings.Settings) -> int:
    """Remove the sandboxes that a service has left."""
    try:
        removed = asyncio.run(app.remove_all(found))
    except app.StartError as error:
        print(error, file=sys.stderr)
        return FAILED
    print(f"no service was running; {counted(removed, 'sandbox')} removed")
    return OK


def _service(root: Path) -> int | None:
    """Return a pidfd of the service that holds the lock of ``root``; None if there is none."""
    try:
        with (root / ".lock").open("rb") as lock:
            pid = int(lock.read(20))
            process = os.pidfd_open(pid)
            # The process is pinned now: if the lock is still held, the pid in it is its holder's and not a later one's.
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return process
            os.close(process)
            return None
    except (OSError, ValueError):
        return None
