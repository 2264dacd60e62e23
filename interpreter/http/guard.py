"""Who may call: the Host and Origin rules, and the keys.

Plain functions over header values. Keys are compared as hashes in constant time, and nothing here ever returns one.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable

from interpreter.errors import ForbiddenHost, ForbiddenOrigin, Unauthorized

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")


class Guard:
    """The rules of one service.

    keys: at least one. hosts: names accepted besides IP literals, ``localhost`` and names without a dot. origins: of
    browser pages that may call, besides the service's own.
    """

    def __init__(self, *, keys: Iterable[str], hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._keys = [hashlib.sha256(key.encode()).digest() for key in keys]
        if not self._keys:
            raise ValueError("a service without a key would be open to all")
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)

    def check_host(self, host: str | None) -> None:
        """Raise ForbiddenHost if ``host`` is not one of ours.

        host: None for HTTP/1.0 without the header, which no browser sends.
        """
        if host is None:
            return
        match = _HOST.fullmatch(host)
        name = (match[1] or match[2]).lower().removesuffix(".") if match else ""
        if not name or not (_is_address(name) or "." not in name or name in self._hosts):
            raise ForbiddenHost("This Host is not served here; SANDBOX_ALLOWED_HOSTS lists names that are.")

    def is_foreign(self, origin: str | None, host: str | None) -> bool:
        """Whether ``origin`` is a page of another host than the one that ``host`` names."""
        return origin is not None and (host is None or origin.lower() not in _own(host))

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Raise ForbiddenOrigin if a page of ``origin`` may not call. host: the Host header, already accepted."""
        if origin is not None and self.is_foreign(origin, host) and origin.lower() not in self._origins:
            raise ForbiddenOrigin("This Origin may not call; SANDBOX_ALLOWED_ORIGINS lists those that may.")

    def is_listed(self, origin: str | None) -> bool:
        """Whether a page of ``origin`` may read answers."""
        return origin is not None and origin.lower() in self._origins

    def check_key(self, api_key: str | None, authorization: str | None, offered: str | None = None) -> None:
        """Raise Unauthorized unless one of the two headers carries one of the keys. offered: a key that came another way."""
        candidates = [key for key in (api_key, offered) if key is not None]
        if authorization is not None:
            scheme, _, credentials = authorization.partition(" ")
            if scheme.lower() == "bearer":
                candidates.append(credentials.strip(" "))
        # Every pair is compared, so that the time tells neither which key it was nor how it came.
        known = False
        for candidate in candidates:
            digest = hashlib.sha256(candidate.encode("utf-8", "surrogateescape")).digest()
            for key in self._keys:
                known |= hmac.compare_digest(digest, key)
        if not known:
            raise Unauthorized("Send a key of this service as `X-API-Key: KEY` or `Authorization: Bearer KEY`.")


def offered_key(protocols: str | None) -> str | None:
    """Return the key among the subprotocols that a WebSocket offers; None where there is none, or none that is well-formed.

    It is there in base64url, without padding, since a subprotocol is a word of few letters. A browser lets a page give no header.
    """
    for protocol in (protocols or "").split(","):
        name, _, encoded = protocol.strip(" \t").rpartition(".")
        if name == "cellbox.key" and _BASE64URL.fullmatch(encoded):
            with contextlib.suppress(binascii.Error):
                key = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
                return key.decode("utf-8", "surrogateescape")
    return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _own(host: str) -> tuple[str, str]:
    return f"http://{host.lower()}", f"https://{host.lower()}"
