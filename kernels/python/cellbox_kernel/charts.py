"""What a figure of matplotlib shows, as numbers: beside its picture, for whoever reads and does not look.

``describe`` returns what ``application/vnd.cellbox.chart+json`` holds (documented in ``interpreter/API.md``): for each axes its
kind, title, axes and series. Nothing is drawn and nothing is computed for it: it is read off what the figure holds.

Promises: JSON alone (no NaN); at most ``POINTS`` points, and what is longer is thinned evenly and says so; at most ``_BYTES``. A
figure that cannot be read, or not within ``WITHIN_S``, has a picture and no numbers: ``ChartFormatter`` returns None then.
"""

from __future__ import annotations

import itertools
import json
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

MIME = "application/vnd.cellbox.chart+json"

CHARTS = 20
SERIES = 50
POINTS = 5000
"""Of one figure."""
_SERIES_POINTS = 1000
_TEXT = 200
_DIGITS = 10
_BYTES = 512 * 1024
"""Of the JSON. Numbers alone are far below it; names of points may not be."""

WITHIN_S = 1.0
"""A million points take 10 ms, and 1,000 dates 50."""

Json = dict[str, Any]
_Read = Callable[[Any], Any]
"""Makes the value that an axis shows of the number that is plotted."""


class ChartFormatter(BaseFormatter):
    """Describes figures, also of a cell's own subclass; anything else has no such form."""

    format_type = Unicode(MIME)
    print_method = ObjectName("_repr_chart_")
    _return_type = dict

    def __call__(self, obj: Any) -> Json | None:
        figures = sys.modules.get("matplotlib.figure")
        try:
            if figures is None or not isinstance(obj, figures.Figure):
                return None
            return _short(_in_time(describe, obj))
        except KeyboardInterrupt:  # of the cell
            raise
        except BaseException:  # noqa: BLE001 - whatever is odd about a figure, its picture is shown
            return None


def describe(figure: Any) -> Json:
    """Return what ``figure`` shows."""
    every = [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]
    room = _Room(sum(_count(axes) for axes in every[:CHARTS]))
    charts = [_chart(axes, room) for axes in every[:CHARTS]]
    heading = getattr(figure, "_suptitle", None)
    title = None if heading is None else _text(heading.get_text())
    return {"title": title, "charts": charts, "truncated": room.short or len(every) > CHARTS}


class _TooLongError(BaseException):
    """Not an Exception, since what takes too long may catch those."""


def _in_time(work: Callable[[Any], Json], figure: Any) -> Json:
    """Return what ``work`` makes of ``figure``, in the main thread, which alone can be stopped. Raises _TooLongError.

    A timer and a handler of the cell's own are as they were afterwards, if later by what this took.
    """

    over = False

    def stop(*_: object) -> None:
        if not over:
            raise _TooLongError

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGALRM) is None:
        raise _TooLongError
    theirs = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, stop)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, WITHIN_S)
            return work(figure)
        finally:
            over = True  # it may still come before this, and then ends this block and not the next one
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *theirs)


def _short(found: Json) -> Json:
    """Return ``found``; without points, ticks and categories if it is too long with them."""
    if len(json.dumps(found)) <= _BYTES:
        return found
    found["truncated"] = True
    for chart in found["charts"]:
        chart["series"] = [{name: one[name] for name in ("kind", "label", "points")} for one in chart["series"]]
        for axis in chart["axes"].values():
            axis.pop("ticks", None), axis.pop("categories", None)
    return found


class _Room:
    """How many points each of ``series`` may have. short: whether anything was left out."""

    def __init__(self, series: int) -> None:
        self._each = max(2, min(_SERIES_POINTS, POINTS // max(1, min(series, CHARTS * SERIES))))
        self._series = POINTS // 2
        self.short = False

    def thin(self, count: int) -> Sequence[int]:
        """Return which of ``count`` points to take: the first, the last, and evenly between."""
        self._series -= 1
        if self._series < 0:
            self.short = True
            return ()
        if count <= self._each:
            return range(count)
        self.short = True
        return [round(place * (count - 1) / (self._each - 1)) for place in range(self._each)]

    def all_of(self, count: int) -> bool:
        """Return whether ``count`` values may stand together, which thinning would make meaningless."""
        self.short |= count > self._each
        return count <= self._each


def _count(axes: Any) -> int:
    return len(axes.lines) + len(axes.collections) + len(axes.containers) + len(axes.images) + bool(_wedges(axes))


def _chart(axes: Any, room: _Room) -> Json:
    series: list[Json] = []
    for one in _all_series(axes, room):
        if len(series) == SERIES:
            room.short = True
            break
        series.append(one)
    kinds = {one["kind"] for one in series if one["kind"] not in ("hline", "vline")}
    chart: Json = {
        "kind": "unknown" if not kinds else kinds.pop() if len(kinds) == 1 else "mixed",
        "title": next(filter(None, (_text(axes.get_title(loc)) for loc in ("center", "left", "right"))), None),
        "axes": {name: _axis(axis, room) for name, axis in axes._axis_map.items()},
        "series": series,
    }
    if axes.name != "rectilinear":
        chart["projection"] = axes.name
    return chart


def _axis(axis: Any, room: _Room) -> Json:
    found: Json = {"label": _text(axis.get_label_text()), "scale": axis.get_scale()}
    if categories := list(_categories(axis).values()):
        found["scale"] = "category"
        found["categories"] = [_text(categories[at]) for at in room.thin(len(categories))]
        return found
    if _is_date(axis) or _periods(axis):
        found["scale"] = "date"
    read = _reader(axis)
    found["limits"] = [read(number) for number in axis.get_view_interval()]
    if ticks := _named_ticks(axis):
        found["ticks"] = [{"at": read(ticks[at][0]), "label": _text(ticks[at][1])} for at in room.thin(len(ticks))]
    return found


def _all_series(axes: Any, room: _Room) -> Iterator[Json]:
    if axes.name == "3d":
        return
    bars = [container for container in axes.containers if hasattr(container, "patches")]
    errors = [container for container in axes.containers if hasattr(container, "has_yerr")]
    yield from (_bars_of(container, axes, room) for container in bars)
    # Of error bars the line has no label of its own, and their caps are lines too.
    labels = {container.lines[0]: container.get_label() for container in errors}
    caps = {cap for container in errors for cap in container.lines[1]}
    for line in axes.lines:
        if line not in caps:
            yield from _line(line, labels.get(line, line.get_label()), axes, room)
    for shown in (*axes.collections, *axes.images):
        kind = type(shown).__name__
        if kind == "PathCollection":
            yield _scatter(shown, axes, room)
        elif kind in ("QuadMesh", "AxesImage"):
            yield _grid(shown.get_array(), shown.get_label(), room)
    if wedges := _wedges(axes):
        yield _pie(wedges, room)


def _line(line: Any, label: Any, axes: Any, room: _Room) -> Iterable[Json]:
    across, along = line.get_transform().contains_branch_seperately(axes.transData)
    x, y = _array(line.get_xdata(orig=False)), _array(line.get_ydata(orig=False))
    if not len(x):
        return
    if not (across and along):
        if along:
            yield _series("hline", label, 1, {"y": [_number(y[0])]})
        elif across:
            yield _series("vline", label, 1, {"x": [_reader(axes.xaxis)(x[0])]})
        return
    at = room.thin(len(x))
    yield _series(
        "line",
        label,
        len(x),
        {
            "x": _plotted(line.get_xdata(orig=True), x, at, _reader(axes.xaxis)),
            "y": _plotted(line.get_ydata(orig=True), y, at, _reader(axes.yaxis)),
        },
    )


def _plotted(given: Any, numbers: Any, at: Sequence[int], read: _Read) -> list[Any]:
    """Return points as they were given where that is no number, else what ``read`` makes of what was plotted."""
    as_given = getattr(getattr(given, "dtype", None), "kind", None) == "O" and len(given) == len(numbers)
    return [_given(given[place]) if as_given else read(numbers[place]) for place in at]


def _given(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    try:
        return _number(value)
    except (TypeError, ValueError):
        return _text(str(value))


def _scatter(points: Any, axes: Any, room: _Room) -> Json:
    read_x, read_y = _reader(axes.xaxis), _reader(axes.yaxis)
    offsets = _array(points.get_offsets())
    at = room.thin(len(offsets))
    data = {"x": [read_x(offsets[place][0]) for place in at], "y": [read_y(offsets[place][1]) for place in at]}
    colours = points.get_array()
    if colours is not None and len(colours) == len(offsets):
        colours = _array(colours)
        data["values"] = [_number(colours[place]) for place in at]
    return _series("scatter", points.get_label(), len(offsets), data)


def _bars_of(container: Any, axes: Any, room: _Room) -> Json:
    bars, lying = container.patches, container.orientation == "horizontal"

    def span(bar: Any) -> tuple[float, float]:
        return (bar.get_y(), bar.get_height()) if lying else (bar.get_x(), bar.get_width())

    at = room.thin(len(bars))
    along = axes.yaxis if lying else axes.xaxis
    values = [_number(bars[place].get_width() if lying else bars[place].get_height()) for place in at]
    if _touch([span(bar) for bar in bars[:_SERIES_POINTS]]) and not (_categories(along) or _named_ticks(along)):
        bins = [[_number(start), _number(start + width)] for start, width in (span(bars[place]) for place in at)]
        return _series("histogram", container.get_label(), len(bars), {"bins": bins, "values": values})
    read = _reader(along, _named_ticks(along))
    middles = [read(start + width / 2) for start, width in (span(bars[place]) for place in at)]
    data = {"y": middles, "x": values} if lying else {"x": middles, "y": values}
    starts = [_number(bars[place].get_x() if lying else bars[place].get_y()) for place in at]
    if any(starts):
        data["from"] = starts  # stacked: where each begins
    return _series("bar", container.get_label(), len(bars), data)


def _touch(spans: list[tuple[float, float]]) -> bool:
    """Return whether each bar begins where the one before it ends, as those of a histogram do."""
    return len(spans) > 1 and all(
        math.isclose(start + width, after, rel_tol=1e-6, abs_tol=1e-12)
        for (start, width), (after, _) in itertools.pairwise(spans)
    )


def _grid(values: Any, label: Any, room: _Room) -> Json:
    shape = [int(size) for size in values.shape]
    grid: Json = {"shape": shape}
    if len(shape) == 2 and room.all_of(shape[0] * shape[1]):
        grid["values"] = [[_number(value) for value in row] for row in _array(values)]
    return _series("heatmap" if len(shape) < 3 else "image", label, math.prod(shape), grid)


def _pie(wedges: Sequence[Any], room: _Room) -> Json:
    at = room.thin(len(wedges))
    labels = [_text(wedges[place].get_label()) for place in at]
    shares = [_number((wedges[place].theta2 - wedges[place].theta1) / 360) for place in at]
    return _series("pie", None, len(wedges), {"labels": labels, "shares": shares})


def _wedges(axes: Any) -> list[Any]:
    return [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]


def _series(kind: str, label: Any, points: int, data: Json) -> Json:
    shown = label if isinstance(label, str) and not label.startswith("_") else None
    return {"kind": kind, "label": _text(shown), "points": points, **data}


# --- values ---------------------------------------------------------------------------------------------------------


def _reader(axis: Any, ticks: Sequence[tuple[float, str]] = ()) -> _Read:
    """Return what makes of a number on the axis the value that is meant. ticks: names for what stands near them."""
    if categories := _categories(axis):
        # A bar need not stand on the very number: groups of them stand around it.
        return lambda number: _text(categories.get(round(float(number)))) or _number(number)
    if ticks:
        return lambda number: _text(min(ticks, key=lambda tick: abs(tick[0] - number))[1])
    if period := _periods(axis):
        return lambda number: str(period(round(float(number))))
    if _is_date(axis):
        from matplotlib.dates import num2date  # noqa: PLC0415 - there, since a figure is

        return lambda number: num2date(float(number)).replace(tzinfo=None).isoformat()
    return _number


def _categories(axis: Any) -> dict[int, str]:
    """Return the categories of an axis that has such, by the whole numbers at which they stand."""
    mapping = getattr(axis.units, "_mapping", None)
    return {number: name for name, number in mapping.items()} if isinstance(mapping, dict) else {}


def _named_ticks(axis: Any) -> list[tuple[float, str]]:
    """Return place and name of each tick, if they were set one by one and some name is not just the number."""
    places = getattr(axis.get_major_locator(), "locs", None)
    if places is None or not 0 < len(places) <= _SERIES_POINTS or _is_date(axis):
        return []
    names = map(str, axis.get_major_formatter().format_ticks(places))
    ticks = [(float(place), name) for place, name in zip(places, names, strict=False) if name]
    return ticks if any(not _says(name, place) for place, name in ticks) else []


def _says(name: str, place: float) -> bool:
    try:
        return math.isclose(float(name.replace("\N{MINUS SIGN}", "-")), place, rel_tol=1e-3, abs_tol=1e-9)
    except ValueError:
        return False


def _periods(axis: Any) -> Callable[[int], Any] | None:
    """Return what makes a period of a number, on the axis of a time series that pandas has plotted."""
    pandas, freq = sys.modules.get("pandas"), getattr(axis.axes, "freq", None)
    if pandas is None or freq is None or axis is not axis.axes.xaxis:
        return None
    return lambda ordinal: pandas.Period(ordinal=ordinal, freq=freq)


def _is_date(axis: Any) -> bool:
    get = getattr(axis, "get_converter", None)
    converter = get() if get else getattr(axis, "converter", None)
    return "Date" in type(converter).__name__ and not hasattr(axis.axes, "freq")


def _array(values: Any) -> Any:
    """Return them as an array of float, NaN where they are masked."""
    import numpy as np  # noqa: PLC0415 - there, since a figure is

    return np.ma.filled(np.ma.asarray(values, dtype=float), math.nan)


def _number(value: Any) -> float | int | None:
    """Return it as JSON has it; what is no number of it is None."""
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else float(f"{number:.{_DIGITS}g}")


def _text(text: str | None) -> str | None:
    if not text:
        return None
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"
