"""How a figure is taken: side by side in one run, alternating, with the warm-up thrown away.

A machine's speed changes from minute to minute, so a figure beside another one taken in the same minute says more
than a figure alone; where there is nothing to compare with, the limit is absolute.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

Step = Callable[[], Any]
_MOST_LOST = 5
_BAR = 30


class NoAnswer(Exception):
    """A peer gave no whole answer. Its time does not count; that it happened is said in the row."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. limit: of the ratio if there is something to compare with, else of the median.

    load: average of the last minute, before and after; over the number of cores it spoils what stands alone.
    """

    name: str
    unit: str
    n: int
    median: float
    p95: float
    p99: float
    compared_with: str | None
    other_median: float | None
    other_p95: float | None
    other_p99: float | None
    ratio: float | None
    limit: float
    load: tuple[float, float]
    key: str | None = None
    """In ``bench.json``, if it is not that of the command."""

    @property
    def within(self) -> bool:
        return (self.median if self.ratio is None else self.ratio) <= self.limit

    def to_json(self) -> dict[str, Any]:
        unit = self.unit.lower()
        ours = {f"ours_{unit}": self.median, f"ours_p95_{unit}": self.p95, f"ours_p99_{unit}": self.p99}
        theirs = {
            f"theirs_{unit}": self.other_median,
            f"theirs_p95_{unit}": self.other_p95,
            f"theirs_p99_{unit}": self.other_p99,
        }
        judged = {"ratio": self.ratio, "target": self.limit, "met": self.within}
        how = {"what": self.name, "beside": self.compared_with, "n": self.n, "load": self.load}
        return ours | theirs | judged | how


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that could not be measured here. why: a part of a sentence. failed: it should have been."""

    name: str
    why: str
    failed: bool = False
    key: str | None = None

    @property
    def within(self) -> bool:
        return not self.failed

    def to_json(self) -> dict[str, Any]:
        return {"what": self.name, "left_out": self.why}


Rows = Sequence[Row | LeftOut]


def elapsed_ms(step: Step) -> float:
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1000


def against(
    name: str,
    ours: Step,
    compared_with: str,
    other: Step,
    *,
    n: int,
    warm_up: int,
    limit: float,
    prepare: Step = lambda: None,
) -> Row:
    """Time ``ours`` and ``other`` in turn, ``n`` times each after ``warm_up`` rounds that do not count.

    prepare: done before each round, and not timed.
    Raises NoAnswer if ``other`` did so more than a few times.
    """
    before, lost = os.getloadavg()[0], 0
    mine, theirs = [], []
    for number in range(-warm_up, n):
        show(name, number + warm_up, n + warm_up)
        prepare()
        taken = elapsed_ms(ours)
        try:
            other_taken = elapsed_ms(other)
        except NoAnswer:
            lost += 1
            if lost > _MOST_LOST:
                raise
            continue
        if number >= 0:
            mine.append(taken)
            theirs.append(other_taken)
    if lost:
        compared_with += f" (no whole answer to {lost} of {warm_up + n})"
    ratio = statistics.median(mine) / statistics.median(theirs)
    return _row(name, "ms", mine, limit, before, compared_with=compared_with, other=theirs, ratio=ratio)


def alone(name: str, step: Callable[[], float], *, n: int, warm_up: int, limit: float, unit: str = "ms") -> Row:
    """Collect what ``step`` returns, ``n`` times after ``warm_up`` that do not count."""
    before = os.getloadavg()[0]
    values = []
    for number in range(warm_up + n):
        show(name, number, n + warm_up)
        values.append(step())
    return _row(name, unit, values[warm_up:], limit, before)


def of(name: str, values: list[float], *, limit: float, unit: str, key: str | None = None) -> Row:
    """A row from values taken all at once; the figure that counts is their mean, shown as the median's column."""
    load = os.getloadavg()[0]
    row = _row(name, unit, values, limit, load)
    return replace(row, median=statistics.fmean(values), key=key)


def _row(
    name: str,
    unit: str,
    values: list[float],
    limit: float,
    load_before: float,
    *,
    compared_with: str | None = None,
    other: list[float] | None = None,
    ratio: float | None = None,
) -> Row:
    return Row(
        name=name,
        unit=unit,
        n=len(values),
        median=statistics.median(values),
        p95=_quantile(values, 0.95),
        p99=_quantile(values, 0.99),
        compared_with=compared_with,
        other_median=statistics.median(other) if other else None,
        other_p95=_quantile(other, 0.95) if other else None,
        other_p99=_quantile(other, 0.99) if other else None,
        ratio=ratio,
        limit=limit,
        load=(load_before, os.getloadavg()[0]),
    )


def _quantile(values: list[float], part: float) -> float:
    return sorted(values)[max(0, round(part * len(values)) - 1)]


def show(name: str, done: int, total: int) -> None:
    """Draw how far a row is, where somebody looks."""
    if sys.stderr.isatty():
        filled = round(_BAR * (done + 1) / total)
        end = "\r\x1b[K" if done + 1 == total else ""
        sys.stderr.write(f"\r  [{'#' * filled}{'.' * (_BAR - filled)}] {done + 1:>5} of {total}  {name[:70]}{end}")
        sys.stderr.flush()


HEAD = """\
| | median | p95 | p99 | beside it | its median | ratio | limit | n | load |
| --- | --: | --: | --: | --- | --: | --: | --: | --: | --- |"""


def line(row: Row | LeftOut) -> str:
    """The row for a terminal, and for the documents as it is. It stands below ``HEAD``."""
    if isinstance(row, LeftOut):
        return f"| {row.name} | left out: {row.why} | | | | | | | | |"
    limit = f"{row.limit:g}" if row.ratio is not None else f"{row.limit:g} {row.unit}"
    cells = [
        row.name,
        f"{row.median:.1f} {row.unit}",
        f"{row.p95:.1f}",
        f"{row.p99:.1f}",
        row.compared_with or "",
        f"{row.other_median:.1f} {row.unit}" if row.other_median is not None else "",
        f"{row.ratio:.2f}" if row.ratio is not None else "",
        f"{limit}{'' if row.within else ' **over**'}",
        str(row.n),
        f"{row.load[0]:.1f} to {row.load[1]:.1f}",
    ]
    return f"| {' | '.join(cells)} |"
