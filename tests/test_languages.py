"""Names of languages: what callers may say, and how those there are get listed."""

import pytest

from interpreter import languages


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("Python", "python"),
        ("PY", "python"),
        ("python3", "python"),
        ("JavaScript", "node"),
        ("js", "node"),
        ("NodeJS", "node"),
        ("sh", "bash"),
        ("SHELL", "bash"),
        ("julia-1.10", "julia-1.10"),
        ("", None),
        ("py thon", None),
        ("../python", None),
        ("python\n", None),
        ("x" * 65, None),
    ],
)
def test_languages(given, meant):
    assert languages.canonical(given) == meant


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (["bash", "node", "python"], "python, node, bash"),
        (["python3", "python"], "python"),
        (["ir", "python3", "julia-1.10", "python"], "python, ir, julia-1.10"),
        (["Not a name", "../x", "python"], "python"),
        ([], "none"),
    ],
)
def test_the_languages_of_the_contract_are_listed_first_and_no_alias(there, said):
    assert languages.listed(there) == said


def test_a_long_list_is_cut():
    assert languages.listed(f"kernel{number:03}" for number in range(1000)).count(",") == languages.MAX_LISTED
