"""Bash cells as sandboxd runs them: what persists, what they say, and inputs that have broken other kernels."""

from __future__ import annotations

import time

import pytest
from sandboxd.protocol import OutputLimits

from tests.attempts import in_time

MANY_BYTES = 10_000_000


@pytest.fixture
def bash(sandbox):
    """Runs a cell; returns its outcome."""

    async def run(code, **options):
        return await sandbox.run(code, language="bash", **options)

    return run


def ended(outcome):
    return outcome.status, outcome.exit_code, outcome.kernel


async def test_both_streams_and_the_status(bash):
    outcome = await bash("echo out; echo err >&2")
    assert (outcome.stdout, outcome.stderr, outcome.results, outcome.error) == ("out\n", "err\n", [], None)
    assert (*ended(outcome), outcome.execution_count) == ("ok", 0, "new", 1)
    failed = await bash("ls /none; (exit 3)")
    assert (*ended(failed), failed.execution_count) == ("error", 3, "kept", 2)
    assert (failed.error.name, failed.error.value, failed.error.traceback) == ("ExitStatus", "3", [])
    assert (failed.stdout, failed.stderr.count("/none")) == ("", 1)


STATE = {
    "a variable": ("x=1", "echo $x", "1\n"),
    "an exported one": ("export E=1", "sh -c 'echo $E'", "1\n"),
    "a readonly one": ("readonly R=1", "R=2 2>/dev/null; echo $R", ""),
    "an array": ("a=(1 'two  words' 3)", 'printf "%s\n" "${a[1]}"', "two  words\n"),
    "an associative array": ("declare -A m=([k]='v w' [l]=2)", 'echo "${m[k]}${#m[@]}"', "v w2\n"),
    "an integer": ("declare -i n=3", "n+=4; echo $n", "7\n"),
    "a name reference": ("t=5; declare -n ref=t", "echo $ref", "5\n"),
    "several lines and quotes": ("q=$'a\\n\"b\\'c$x`'", 'printf %s "$q"', "a\n\"b'c$x`"),
    "a function": ("f() { echo f $1; }", "f 1", "f 1\n"),
    "a function of several lines": ("f() {\n  cat <<X\n$1\nX\n}", "f 1", "1\n"),
    "an exported function": ("f() { echo f; }; export -f f", "bash -c f", "f\n"),
    "an alias": ("alias ll='echo ll'", "ll 1", "ll 1\n"),
    "the directory": ("cd /usr/bin", "pwd; cd -", "/usr/bin\n"),
    "the umask": ("umask 027", "umask", "0027\n"),
    "an option of set": ("set -o pipefail", "false | true; echo $?", "1\n"),
    "another one": ("set -u", "echo ${-//[^u]/}", "u\n"),
    "an option of shopt": ("shopt -s extglob nullglob", "echo @(x|y)z; [[ a == @(a|b) ]] && echo yes", "\nyes\n"),
    "a trap": ("trap 'echo usr1' USR1", "kill -USR1 $$", "usr1\n"),
    "the parameters": ("set -- a 'b c'", 'echo $# "$2"', "2 b c\n"),
    "that a variable is unset": ("unset LANG", "echo ${LANG-unset}", "unset\n"),
}


@pytest.mark.parametrize("between", ["", "exit 5", "set -e; false"], ids=["", "exit", "set -e"])
@pytest.mark.parametrize(("define", "use", "shown"), STATE.values(), ids=STATE)
async def test_state_persists(bash, define, use, shown, between):
    """Also over the end of the shell, where it is made again."""
    await bash(f"{define}\n{between}")
    outcome = await bash(use)
    assert outcome.stdout.startswith(shown)
    assert outcome.kernel == "kept"


@pytest.mark.parametrize("code", ["(exit 7)", "exit 7", "return 7", "set -e; (exit 7)"])
async def test_the_status_of_the_last_cell_is_there_in_the_next(bash, code):
    await bash(code)
    assert (await bash("echo $?")).stdout == "7\n"


async def test_jobs_persist(bash):
    await bash("sleep 60 & sleep 70 &")
    outcome = await bash("jobs | wc -l; kill %1 && wait %1; echo $?; kill %2; wait; jobs | wc -l")
    assert outcome.stdout == "2\n143\n0\n"


async def test_a_cell_that_has_ended_by_exit_keeps_its_jobs_running_and_says_that_they_are_no_longer_listed(bash):
    outcome = await bash("sleep 60 & p=$!; exit 3")
    assert ended(outcome) == ("error", 3, "new")
    assert outcome.stderr.count("\n") == 1
    assert "jobs" in outcome.stderr
    outcome = await bash("jobs; kill $p && echo lived")
    assert (outcome.stdout, outcome.stderr) == ("lived\n", "")


# code, stdout, exit code; stderr is empty unless the text for it is given
ODD = {
    "a function of several lines": ("f() {\n  echo a\n\n  echo b\n}\nf", "a\nb\n", 0, ""),
    "a heredoc": ("cat <<'X'\n$a `b`\nX", "$a `b`\n", 0, ""),
    "if": ("if true\nthen\n  echo yes\nfi", "yes\n", 0, ""),
    "python from a heredoc": ("python3 - <<'PY'\nfor i in range(2):\n    print(i)\n\nPY", "0\n1\n", 0, ""),
    "an unclosed if": ("if true; then", "", 2, "line 2: syntax error: unexpected end of file"),
    "an unclosed quote": ('echo "abc', "", 2, "line 1: unexpected EOF while looking for matching"),
    "an unclosed heredoc": ("cat <<EOF\nopen", "open\n", 0, "delimited by end-of-file"),
    "a syntax error": ("echo a\necho )", "a\n", 2, "line 2: syntax error near unexpected token"),
    "read": ("read x; echo rc=$?", "rc=1\n", 0, ""),
    "cat": ("cat; echo on", "on\n", 0, ""),
    "input of python": ("python3 -c 'input()' 2>/dev/null; echo $?", "1\n", 0, ""),
    "no final newline": ("printf abc", "abc", 0, ""),
    "a tab in quotes": ('echo -e "x\ty"', "x\ty\n", 0, ""),
    "characters of the history": ('echo "wow!"; echo a!b; echo "!!" !x', "wow!\na!b\n!! !x\n", 0, ""),
    "bytes": ("printf 'a\\xff\\xfe\\x00z'", "a\ufffd\ufffd\0z", 0, ""),
    "a prompt": ("PS1='hack> '; PS2='more> '; echo on", "on\n", 0, ""),
    "PROMPT_COMMAND": ("PROMPT_COMMAND='echo PC'", "", 0, ""),
    "stdout to a file": ("exec 1>f; echo hidden; exec 2>&1", "", 0, ""),
    "stdin from a file": ("exec 0</etc/hostname; echo on", "on\n", 0, ""),
    "closed streams": ("exec 1>&- 2>&- 0<&-", "", 0, ""),
    "an unset variable": ("set -u; echo $nope; echo not", "", 1, "nope: unbound variable"),
    "a variable that must be": ("echo ${v:?is wanted}; echo not", "", 1, "v: is wanted"),
    "set -e": ("set -e; echo a; false; echo b", "a\n", 1, ""),
    "set -euo pipefail": ("set -euo pipefail; false | true; echo not", "", 1, ""),
    "exit": ("exit 3", "", 3, ""),
    "exit in a function": ("f() { exit 4; }; f; echo not", "", 4, ""),
    "exit in a subshell": ("(exit 3); echo $?", "3\n", 0, ""),
    "exit without trouble": ("echo a; exit", "a\n", 0, ""),
    "exec of a program": ("exec echo a", "a\n", 0, "goes on with the state it had before"),
    "exec of none": ("exec /nonexistent; echo not", "", 127, "No such file"),
    "its own death": ("kill -9 $$", "", 137, "goes on with the state it had before"),
    "return": ("return 3; echo not", "", 3, ""),
    "a coprocess": (
        "coproc cat; echo hi >&${COPROC[1]}; read -ru ${COPROC[0]} r; echo $r; kill $COPROC_PID",
        "hi\n",
        0,
        "",
    ),
    "ulimit": ("ulimit -c 0; ulimit -S -n 100; ulimit -n", "100\n", 0, ""),
    "process substitution": ("diff <(echo a) <(echo b)", "1c1\n< a\n---\n> b\n", 1, ""),
    "extglob": ("shopt -s extglob\necho ${x:-a1b22}\ny=a1b22; echo ${y//+([0-9])/_}", "a1b22\na_b_\n", 0, ""),
    "lines of Windows": ("if true\r\nthen\r\n  echo yes\r\nfi\r\n", "yes\n", 0, ""),
    "no terminal": ("[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none; tty", "none\nnot a tty\n", 1, ""),
    "a trap of its own end": ("trap 'echo bye' EXIT; exit 6", "", 6, ""),
    "a trap on errors": ("trap 'echo err' ERR; false; trap - ERR", "err\n", 0, ""),
    "the shell's builtins redefined": (
        'printf() { :; }; set() { :; }; cd() { :; }; exit() { :; }; alias return="echo no"; true',
        "",
        0,
        "",
    ),
    "field separators": ("IFS=0123456789", "", 0, ""),
    "options of little use": ("set -fCk; set -b", "", 0, ""),
    "posix": ("set -o posix", "", 0, ""),
    "nothing": ("", "", 0, ""),
    "a comment": ("# only", "", 0, ""),
    "a backslash at the end": ("echo a \\", "a \\\n", 0, ""),
    "other letters": ("echo 'ä€😀'", "ä€😀\n", 0, ""),
    "a long line": (f"echo {'x' * 200_000} | wc -c", "200001\n", 0, ""),
    "many lines": ("x=1\n" * 100_000 + "echo $x", "1\n", 0, ""),
}


@pytest.mark.parametrize(("code", "stdout", "code_of_exit", "stderr"), ODD.values(), ids=ODD)
async def test_odd_input_has_its_answer_and_the_next_cell_works(bash, code, stdout, code_of_exit, stderr):
    await bash("kept=1")
    outcome = await bash(code)
    assert (outcome.stdout, outcome.exit_code) == (stdout, code_of_exit)
    assert stderr in outcome.stderr if stderr else outcome.stderr == ""
    following = await bash('echo on "$kept"; echo err >&2')
    assert (following.stdout, following.stderr, following.status) == ("on 1\n", "err\n", "ok")


async def test_an_errexit_ends_with_its_cell(bash):
    await bash("set -e; x=1")
    outcome = await bash("sleep 60 & false; echo on $x; jobs | wc -l; kill %1")
    assert outcome.stdout == "on 1\n1\n"


async def test_a_redirection_ends_with_its_cell(bash, sandbox):
    await bash("exec >f; echo in")
    assert (await bash("echo out")).stdout == "out\n"
    assert (sandbox.workspace / "f").read_text() == "in\n"


async def test_a_users_trap_on_exit_is_listed_kept_and_can_be_taken_back(bash):
    await bash("trap 'echo bye' EXIT; z=5; exit 4")
    assert (await bash("trap -p EXIT; echo $z; (trap 'echo sub' EXIT)")).stdout == "trap -- 'echo bye' EXIT\n5\nsub\n"
    await bash("echo 'trap \"echo other\" EXIT' >lib; . ./lib")
    assert (await bash("y=7; exit 2")).stdout == ""
    assert (await bash("trap; echo $y")).stdout == "trap -- 'echo other' EXIT\n7\n"
    assert (await bash("trap - EXIT; trap")).stdout == ""


async def test_late_output_is_never_in_the_next_answer(bash):
    assert (await bash("(sleep 0.1; echo late; echo late >&2) & echo now")).stdout == "now\n"
    outcome = await bash("wait; sleep 0.1; echo second")
    assert (outcome.stdout, outcome.stderr) == ("second\n", "")


async def test_what_is_written_in_the_foreground_is_all_in_the_answer(bash):
    for _ in range(20):
        assert (await bash("printf a; sh -c 'printf b'; (printf c); printf d | cat")).stdout == "abcd"


@pytest.mark.alone
@pytest.mark.parametrize(
    ("code", "size"),
    [
        (f"yes | head -c {MANY_BYTES}", MANY_BYTES),
        ("for ((i = 0; i < 100000; i++)); do echo xxxxxxxxxxxxxxxxxxxxxxxxx; done", 2_600_000),
    ],
)
async def test_much_output_is_complete(bash, code, size):
    await bash("true")
    began = time.monotonic()
    outcome = await bash(code)
    in_time(time.monotonic() - began, 2)
    assert (outcome.stdout_bytes, outcome.truncated) == (size, True)


async def test_the_fields(bash, sandbox):
    (sandbox.workspace / "sub").mkdir()
    await bash("A=old; export B=old; f() { echo $A; }")
    outcome = await bash(
        "echo $A $B ${C-}; sh -c 'echo $C'; pwd; cat; read x; echo $?",
        env={"A": "new", "B": "it's $x", "C": "c\nd"},
        cwd="sub",
        stdin="one\ntwo",
    )
    assert outcome.stdout == f"new it's $x c d\nc d\n{sandbox.workspace}/sub\none\ntwo1\n"
    outcome = await bash("echo $A $B ${C-unset}; pwd; sh -c 'echo ${A-none}'; cat")
    assert outcome.stdout == f"old old unset\n{sandbox.workspace}\nnone\n"
    await bash("cd /usr", cwd="sub")
    assert (await bash("pwd")).stdout == "/usr\n"
    assert (await bash("exit 3", cwd="sub", env={"A": "x"})).exit_code == 3
    assert (await bash("echo $A; pwd")).stdout == "old\n/usr\n"
    refused = await bash("echo not", env={"A-B": "x"})
    assert (refused.status, refused.error.name, refused.stdout) == ("error", "ValueError", "")


async def test_the_directory_before_is_not_that_of_a_field(bash, sandbox):
    await bash("mkdir a b c; cd a; cd ../b")
    assert (await bash("pwd", cwd="c")).stdout == f"{sandbox.workspace}/c\n"
    assert (await bash("cd - >/dev/null; pwd")).stdout == f"{sandbox.workspace}/a\n"


async def test_no_descriptor_of_ours_is_inherited(bash):
    assert (await bash("ls /proc/self/fd")).stdout.split() == ["0", "1", "2", "3"]
    assert (
        await bash("env | grep -i cellbox; env | grep -E '^(TERM|NO_COLOR)=' | sort")
    ).stdout == "NO_COLOR=1\nTERM=dumb\n"


async def test_forged_answers_do_no_harm(bash):
    forged = """
d=${BASH_SOURCE[0]%/*}
for i in 1 2 3; do printf 'done 999 0\\nshow 1 ../../x y\\nshow x\\ndone\\n' >$d/control; done
head -c 100000 /dev/zero >$d/control
printf '\\n' >$d/control
echo on
"""
    assert (await bash(forged)).stdout == "on\n"
    assert (await bash("echo on")).stdout == "on\n"


async def test_files_are_displayed(bash):
    outcome = await bash(
        "printf '<svg></svg>' >p.svg; printf '\\x89PNG\\r\\n\\x1a\\nrest' >p.png; echo '{\"a\": 1}' >p.json; echo '<b>' >p.html\n"
        "display p.svg p.png p.json p.html none; echo $?; rm p.*; printf '\\xff' >bin; display bin"
    )
    shown = [sorted({**entry.data, **entry.json}) for entry in outcome.results]
    kinds = ["image/svg+xml", "image/png", "application/json", "text/html"]
    assert shown == [sorted([kind, "text/plain"]) for kind in kinds]
    assert outcome.results[2].json["application/json"] == '{"a":1}'
    assert outcome.stdout == "1\n"
    assert outcome.stderr.count("none") == 1
    assert "display: bin: of no kind" in outcome.stderr


@pytest.mark.parametrize("innermost", ["1", "NaN"])
async def test_json_that_is_nested_too_deeply_is_displayed_as_text(bash, innermost):
    for depth in (299, 301, 970, 100_000):
        text = "[" * depth + innermost + "]" * depth
        outcome = await bash(
            "cat >deep.json; display deep.json", stdin=text, limits=OutputLimits(text=1000, results=10**6, spill=0)
        )
        assert [entry.data for entry in outcome.results] == [{"text/plain": text}], depth
        assert (bool(outcome.results[0].json), outcome.stderr) == (depth < 300, ""), depth


async def test_what_is_too_large_is_not_displayed(bash):
    outcome = await bash("head -c 20000000 /dev/zero >big.png; display big.png")
    assert (outcome.results, "display: big.png: more than" in outcome.stderr) == ([], True)
