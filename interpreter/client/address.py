"""Where the service is, and how it is spoken to; the same for both clients."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Any

import httpx

import interpreter
from interpreter.client.errors import InvalidRequest

DEFAULT_URL = "http://127.0.0.1:8090"


@dataclass(frozen=True, slots=True)
class Address:
    """url: without a path. key: one of SANDBOX_API_KEY."""

    url: str
    key: str

    @classmethod
    def of(cls, url: str | None, key: str | None) -> Address:
        """Return what was given, else CELLBOX_URL and CELLBOX_API_KEY. Raises InvalidRequest: there is no key, or no such URL."""
        url = (url or os.environ.get("CELLBOX_URL") or DEFAULT_URL).rstrip("/")
        key = key or os.environ.get("CELLBOX_API_KEY")
        if not key:
            raise InvalidRequest("There is no key: give api_key, or set CELLBOX_API_KEY.", code="invalid_request")
        if httpx.URL(url).scheme not in ("http", "https"):
            raise InvalidRequest(f"{url!r} is no http:// or https:// URL.", code="invalid_request")
        return cls(url, key)

    def options(self) -> dict[str, Any]:
        """How the HTTP client of httpx is made. Proxies of the environment are for other machines than this one."""
        return {
            "base_url": self.url,
            "headers": {"X-API-Key": self.key, "User-Agent": f"cellbox/{interpreter.__version__}"},
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
            "trust_env": not _is_here(httpx.URL(self.url).host),
        }


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
