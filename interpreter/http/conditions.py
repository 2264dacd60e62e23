"""What of a file a request wants: preconditions and ranges, as in RFC 9110. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from itertools import pairwise

from interpreter.files.errors import PreconditionFailed
from interpreter.http.errors import RangeNotSatisfiable

MAX_RANGES = 16
"""More, or ranges that overlap, are answered with the whole: each costs a head of its own."""
_LATEST_S = 253_402_300_799
"""The end of the year 9999. Who owns a file sets its time as it likes."""

_SPEC = re.compile(r"(\d{0,18})-(\d{0,18})")
_TAG = re.compile(r'(?:W/)?"[^"]*"')


@dataclass(frozen=True, slots=True)
class Version:
    """One state of a file, as validators name it."""

    tag: str
    modified: datetime

    @classmethod
    def of(cls, state: os.stat_result) -> Version:
        """Return the version of a file in ``state``. The time of its last change is the kernel's, so that no two are alike."""
        tag = f'"{state.st_ctime_ns:x}-{state.st_size:x}-{state.st_ino:x}"'
        return cls(tag, moment(state.st_mtime))

    @property
    def last_modified(self) -> str:
        """The value of ``Last-Modified``."""
        return format_datetime(self.modified, usegmt=True)


def moment(seconds: float) -> datetime:
    """Return the time of a file in whole seconds, moved to where a calendar has it."""
    return datetime.fromtimestamp(int(min(max(seconds, 0), _LATEST_S)), UTC)


def is_unchanged(headers: Mapping[str, str], version: Version) -> bool:
    """Whether a GET is answered 304. Raises PreconditionFailed."""
    check(headers, version)
    if (tags := headers.get("If-None-Match")) is not None:
        return _names(tags, version, weak=True)
    since = _date(headers.get("If-Modified-Since"))
    return since is not None and version.modified <= since


def check(headers: Mapping[str, str], version: Version | None) -> None:
    """Raise PreconditionFailed unless If-Match, or else If-Unmodified-Since, holds. version: None where there is no file."""
    if (tags := headers.get("If-Match")) is not None:
        holds = version is not None and _names(tags, version, weak=False)
    else:
        since = _date(headers.get("If-Unmodified-Since"))
        holds = since is None or (version is not None and version.modified <= since)
    if not holds:
        raise PreconditionFailed("The file is not the one that the request is about.")


def check_change(headers: Mapping[str, str], version: Version | None) -> None:
    """Raise PreconditionFailed unless a file in this version may be replaced or removed: ``check``, and If-None-Match."""
    check(headers, version)
    tags = headers.get("If-None-Match")
    if tags is not None and version is not None and _names(tags, version, weak=True):
        raise PreconditionFailed("There is a file already, which If-None-Match excludes.")


def has_conditions(headers: Mapping[str, str]) -> bool:
    """Whether a change of a file depends on its version."""
    return any(name in headers for name in ("If-Match", "If-None-Match", "If-Unmodified-Since"))


def ranges(headers: Mapping[str, str], version: Version, size: int) -> list[tuple[int, int]]:
    """Return where each range begins and ends in ``size`` bytes; none to send the whole. Raises RangeNotSatisfiable."""
    unit, _, specs = headers.get("Range", "").replace(" ", "").partition("=")
    if unit.lower() != "bytes" or not _is_of(headers.get("If-Range"), version):
        return []
    listed = [spec for spec in specs.split(",") if spec]
    found = []
    for spec in listed if len(listed) <= MAX_RANGES else []:
        match = _SPEC.fullmatch(spec)
        if match is None or match[1] == match[2] == "" or (match[1] and match[2] and int(match[2]) < int(match[1])):
            return []
        if match[1]:
            start, stop = int(match[1]), min(int(match[2]) + 1, size) if match[2] else size
        else:
            start, stop = max(size - int(match[2]), 0), size
        if start < stop:
            found.append((start, stop))
    if not listed or len(listed) > MAX_RANGES:
        return []
    if not found:
        raise RangeNotSatisfiable(f"There are {size} bytes.", size=size)
    overlap = any(before[1] > after[0] for before, after in pairwise(sorted(found)))
    return [] if overlap else found


def _is_of(if_range: str | None, version: Version) -> bool:
    if if_range is None or if_range.strip() == version.tag:
        return True
    return '"' not in if_range and _date(if_range) == version.modified


def _names(tags: str, version: Version, *, weak: bool) -> bool:
    if tags.strip() == "*":
        return True
    found = _TAG.findall(tags)
    return version.tag in found or (weak and f"W/{version.tag}" in found)


def _date(value: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(value) if value else None
        return None if found is None else found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
