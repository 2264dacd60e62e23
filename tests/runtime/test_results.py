"""Rich outputs, in order and within a limit."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandboxd.execution import Running
from sandboxd.link import within_limits
from sandboxd.messages import Received, decode
from sandboxd.processes import Exited
from sandboxd.protocol import (
    Execute,
    Finished,
    Outcome,
    OutputLimits,
    Result,
    decode_from_sandbox,
    encode,
    longest_frame,
)
from sandboxd.results import Bundle, Results, bundle_decoder


def bundle(data, display_id=None, **rest):
    transient = {} if display_id is None else {"display_id": display_id}
    content = json.dumps({"data": data, "metadata": {}, "transient": transient} | rest).encode()
    decoded = decode(Received("display_data", "", content), bundle_decoder)
    assert isinstance(decoded, Bundle)
    return decoded


def reply(**content):
    return json.dumps({"status": "error", **content}).encode()


def told(results):
    return [(entry.type, entry.data or entry.json or (entry.mime, entry.size)) for entry in results.entries()]


def test_json_kinds_are_json_and_others_text():
    results = Results(1000)
    data = {
        "application/json": {"a": [1, None]},
        "application/vnd.x+json": "text",
        "text/plain": "p",
        "text/html": ["<b>", "x</b>"],
        "image/png": "aGV\nsbG8=\n",
        "image/svg+xml": "<svg>\n</svg>",
        "x/y": {"odd": 1},
    }
    results.add("display", bundle(data))
    (entry,) = results.entries()
    assert entry.data == {
        "text/plain": "p",
        "text/html": "<b>x</b>",
        "image/png": "aGVsbG8=",
        "image/svg+xml": "<svg>\n</svg>",
    }
    assert {name: json.loads(value) for name, value in entry.json.items()} == {
        "application/json": {"a": [1, None]},
        "application/vnd.x+json": "text",
        "x/y": {"odd": 1},
    }


def test_nan_is_null_and_lone_surrogates_are_replaced():
    results = Results(1000)
    results.add("display", bundle({"application/json": [float("nan"), float("inf")], "text/plain": "\ud800"}))
    results.add("display", bundle({"application/json": ["\ud800"]}))
    first, second = results.entries()
    assert (first.json, first.data) == ({"application/json": "[null,null]"}, {"text/plain": "\ufffd"})
    assert json.loads(second.json["application/json"]) == ["\ufffd"]


def test_small_kinds_are_kept_and_large_ones_named():
    results = Results(120)
    results.add("display", bundle({"image/png": "x" * 500, "text/plain": "p"}))
    results.add("result", bundle({"text/plain": "y" * 200}))
    results.add("result", bundle({"text/plain": "z" * 99}))
    assert told(results) == [
        ("display", {"text/plain": "p"}),
        ("omitted", ("image/png", 500)),
        ("omitted", ("text/plain", 200)),
        ("result", {"text/plain": "z" * 99}),
    ]
    assert results.truncated


def test_updates_replace_in_place_and_free_their_room():
    results = Results(120)
    results.add("display", bundle({"text/plain": "a" * 90}, "d"))
    results.add("display", bundle({"text/plain": "b"}))
    results.update(bundle({"text/plain": "c" * 90}, "d"))
    assert told(results) == [("display", {"text/plain": "c" * 90}), ("display", {"text/plain": "b"})]
    results.update(bundle({"text/plain": "e" * 900}, "d"))
    assert told(results)[0] == ("omitted", ("text/plain", 900))
    results.update(bundle({"text/plain": "f"}, "d"))
    assert told(results)[0] == ("display", {"text/plain": "f"})


def test_an_update_of_an_unknown_display_is_an_entry():
    results = Results(100)
    results.update(bundle({"text/plain": "a"}, "earlier"))
    assert [(entry.type, entry.display_id) for entry in results.entries()] == [("update", "earlier")]


def test_clear_now_and_with_the_next():
    results = Results(100)
    results.add("display", bundle({"text/plain": "a"}))
    results.clear(wait=True)
    assert len(results.entries()) == 1
    results.add("display", bundle({"text/plain": "b"}))
    assert told(results) == [("display", {"text/plain": "b"})]
    results.clear(wait=False)
    assert results.entries() == []


def test_too_many_entries_are_counted_in_the_last():
    results = Results(10**6)
    one = bundle({"text/plain": "abc"})
    for _ in range(2_010):
        results.add("display", one)
    entries = results.entries()
    assert len(entries) == 2_000
    assert (entries[-1].type, entries[-1].mime, entries[-1].size) == ("omitted", "*/*", 33)
    assert results.truncated


def test_too_many_kinds_are_counted_in_one():
    results = Results(10**6)
    results.add("display", bundle({f"x/{n}": "abc" for n in range(30)}))
    kept, left_out = results.entries()
    assert len(kept.data) == 20
    assert (left_out.type, left_out.mime, left_out.size) == ("omitted", "*/*", 50)
    assert results.truncated


def test_names_metadata_and_ids_count():
    results = Results(1000)
    results.add("display", bundle({"x" * 190: "y" * 400}, "d" * 100, metadata={"a": "b" * 500}))
    assert (results.entries()[0].metadata, results.truncated) == ("{}", True)
    results.clear(wait=False)
    results.add("display", bundle({"x" * 190: "y" * 200}, "d" * 100, metadata={"a": "b" * 400}))
    assert len(results.entries()[0].metadata) > 400
    results.add("display", bundle({"x" * 190: ""}))
    assert results.entries()[1].type == "omitted"


def test_metadata_are_kept_where_they_fit():
    results = Results(1000)
    results.add("display", bundle({"image/png": "eA=="}, metadata={"image/png": {"width": 5}}))
    assert json.loads(results.entries()[0].metadata) == {"image/png": {"width": 5}}
    assert not results.truncated


WORST = "\U0001f600" * 200
DISPLAYED = {
    "metadata": lambda n: bundle({"text/plain": "x"}, metadata={"a": "x" * 30_000}),
    "ids": lambda n: bundle({"text/plain": ""}, f"{n}{WORST}"),
    "names": lambda n: bundle({f"{n}/{kind}{WORST}": "" for kind in range(20)}),
    "omitted names and ids": lambda n: bundle({f"{n}{WORST}": "x" * 110_000}, WORST),
    "many kinds": lambda n: bundle({str(kind): "" for kind in range(70)}),
    "empty": lambda n: bundle({}, metadata={"a": "x"}),
}


@pytest.mark.parametrize("displayed", DISPLAYED.values(), ids=DISPLAYED)
@pytest.mark.parametrize("limit", [0, 100_000])
async def test_an_answer_fits_into_a_frame_whatever_was_displayed(displayed, limit):
    """With the longest error and full outputs beside it."""
    results, made = Results(limit), [displayed(n) for n in range(20)]
    for n in range(2_200):
        results.add("display", made[n % 20])
        if n % 500 == 0:
            results.update(made[0])
    running = Running(
        Execute("a", "python", "", 1, 1, OutputLimits(limit, limit, 0)), 1, marks=True, send=lambda _message: None
    )
    long = ["\U0001f600" * 3_000] * 300
    running.on_shell(
        Received("execute_reply", "", reply(ename="\U0001f600" * 2_000, evalue=long[0] * 50, traceback=long))
    )
    outcome = running.outcome("new", Exited(0), stopped=None)
    assert sum(map(len, outcome.error.traceback)) <= 100_000
    full = msgspec.structs.replace(outcome, stdout="x" * limit, stderr="x" * limit, results=results.entries())
    body = encode(Finished("a", full))[4:]
    decode_from_sandbox(body)
    assert len(body) <= longest_frame(text=limit, results=limit) - 2 * 2**20


async def test_what_is_told_is_not_kept():
    """Executions are remembered for what they print late."""
    running = Running(
        Execute("a", "python", "", 1, 1, OutputLimits(10**6, 10**6, 0)), 1, marks=True, send=lambda _message: None
    )
    running.on_iopub(Received("display_data", "", b'{"data": {"text/plain": "%s"}}' % (b"x" * 10**5)))
    running.stdout.feed(b"x" * 10**5)
    told = running.outcome("new", Exited(0), stopped=None)
    running.keep_late()
    later = running.outcome("kept", Exited(0), stopped=None)
    assert [len(outcome.stdout) + len(outcome.results) for outcome in (told, later)] == [10**5 + 1, 0]


def test_an_answer_that_is_too_long_all_the_same_loses_its_results():
    limits = OutputLimits(text=0, results=0, spill=0)
    outcome = Outcome("ok", 0, 1, results=[Result("display", {"x/y": "x" * 5_000_000})])
    finished = decode_from_sandbox(within_limits(Finished("a", outcome), limits)[4:])
    assert [entry.type for entry in finished.outcome.results] == ["omitted"]
    assert finished.outcome.truncated


@given(
    st.lists(st.dictionaries(st.text(max_size=300), st.text(max_size=100), max_size=70), max_size=10),
    st.integers(0, 300),
)
def test_the_limit_holds_and_nothing_goes_unnamed(bundles, limit):
    results = Results(limit)
    for data in bundles:
        results.add("display", bundle(data))
    kept = [pair for entry in results.entries() for pair in [*entry.data.items(), *entry.json.items()]]
    assert sum(len(text.encode()) for pair in kept for text in pair) <= limit
    omitted = [entry for entry in results.entries() if entry.type == "omitted"]
    assert results.truncated == bool(omitted)
    assert len(kept) + len(omitted) == sum(min(len(data), 21) for data in bundles)
