"""Which hosts ``@pypi`` and ``@npm`` stand for: those that the installed pip and npm use, asked of them and of the indexes' own
answers.

The tools are asked in a sandbox that nobody has used; where an index keeps its files is read from one of its pages. Both are
remembered in the data root, so that only a first start waits.
Promises: what cannot be asked is left out, and the rest holds; answers are bounded, and give names of hosts and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from interpreter.egress import entries

log = logging.getLogger(__name__)

QUESTION = r"""
import json, re, subprocess

def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, cwd="/").stdout
    except (OSError, subprocess.SubprocessError):
        return ""

pip = re.findall(r"default (https?://[^\s)]+)", " ".join(said("pip", "help", "install").split()))
try:
    from pip._internal.models.index import PyPI
    files = ["https://" + PyPI.file_storage_domain]
except (ImportError, AttributeError, TypeError):
    files = []
npm = said("npm", "config", "get", "registry").split()
print(json.dumps({"pip": pip[:1], "files": files, "npm": npm[:1]}))
"""
"""For a Python inside: it prints the addresses that pip and npm use when nothing else is said. Some versions of pip know where
the default index keeps its files, which helps where its pages cannot be had from here."""

_PAGE_S = 8.0
_PAGE_BYTES = 2 * 2**20
_MOST_HOSTS = 50
_FILE = ".egress-hosts"
_LINK = re.compile(rb"""href=["'](https?://[^"'\s>]+)""")
_TARBALL = re.compile(rb""""tarball"\s*:\s*"(https?://[^"\s]+)""")

Hosts = dict[str, tuple[str, ...]]


def asked(answer: str) -> dict[str, str]:
    """Return the addresses that ``answer`` to ``QUESTION`` tells: of the index for ``pip``, of its ``files``, for ``npm``."""
    try:
        said = json.loads(answer)
        found = {name: next(iter(said.get(name, ())), "") for name in ("pip", "files", "npm")}
    except (ValueError, TypeError, AttributeError):
        return {}
    return {name: url for name, url in found.items() if isinstance(url, str) and host_of(url)}


def hosts(defaults: Mapping[str, str], *, pip_index_url: str = "", npm_registry: str = "") -> Hosts:
    """Return what the words stand for. Blocking: asks the indexes for a page each, a few seconds at most.

    defaults: of the tools, see ``asked``. pip_index_url, npm_registry: those that are set inside instead; added to them.
    """
    pip = [url for url in (pip_index_url, defaults.get("pip", "")) if url]
    npm = [url for url in (npm_registry, defaults.get("npm", "")) if url]
    return {
        "@pypi": _unique(
            [
                *(host for url in pip for host in (host_of(url), *_linked(f"{url.rstrip('/')}/pip/", _LINK))),
                host_of(defaults.get("files", "")),
            ]
        ),
        "@npm": _unique(
            host for url in npm for host in (host_of(url), *_linked(f"{url.rstrip('/')}/npm/latest", _TARBALL))
        ),
    }


def host_of(url: str) -> str:
    """Return the entry that allows ``url``: its host, with the port where that is not the usual one; empty: it has none."""
    with contextlib.suppress(ValueError):
        at = urlsplit(url)
        if at.scheme in ("http", "https") and at.hostname:
            name = f"[{at.hostname}]" if ":" in at.hostname else at.hostname
            entry = name if at.port in (None, 80, 443) else f"{name}:{at.port}"
            return "" if entries.wrong([entry]) else entry
    return ""


def remembered(root: Path) -> Hosts:
    """Return what was found before; empty where nothing was."""
    try:
        said: Any = json.loads((root / _FILE).read_text())
        found = {word: tuple(host for host in said[word] if not entries.wrong([host])) for word in entries.TOOLS}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return found


def remember(root: Path, found: Hosts) -> None:
    """Keep it for the next start. A disk that takes nothing loses it."""
    with contextlib.suppress(OSError):
        part = root / f"{_FILE}.part"
        part.write_text(json.dumps(found))
        part.replace(root / _FILE)


def _linked(url: str, pattern: re.Pattern[bytes]) -> Iterable[str]:
    """Return the hosts that a page of an index leads to."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url), timeout=_PAGE_S) as page:  # noqa: S310 - http or https, see host_of
            text = page.read(_PAGE_BYTES)
    except (OSError, ValueError) as error:
        log.warning(
            "egress: a package index could not be asked where its files are", extra={"url": url, "error": str(error)}
        )
        return ()
    links = {host_of(urljoin(url, link.decode("ascii", "replace"))) for link in pattern.findall(text)}
    return sorted(link for link in links if link)[:_MOST_HOSTS]


def _unique(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in found if each))
