"""What a figure shows comes as numbers beside its picture."""

import json

import pytest

MIME = "application/vnd.cellbox.chart+json"
PLT = "import matplotlib.pyplot as plt, numpy as np, datetime\n"


async def shown(sandbox, code):
    """Run ``code``, which draws one figure; return the numbers of it."""
    outcome = await sandbox.run(PLT + code, timeout_s=60.0)
    assert outcome.status == "ok", outcome
    (entry,) = [entry for entry in outcome.results if "image/png" in entry.data]
    return json.loads(entry.json[MIME])


async def chart(sandbox, code):
    figure = await shown(sandbox, code)
    assert not figure["truncated"]
    (only,) = figure["charts"]
    return only


async def test_a_line_has_its_labels_and_points(sandbox):
    code = "plt.plot([1, 2, 3], [4, 5.25, float('nan')], label='sales'); plt.axhline(3, label='limit')\n"
    found = await chart(sandbox, code + "plt.title('Year'); plt.xlabel('month'); plt.yscale('log')")
    assert (found["kind"], found["title"]) == ("line", "Year")
    assert (found["axes"]["x"]["label"], found["axes"]["x"]["scale"]) == ("month", "linear")
    assert (found["axes"]["y"]["label"], found["axes"]["y"]["scale"]) == (None, "log")
    assert found["series"] == [
        {"kind": "line", "label": "sales", "points": 3, "x": [1, 2, 3], "y": [4, 5.25, None]},
        {"kind": "hline", "label": "limit", "points": 1, "y": [3]},
    ]


DATES = "[datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)]"
SERIES = {
    "plt.scatter([1, 2], [3, 4], c=[5, 6]); plt.colorbar()": [
        {"kind": "scatter", "label": None, "points": 2, "x": [1, 2], "y": [3, 4], "values": [5, 6]}
    ],
    "plt.bar(['a', 'b'], [1, 2])": [{"kind": "bar", "label": None, "points": 2, "x": ["a", "b"], "y": [1, 2]}],
    "plt.barh(['a', 'b'], [1, 2])": [{"kind": "bar", "label": None, "points": 2, "x": [1, 2], "y": ["a", "b"]}],
    "plt.bar([0.2, 1.2], [1, 2], 0.4); plt.bar([0.6, 1.6], [3, 4], 0.4); plt.xticks([0.4, 1.4], ['p', 'q'])": [
        {"kind": "bar", "label": None, "points": 2, "x": ["p", "q"], "y": [1, 2]},
        {"kind": "bar", "label": None, "points": 2, "x": ["p", "q"], "y": [3, 4]},
    ],
    "plt.bar([0, 2], [1, 2], label='u'); plt.bar([0, 2], [3, 4], bottom=[1, 2], label='v')": [
        {"kind": "bar", "label": "u", "points": 2, "x": [0, 2], "y": [1, 2]},
        {"kind": "bar", "label": "v", "points": 2, "x": [0, 2], "y": [3, 4], "from": [1, 2]},
    ],
    "import pandas; pandas.DataFrame({'u': [1, 2], 'v': [3, 4]}, index=['p', 'q']).plot.bar()": [
        {"kind": "bar", "label": "u", "points": 2, "x": ["p", "q"], "y": [1, 2]},
        {"kind": "bar", "label": "v", "points": 2, "x": ["p", "q"], "y": [3, 4]},
    ],
    "import pandas; pandas.Series([1, 2], index=pandas.period_range('2026-01', periods=2, freq='M')).plot()": [
        {"kind": "line", "label": None, "points": 2, "x": ["2026-01", "2026-02"], "y": [1, 2]}
    ],
    "plt.hist([1, 1, 2, 4], bins=[0, 2, 4])": [
        {"kind": "histogram", "label": None, "points": 2, "bins": [[0, 2], [2, 4]], "values": [2, 2]}
    ],
    "plt.pie([1, 3], labels=['a', 'b'])": [
        {"kind": "pie", "label": None, "points": 2, "labels": ["a", "b"], "shares": [0.25, 0.75]}
    ],
    f"plt.plot({DATES}, [1, 2])": [
        {"kind": "line", "label": None, "points": 2, "x": ["2026-01-01", "2026-01-02"], "y": [1, 2]}
    ],
    f"plt.bar({DATES}, [1, 2])": [
        {
            "kind": "bar",
            "label": None,
            "points": 2,
            "x": ["2026-01-01T00:00:00", "2026-01-02T00:00:00"],
            "y": [1, 2],
        }
    ],
    "plt.errorbar([1, 2], [3, 4], yerr=[0.1, 0.2], label='e', capsize=3)": [
        {"kind": "line", "label": "e", "points": 2, "x": [1, 2], "y": [3, 4]}
    ],
    "plt.imshow([[1, 2], [3, 4]])": [
        {"kind": "heatmap", "label": None, "points": 4, "shape": [2, 2], "values": [[1, 2], [3, 4]]}
    ],
    "plt.fill_between([1, 2], [3, 4])": [],
    "plt.subplots(subplot_kw={'projection': '3d'})[1].plot([1, 2], [1, 2], [1, 2])": [],
}


async def test_each_kind_of_series_is_read(sandbox):
    wrong = {}
    for code, series in SERIES.items():
        found = await chart(sandbox, code)
        if found["series"] != series or found["kind"] != (series[0]["kind"] if series else "unknown"):
            wrong[code] = found
    assert wrong == {}


async def test_each_axes_is_a_chart(sandbox):
    figure = await shown(
        sandbox, "f, (a, b) = plt.subplots(1, 2); a.plot([1]); b.twinx().plot([2]); f.suptitle('Both')"
    )
    assert figure["title"] == "Both"
    assert [one["kind"] for one in figure["charts"]] == ["line", "unknown", "line"]


async def test_ticks_with_names_of_their_own_are_told(sandbox):
    found = await chart(
        sandbox, "plt.plot([0, 100], [1, 2]); plt.xticks([0, 100], ['low', 'high']); plt.yticks([1, 2])"
    )
    assert found["axes"]["x"]["ticks"] == [{"at": 0, "label": "low"}, {"at": 100, "label": "high"}]
    assert "ticks" not in found["axes"]["y"]
    assert found["series"][0]["x"] == [0, 100]


async def test_what_is_long_is_thinned_and_says_so(sandbox):
    figure = await shown(sandbox, "plt.plot(np.arange(1_000_000))")
    (series,) = figure["charts"][0]["series"]
    assert figure["truncated"]
    assert (series["points"], len(series["y"])) == (1_000_000, 1000)
    assert (series["y"][0], series["y"][-1]) == (0, 999_999)
    figure = await shown(sandbox, "for n in range(200): plt.plot(range(5000), label='x' * 500)")
    assert figure["truncated"]
    assert len(figure["charts"][0]["series"]) == 50
    assert len(json.dumps(figure)) < 100_000


SUBCLASS = """
import sys
class Odd(plt.Figure):
    asked = 0
    @property
    def axes(self):
        if sys._getframe(1).f_code.co_name == 'describe':
            Odd.asked += 1
            raise BaseException('odd')
        return super().axes
plt.figure(FigureClass=Odd).add_subplot().plot([1, 2])
"""


async def test_a_figure_of_a_class_of_the_cells_own_has_its_picture(sandbox):
    outcome = await sandbox.run(PLT + SUBCLASS, timeout_s=60.0)
    assert outcome.status == "ok"
    (entry,) = [entry for entry in outcome.results if "image/png" in entry.data]
    assert MIME not in entry.json
    assert await sandbox.value("Odd.asked") == "1"


async def test_a_timer_of_the_cells_own_goes_on(sandbox):
    code = "import signal; rang = []; signal.signal(signal.SIGALRM, lambda *_: rang.append(1))\n"
    code += "signal.setitimer(signal.ITIMER_REAL, 1000, 7); plt.plot([1, 2])"
    await chart(sandbox, code)
    found = "(lambda left, every: (0 < left <= 1000, every))(*signal.getitimer(signal.ITIMER_REAL))"
    assert await sandbox.value(found) == "(True, 7.0)"
    assert await sandbox.value("signal.raise_signal(signal.SIGALRM) or rang") == "[1]"


async def test_names_that_are_long_have_no_room_for_points(sandbox):
    figure = await shown(sandbox, "plt.plot([chr(0x1F600) * 150 + str(n) for n in range(1000)], range(1000))")
    assert figure["truncated"]
    assert figure["charts"][0]["series"] == [{"kind": "line", "label": None, "points": 1000}]
    assert len(json.dumps(figure)) < 1000


async def test_plots_of_seaborn_are_read(sandbox):
    code = "import seaborn; seaborn.barplot(x=['a', 'b'], y=[1, 2], errorbar=None)"
    (series,) = (await chart(sandbox, code))["series"]
    assert (series["kind"], series["x"], series["y"]) == ("bar", ["a", "b"], [1, 2])
    found = await chart(sandbox, "seaborn.lineplot(x=[1, 2], y=[3, 4])")
    assert [(one["kind"], one["x"], one["y"]) for one in found["series"]] == [("line", [1, 2], [3, 4])]


BROKEN = {
    "raises": "plt.gca().get_title = lambda _: 1 / 0",
    "is no text": "plt.gca().get_title = lambda _: 5",
    "hangs": "import time; plt.gca().get_title = lambda _: time.sleep(1e6)",
    "spins": "def spin(_):\n    while True:\n        try: len(_)\n        except Exception: pass\nplt.gca().get_title = spin",
    "is no number": "plt.gca().lines[0].get_ydata = lambda orig: ['a', object()]",
}


@pytest.mark.parametrize("odd", BROKEN.values(), ids=BROKEN)
async def test_a_figure_that_cannot_be_read_in_time_has_its_picture_all_the_same(sandbox, odd):
    outcome = await sandbox.run(f"{PLT}plt.plot([1, 2])\n{odd};", timeout_s=60.0)
    assert (outcome.status, outcome.stderr) == ("ok", "")
    (entry,) = outcome.results
    assert "image/png" in entry.data
    assert MIME not in entry.json


async def test_what_is_no_figure_has_no_chart(sandbox):
    outcome = await sandbox.run("object()")
    assert list(outcome.results[0].data) == ["text/plain"]
    assert await sandbox.value("'matplotlib' in __import__('sys').modules") == "False"
