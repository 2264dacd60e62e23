"""Errors of expansions end a Bash cell, and what a cell means does not change for that."""

from __future__ import annotations

import pytest

ERRORS = {
    "a required variable": "echo ${nix:?}",
    "an unset variable": "set -u; echo $nix",
    "a division by zero": "echo $((1/0))",
    "a readonly variable": "r=2",
    "a bad substitution": "echo ${a b}",
    "a subscript": "a[1/0]=1",
    "in a function": "f() { echo ${nix:?}; echo no; }; f",
}

POSITIONS = {
    "one line": ("echo a; {}; echo no", "a\n"),
    "first": ("{}\necho no", ""),
    "in the middle": ("echo a\n\n{}\necho no\necho no", "a\n"),
    "last": ("echo a\n{}\n", "a\n"),
    "nested": ("if true; then\n{}\nfi\necho no", ""),
    "after a heredoc": ("cat <<E\n}} done\nE\n{}\necho no", "} done\n"),
    "after a comment": ("# one\n{}\n# two\necho no", ""),
    "with carriage returns": ("echo a\r\n{}\r\necho no", "a\n"),
}


@pytest.fixture
def bash(sandbox):
    async def run(code, **options):
        return await sandbox.run(code, language="bash", **options)

    return run


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
async def test_an_error_of_an_expansion_ends_its_cell_and_keeps_the_shell(bash, error):
    await bash("readonly r=1; sleep 100 &")
    for code, stdout in POSITIONS.values():
        outcome = await bash("kept=1\n" + code.format(error))
        assert (outcome.status, outcome.exit_code, outcome.stdout) == ("error", 1, stdout), code
        following = await bash("echo $? $kept; unset kept; set +u; jobs | grep -c sleep")
        assert (following.stdout, following.stderr) == ("1 1\n1\n", "")
    await bash("kill %1")


async def test_all_of_a_line_ends_where_a_cell_can_only_be_run_line_by_line(bash):
    outcome = await bash("alias hi='echo hi'\necho ${nix:?}; echo no\nhi")
    assert (outcome.exit_code, outcome.stdout) == (0, "hi\n")


UNCHANGED = {
    "an alias of its own": ("alias hi='echo hi'\nhi", "hi\n", 0, ""),
    "an alias of a sourced file": ("echo \"alias hi='echo hi'\" >hi.sh\nsource hi.sh\nhi", "hi\n", 0, ""),
    "an alias by a dot": ("echo \"alias hi='echo hi'\" >hi.sh\n. ./hi.sh\nhi", "hi\n", 0, ""),
    "an alias by eval": ('x="alias hi=\'echo hi\'"\neval "$x"\nhi', "hi\n", 0, ""),
    "extglob": ("touch a b\nshopt -s extglob\necho !(b)", "a\n", 0, ""),
    "an unclosed heredoc": ("echo a\ncat <<E\nb", "a\nb\n", 0, "delimited by end-of-file"),
    "a heredoc that is called as the bracket": ("cat <<done\nb\ndone\ncat <<'}'\nc\n}", "b\nc\n", 0, ""),
    "an unclosed heredoc that is called as the bracket": ("echo a\ncat <<done\nb", "a\nb\n", 0, "end-of-file"),
    "a last backslash": ("echo a\necho b \\", "a\nb \\\n", 0, ""),
    "a late syntax error": ("echo a\necho b\nfi\necho no", "a\nb\n", 2, "line 3: syntax error"),
    "an unclosed quote": ("echo a\necho 'b", "a\n", 2, "unexpected EOF"),
    "braces the wrong way round": ("echo a\n}; echo no; {\necho no", "a\n", 2, "syntax error"),
    "a line number": ("\n\nnothing-such\necho $LINENO", "4\n", 0, "nothing-such"),
    "a first line number": ("nothing-such\necho $LINENO", "2\n", 0, "nothing-such"),
    "comments only": ("# a\n# b", "", 0, ""),
    "a comment at the end": ("echo a\necho b # c", "a\nb\n", 0, ""),
    "a list that goes on": ("echo a &&\necho b", "a\nb\n", 0, ""),
    "return": ("echo a\nreturn 3\necho no", "a\n", 3, ""),
    "exit": ("echo a\nexit 3\necho no", "a\n", 3, ""),
    "set -e": ("set -e\necho a\nfalse\necho no", "a\n", 1, ""),
    "set -x": ("set -x\necho a\nset +x", "a\n", 0, "+ echo a\n"),
    "set -v": ("echo a\nset -v\necho b", "a\nb\n", 0, "echo b"),
    "a trap on errors": ("trap 'echo err $LINENO' ERR\nfalse\ntrue\ntrap - ERR", "err 2\n", 0, ""),
    "a trap before commands": ("trap 'echo d' DEBUG\ntrue\ntrap - DEBUG", "d\nd\n", 0, ""),
    "a redirection": ("exec 3>&1 1>kept\necho a\nexec 1>&3\ncat kept", "a\n", 0, ""),
    "a function": ("f() {\necho a\nreturn 3\n}\nf", "a\n", 3, ""),
    "more lines than bash can nest": ("x=1\n" * 30_000 + "echo $x", "1\n", 0, ""),
}


@pytest.mark.parametrize(("code", "stdout", "status", "stderr"), UNCHANGED.values(), ids=UNCHANGED)
async def test_what_a_cell_means_does_not_change(bash, code, stdout, status, stderr):
    outcome = await bash(code)
    assert (outcome.stdout, outcome.exit_code) == (stdout, status), outcome.stderr
    assert stderr in outcome.stderr if stderr else outcome.stderr == ""
    assert (await bash("echo more")).stdout == "more\n"


async def test_what_is_echoed_as_it_is_read_is_the_cell_alone(bash):
    await bash("set -v")
    assert (await bash("echo a\necho b")).stderr == "echo a\necho b\n"


async def test_the_last_status_is_there_whether_a_cell_is_one_command_or_not(bash):
    for code in ("echo $?\ntrue", "echo $?\nalias x=y", "echo $?"):
        await bash("(exit 7)")
        assert (await bash(code)).stdout == "7\n"
