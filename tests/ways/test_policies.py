"""Who may reach what: the settings, and the file that says otherwise."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egress.policy import Rules as Judged
from egress.protocol import Policy
from interpreter.egress import entries
from interpreter.egress.policies import Policies, PolicyError, Rules, parse
from interpreter.keys import Key

SETTINGS = Rules(("@pypi", "data.example"), (), (80, 443))
TOOLS = {"@pypi": ("index.example", "files.example"), "@npm": ("registry.example",)}


def policies(text: str = "") -> Policies:
    return Policies(SETTINGS, ("10.1.0.0/16",), parse(text), TOOLS)


def allowed(text: str, scope: str = "ada", session: str | None = None) -> tuple[str, ...]:
    return policies(text).policy(Key(scope, session)).allow


@pytest.mark.parametrize(
    "wrong",
    [
        "https://data.example", "data.example/path", "data_.example", "*:0", "a b", "", "*.", "**.example", "a.*.example",
        "data.example:", "data.example:99999", "data.example:8_0", "@other", "user@data.example", "ｄata.example", "-a.example",
        "[::1", "fe80::1%eth0", "a" * 301, "1.2.3", "010.1.1.1", "*.1.2.3.4", "1.2.3.4.", "data.0x7f", "[1.2.3.4]:443",
        f"{'a' * 64}.example", ".".join(["a" * 60] * 5), "[]", "-", ".",
    ],
)  # fmt: skip
def test_what_is_no_entry(wrong):
    assert entries.wrong([wrong]) == [wrong]


@pytest.mark.parametrize(
    "right",
    ["*", "data.example", "DATA.example.", "*.data.example", "a.example:8443", "*.example:1", "*:443", "192.0.2.7", "[::1]:443"],
)  # fmt: skip
def test_what_is_one(right):
    assert entries.wrong([right, "@pypi", "@npm"]) == []


@given(st.text("aA019fx.-*:[]%/@_ ", max_size=24))
@example("1.2.3")
@example("[1.2.3.4]")
def test_what_is_an_entry_here_is_one_to_the_egress_process(entry):
    """Else a file is accepted here and has no effect there."""
    if not entries.wrong([entry], names=()):
        Judged(Policy(allow=(entry,), deny=(entry,)))


def test_without_a_file_the_settings_hold_for_all():
    policy = policies().policy(Key("ada", "chat"))
    assert policy.allow == ("index.example", "files.example", "data.example")
    assert (policy.deny, policy.ports, policy.private_cidrs) == ((), (80, 443), ("10.1.0.0/16",))
    assert policies().policy(None) == policy


def test_a_scope_is_narrower_or_wider_and_others_are_not():
    text = "scopes: {ada: {allow: [one.example]}, bob: {allow: ['@default', '*.more.example:8443']}}"
    assert allowed(text, "ada") == ("one.example",)
    assert allowed(text, "bob") == ("index.example", "files.example", "data.example", "*.more.example:8443")
    assert allowed(text, "eve") == allowed("")


def test_a_session_begins_with_what_its_scope_has():
    text = """
        scopes:
          ada:
            allow: [one.example]
            ports: [443]
            sessions:
              wide: {allow: ['@default', two.example]}
              none: {allow: []}
    """
    assert allowed(text, session="other") == ("one.example",)
    assert allowed(text, session="wide") == ("one.example", "two.example")
    assert allowed(text, session="none") == ()
    assert policies(text).policy(Key("ada", "wide")).ports == (443,)


def test_what_is_denied_above_stays_denied_below():
    text = "{default: {deny: [a.example]}, scopes: {ada: {deny: [b.example], sessions: {chat: {deny: [c.example]}}}}}"
    assert policies(text).policy(Key("ada", "chat")).deny == ("a.example", "b.example", "c.example")
    assert policies(text).policy(None).deny == ("a.example",)


def test_the_file_may_say_the_default_itself():
    assert allowed("default: {allow: [all.example]}") == ("all.example",)
    assert allowed("{default: {allow: ['@default', all.example]}}")[-1] == "all.example"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scopes: [ada]", "scopes has to be a mapping"),
        ("scope: {}", "it has 'scope', and may have default, scopes"),
        ("- a", "it has to be a mapping"),
        ("scopes: {ada: {alow: []}}", "scopes.ada has 'alow'"),
        ("scopes: {ada: {allow: one.example}}", "scopes.ada.allow has to be a list"),
        ("scopes: {ada: {allow: [1]}}", "scopes.ada.allow has to be a list"),
        ("scopes: {ada: {allow: ['https://one.example']}}", "'https://one.example', which is neither host"),
        ("scopes: {ada: {deny: ['@default']}}", "scopes.ada.deny has '@default'"),
        ("scopes: {ada: {sessions: {chat: {allow: ['a b']}}}}", "scopes.ada.sessions.chat.allow"),
        ("scopes: {ada: {ports: [0]}}", "scopes.ada.ports"),
        ("scopes: {ada: {ports: [true]}}", "scopes.ada.ports"),
        ("scopes: {7: {}}", "a number has to stand in quotes"),
        ("scopes: {'../x': {}}", "which is no name"),
        ("scopes: {ada: {allow: [a.example]", "it is not YAML in line"),
        ("!!python/object/apply:os.system ['true']", "it is not YAML"),
    ],
)
def test_a_file_that_is_wrong_anywhere_is_refused_with_a_sentence(text, said):
    with pytest.raises(PolicyError) as caught:
        parse(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("default: {allow: [a.example]}", False),
        ("scopes: {ada: {sessions: {chat: {allow: ['@npm']}}}}", True),
        ("default: {deny: ['@pypi']}", True),
    ],
)
def test_the_tools_are_asked_only_where_a_policy_speaks_of_them(text, named):
    assert Policies(Rules(("a.example",)), file=parse(text)).names_tools() is named


def test_what_the_tools_use_is_told_as_hosts_and_shown_as_written():
    text = "scopes: {ada: {allow: ['@npm'], deny: ['@pypi'], sessions: {chat: {ports: [8443]}}}}"
    assert policies(text).policy(Key("ada", None)).deny == ("index.example", "files.example")
    assert policies(text).shown("ada") == {
        "allow": ["@npm"],
        "deny": ["@pypi"],
        "ports": [80, 443],
        "sessions": {"chat": {"allow": ["@npm"], "deny": ["@pypi"], "ports": [8443]}},
    }
    assert policies(text).shown("eve")["sessions"] == {}


@pytest.mark.parametrize("text", ["default: {deny: [2024-99-99]}", "default: {ports: [0b_]}"])
def test_what_looks_like_a_date_or_a_number_and_is_none_is_refused_as_the_rest(text):
    with pytest.raises(PolicyError, match="not YAML"):
        parse(text)


def test_lists_that_grow_too_long_from_level_to_level_are_refused_not_cut():
    """Cut, the last hosts that are denied would be reachable."""
    above, below = ([f"{level}{number}.example" for number in range(1_000)] for level in "ab")
    text = f"default: {{deny: {above}}}\nscopes: {{ada: {{sessions: {{chat: {{deny: {below}}}}}}}}}"
    with pytest.raises(PolicyError, match=r"deny of scopes\.ada\.sessions\.chat has 2000 hosts"):
        policies(text).check()


def test_hosts_that_are_too_long_to_be_told_in_one_line_are_refused():
    hosts = [f"{number}.{'a' * 60}.{'b' * 60}.{'c' * 60}.{'d' * 60}.example" for number in range(1_500)]
    told = Policies(Rules(tuple(hosts[:1_000]), tuple(hosts[:1_500]), (443,)))
    with pytest.raises(PolicyError, match="the default are more than 524288 characters"):
        told.check()
