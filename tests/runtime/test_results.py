"""Rich outputs, in order and within a limit."""

import json

from hypothesis import given
from hypothesis import strategies as st
from sandboxd.channels import Received, decode
from sandboxd.results import Bundle, Results, bundle_decoder


def bundle(data, display_id=None, **rest):
    transient = {} if display_id is None else {"display_id": display_id}
    content = json.dumps({"data": data, "metadata": {}, "transient": transient} | rest).encode()
    decoded = decode(Received("display_data", "", content), bundle_decoder)
    assert isinstance(decoded, Bundle)
    return decoded


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
    results = Results(100)
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
    results = Results(100)
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
    for _ in range(10_010):
        results.add("display", one)
    entries = results.entries()
    assert len(entries) == 10_000
    assert (entries[-1].type, entries[-1].mime, entries[-1].size) == ("omitted", "*/*", 33)
    assert results.truncated


@given(
    st.lists(st.dictionaries(st.text(max_size=300), st.text(max_size=100), max_size=70), max_size=10),
    st.integers(0, 300),
)
def test_the_limit_holds_and_nothing_goes_unnamed(bundles, limit):
    results = Results(limit)
    for data in bundles:
        results.add("display", bundle(data))
    kept = [text for entry in results.entries() for text in [*entry.data.values(), *entry.json.values()]]
    assert sum(len(text.encode()) for text in kept) <= limit
    omitted = [entry for entry in results.entries() if entry.type == "omitted"]
    assert results.truncated == bool(omitted)
    assert len(kept) + len(omitted) == sum(min(len(data), 64) for data in bundles)
