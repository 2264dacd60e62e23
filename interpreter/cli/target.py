"""Where the service is that a command speaks to: as told, as the environment says, else the one of this machine's settings."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import httpx

from interpreter import settings
from interpreter.client import Client
from interpreter.client.address import DEFAULT_URL
from interpreter.settings import Settings


@dataclass(frozen=True, slots=True)
class Target:
    """Where the service is. url: without a path. socket: a Unix socket to connect to instead."""

    url: str
    key: str
    socket: Path | None = None


def connect(arguments: argparse.Namespace) -> Client:
    """Return a client of the service that ``--url``, CELLBOX_URL and CELLBOX_API_KEY name, else of the one that the settings of
    now would start. Raises SettingsError: there is no key."""
    target = _target(arguments.url)
    transport = httpx.HTTPTransport(uds=str(target.socket)) if target.socket else None
    return Client(target.url, target.key, transport=transport)


def _target(url: str | None) -> Target:
    url = url or os.environ.get("CELLBOX_URL")
    if key := os.environ.get("CELLBOX_API_KEY"):
        return Target(url or DEFAULT_URL, key)
    try:
        found = settings.load()
        own = found.keys[0] if found.keys else made_key(found.data_root)
        return Target(url, own) if url else listening(found, own)
    except settings.SettingsError as error:
        raise settings.SettingsError(
            f"There is no key: set CELLBOX_API_KEY. (A service of this machine? {error})"
        ) from error


def listening(found: Settings, key: str) -> Target:
    """Return where a service with these settings is. Raises SettingsError: they name no port."""
    listen = found.address
    if listen.path is not None:
        return Target("http://localhost", key, listen.path)
    if not listen.port:
        raise settings.SettingsError(f"SANDBOX_LISTEN={found.listen} names no port: give the address with --url.")
    return Target(f"http://{reachable(listen.host)}:{listen.port}", key)


def reachable(host: str) -> str:
    """Return an address at which a service on ``host`` is reached from here."""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - nothing listens here
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def made_key(root: Path) -> str:
    """Return the key that a service on this data root has made. Raises SettingsError: there is none to be read."""
    try:
        return (root / ".api-key").read_text().strip()
    except OSError as error:
        raise settings.SettingsError(
            f"SANDBOX_API_KEY is not set, and no service has made a key in {root}: {error.strerror}."
        ) from error
