"""Stateful Node and Bash over HTTP: state, contexts, every sort of end, output of any size, and real work over several calls."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.attempts import in_time
from tests.e2e.conftest import Cellbox, bubblewrap_is_there, running

TIMEOUT_S = 0.6
GRACE_S = 2.0
SLACK_S = 0.3

BOTH = ("node", "bash")
SET = {"node": "const x = 41", "bash": "x=41"}
SHOW = {"node": "console.log(x + 1)", "bash": "echo $((x + 1))"}


def text_of(answer: dict[str, Any]) -> str | None:
    return next((entry["data"]["text/plain"] for entry in answer["results"] if entry["type"] == "result"), None)


# --- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", BOTH)
def test_state_persists_over_twenty_calls(cellbox: Cellbox, scope: str, language: str) -> None:
    first = cellbox.cell(SET[language], scope=scope, language=language)
    assert (first["status"], first["state"], first["generation"]) == ("ok", "new", 1)
    for _ in range(20):
        answer = cellbox.cell(SHOW[language], scope=scope, language=language)
        assert (answer["stdout"], answer["stderr"], answer["status"]) == ("42\n", "", "ok")
        assert (answer["state"], answer["generation"], answer["exit_code"]) == ("kept", 1, 0)
    assert answer["execution_count"] == 21


@pytest.mark.parametrize(
    ("alias", "language"),
    [("js", "node"), ("JavaScript", "node"), ("nodejs", "node"), ("sh", "bash"), ("shell", "bash")],
)
def test_an_alias_means_the_same_kernel(cellbox: Cellbox, scope: str, alias: str, language: str) -> None:
    cellbox.cell(SET[language], scope=scope, language=alias)
    assert cellbox.cell(SHOW[language], scope=scope, language=language)["stdout"] == "42\n"
    listed = cellbox.client.get(f"/v1/kernels/{scope}").json()["kernels"]
    assert [kernel["language"] for kernel in listed] == [language]


def test_contexts_sessions_and_languages_are_apart(cellbox: Cellbox, scope: str) -> None:
    for language in BOTH:
        cellbox.cell(SET[language], scope=scope, language=language, session="a")
        cellbox.cell(SET[language].replace("41", "1"), scope=scope, language=language, session="a", context="other")
        cellbox.cell(SET[language].replace("41", "2"), scope=scope, language=language, session="b")
    cellbox.cell("x = 99", scope=scope, session="a")
    for language in BOTH:
        where = {"scope": scope, "language": language}
        assert cellbox.cell(SHOW[language], session="a", **where)["stdout"] == "42\n"
        assert cellbox.cell(SHOW[language], session="a", context="other", **where)["stdout"] == "2\n"
        assert cellbox.cell(SHOW[language], session="b", **where)["stdout"] == "3\n"
        stateless = cellbox.exec(SHOW[language], session="a", **where)
        assert (stateless["state"], stateless["stdout"] == "42\n") == (None, False)


def test_a_directory_stays_and_what_came_with_a_call_does_not(cellbox: Cellbox, scope: str) -> None:
    cellbox.cell("mkdir -p d/e && cd d", scope=scope, language="bash")
    fields = {"scope": scope, "language": "bash"}
    with_fields = cellbox.cell('echo "$PWD $SAID"', cwd="d/e", env={"SAID": "so"}, **fields)
    assert with_fields["stdout"] == "/opt/workspace/d/e so\n"
    assert cellbox.cell('echo "$PWD $SAID"', **fields)["stdout"] == "/opt/workspace/d \n"
    cellbox.cell("process.chdir('d')", scope=scope, language="node")
    fields = {"scope": scope, "language": "node"}
    with_fields = cellbox.cell("console.log(process.cwd(), process.env.SAID)", cwd="d/e", env={"SAID": "so"}, **fields)
    assert with_fields["stdout"] == "/opt/workspace/d/e so\n"
    assert cellbox.cell("console.log(process.cwd(), process.env.SAID)", **fields)["stdout"] == (
        "/opt/workspace/d undefined\n"
    )
    missing = cellbox.post(code="1", cwd="none", stateful=True, **fields)
    assert (missing.status_code, missing.json()["code"]) == (400, "cwd_not_found")


# --- input, results, errors -----------------------------------------------------------------------------------------


READ = {"node": "console.log(require('fs').readFileSync(0, 'utf8').length)", "bash": "wc -c"}


@pytest.mark.parametrize("language", BOTH)
def test_input_is_for_one_cell_and_otherwise_at_its_end(cellbox: Cellbox, scope: str, language: str) -> None:
    fields = {"scope": scope, "language": language}
    assert cellbox.cell(READ[language], stdin="two\nlines\n", **fields)["stdout"].strip() == "10"
    assert cellbox.cell("1" if language == "node" else "true", stdin="not read", **fields)["status"] == "ok"
    assert cellbox.cell(READ[language], **fields)["stdout"].strip() == "0"
    long = "x" * 1_000_000
    assert cellbox.cell(READ[language], stdin=long, **fields)["stdout"].strip() == "1000000"


def test_python_refuses_input_by_name(cellbox: Cellbox, scope: str) -> None:
    response = cellbox.post(scope=scope, language="python", code="1", stateful=True, stdin="x")
    assert (response.status_code, response.json()["code"]) == (400, "unsupported_field")
    assert "stdin" in response.json()["message"]


def test_results_and_displays(cellbox: Cellbox, scope: str) -> None:
    value = cellbox.cell("({a: [1, 2], b: 'c'})", scope=scope, language="node")["results"]
    (result,) = value
    assert (result["type"], result["data"]["application/json"]) == ("result", {"a": [1, 2], "b": "c"})
    assert result["data"]["text/plain"] == "{ a: [ 1, 2 ], b: 'c' }"
    (shown,) = cellbox.cell("display.html('<b>hi</b>')", scope=scope, language="node")["results"]
    assert (shown["type"], shown["data"]["text/html"]) == ("display", "<b>hi</b>")
    code = "echo '<svg xmlns=\"http://www.w3.org/2000/svg\"/>' > p.svg; display p.svg"
    (shown,) = cellbox.cell(code, scope=scope, language="bash")["results"]
    assert shown["data"]["image/svg+xml"].startswith("<svg")


def test_errors(cellbox: Cellbox, scope: str) -> None:
    thrown = cellbox.cell("const before = 7\nnull.x", scope=scope, language="node")
    assert (thrown["status"], thrown["exit_code"], thrown["error"]["name"]) == ("error", 1, "TypeError")
    assert "TypeError" in thrown["stderr"]
    assert "\x1b" not in json.dumps(thrown)
    assert text_of(cellbox.cell("before", scope=scope, language="node")) == "7"
    failed = cellbox.cell("x=1; ls /none", scope=scope, language="bash")
    assert (failed["status"], failed["exit_code"], failed["error"]["name"]) == ("error", 2, "ExitStatus")
    assert (failed["error"]["value"], failed["stdout"]) == ("2", "")
    assert "/none" in failed["stderr"]
    assert cellbox.cell("echo $x", scope=scope, language="bash")["stdout"] == "1\n"
    broken = cellbox.cell("if true; then", scope=scope, language="bash")
    assert (broken["status"], broken["state"]) == ("error", "kept")
    broken = cellbox.cell("const = 1", scope=scope, language="node")
    assert (broken["status"], broken["error"]["name"], broken["state"]) == ("error", "SyntaxError", "kept")


# --- interrupts -----------------------------------------------------------------------------------------------------


INTERRUPTED = {
    "node: busy loop": ("node", "console.log('before'); while (true) {}"),
    "node: never settles": ("node", "console.log('before'); await new Promise(() => {})"),
    "node: busy microtasks": (
        "node", "console.log('before'); const spin = () => Promise.resolve().then(spin); await spin()"),
    "node: awaits in a loop": ("node", "console.log('before'); while (true) await null"),
    "node: execSync": ("node", "console.log('before'); require('child_process').execSync('sleep 60')"),
    "bash: sleep": ("bash", "echo before; sleep 60"),
    "bash: yes": ("bash", "echo before; yes >/dev/null"),
    "bash: pipeline": ("bash", "echo before; yes | cat >/dev/null"),
    "bash: child that ignores SIGINT": ("bash", "echo before; bash -c 'trap \"\" INT; sleep 60; sleep 60'"),
    "bash: ignores SIGINT itself": ("bash", "echo before; trap '' INT; while :; do :; done"),
}  # fmt: skip


@pytest.mark.alone
@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_timeout_ends_it_in_time_and_the_state_stays(cellbox: Cellbox, scope: str, name: str) -> None:
    language, code = INTERRUPTED[name]
    cellbox.cell(SET[language], scope=scope, language=language)
    began = time.monotonic()
    answer = cellbox.cell(code, scope=scope, language=language, timeout=TIMEOUT_S)
    in_time(time.monotonic() - began, TIMEOUT_S + GRACE_S + SLACK_S)
    assert (answer["status"], answer["exit_code"], answer["timed_out"]) == ("timeout", 124, True)
    assert answer["stdout"] == "before\n"
    assert (answer["state"], answer["reason"]) == ("kept", None)
    after = cellbox.cell(SHOW[language], scope=scope, language=language)
    assert (after["stdout"], after["status"], after["state"], after["generation"]) == ("42\n", "ok", "kept", 1)
    cellbox.wait_for(lambda: not [line for line in cellbox.processes(scope).values() if "sleep" in line], within_s=20)


@pytest.mark.parametrize("language", BOTH)
def test_an_interrupt_by_the_route(cellbox: Cellbox, scope: str, language: str) -> None:
    cellbox.cell(SET[language], scope=scope, language=language)
    code = {
        "node": "require('fs').writeFileSync('begun', ''); await new Promise(() => {})",
        "bash": "touch begun; sleep 60",
    }[language]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cellbox.cell, code, scope=scope, language=language)
        cellbox.wait_for((cellbox.root / scope / "workspace" / "begun").exists, within_s=20)
        assert cellbox.client.post(f"/v1/kernels/{scope}/{language}/interrupt").json() == {"interrupted": True}
        answer = waiting.result(20)
    assert (answer["status"], answer["exit_code"], answer["state"]) == ("interrupted", 130, "kept")
    assert cellbox.cell(SHOW[language], scope=scope, language=language)["stdout"] == "42\n"


# --- ends -----------------------------------------------------------------------------------------------------------


def test_node_that_exits_is_told_with_its_generation(cellbox: Cellbox, scope: str) -> None:
    cellbox.cell(SET["node"], scope=scope, language="node")
    died = cellbox.cell("console.log('last words'); process.exit(3)", scope=scope, language="node")
    assert (died["status"], died["exit_code"], died["reason"]) == ("died", 3, "exit")
    assert (died["state"], died["generation"], died["stdout"]) == ("lost", 1, "last words\n")
    after = cellbox.cell("typeof x", scope=scope, language="node")
    assert (text_of(after), after["state"], after["generation"]) == ("'undefined'", "new", 2)
    killed = cellbox.cell(
        "process.kill(process.pid, 'SIGKILL'); await new Promise(() => {})", scope=scope, language="node"
    )
    assert (killed["status"], killed["exit_code"], killed["reason"]) == ("died", 137, "crash")
    assert cellbox.cell("1 + 1", scope=scope, language="node")["generation"] == 3


@pytest.mark.parametrize(("code", "status"), [("exit 3", 3), ("set -e; false; echo no", 1), ("exec false", 1)])
def test_bash_that_exits_ends_the_cell_only(cellbox: Cellbox, scope: str, code: str, status: int) -> None:
    cellbox.cell("x=41; f() { echo of f; }; alias a='echo of a'; mkdir -p d; cd d", scope=scope, language="bash")
    ended = cellbox.cell(f"echo before; {code}", scope=scope, language="bash")
    assert (ended["status"], ended["exit_code"], ended["error"]["value"]) == ("error", status, str(status))
    assert (ended["state"], ended["stdout"]) == ("kept", "before\n")
    after = cellbox.cell("echo $x; f; a; pwd", scope=scope, language="bash")
    assert after["stdout"] == "41\nof f\nof a\n/opt/workspace/d\n"
    assert (after["state"], after["generation"]) == ("kept", 1)


def test_bash_that_kills_itself_says_what_became_of_its_state(cellbox: Cellbox, scope: str) -> None:
    cellbox.cell("x=41", scope=scope, language="bash")
    killed = cellbox.cell("kill -9 $$", scope=scope, language="bash")
    assert killed["exit_code"] == 137
    after = cellbox.cell("echo ${x-gone}", scope=scope, language="bash")
    if killed["state"] == "kept":
        assert (killed["status"], after["stdout"], after["generation"]) == ("error", "41\n", 1)
        assert killed["stderr"]
    else:
        assert (killed["status"], killed["reason"]) == ("died", "crash")
        assert (after["stdout"], after["state"], after["generation"]) == ("gone\n", "new", 2)


@pytest.mark.parametrize("language", BOTH)
def test_kernels_are_restarted_and_deleted(cellbox: Cellbox, scope: str, language: str) -> None:
    cellbox.cell(SET[language], scope=scope, language=language)
    assert cellbox.client.post(f"/v1/kernels/{scope}/{language}/restart").status_code == 200
    probe = {"node": "console.log(typeof x)", "bash": "echo ${x-undefined}"}[language]
    again = cellbox.cell(probe, scope=scope, language=language)
    assert (again["stdout"], again["generation"]) == ("undefined\n", 2)
    assert cellbox.client.delete(f"/v1/kernels/{scope}/{language}").status_code == 200
    assert cellbox.client.get(f"/v1/kernels/{scope}").json()["kernels"] == []
    cellbox.wait_for(
        lambda: not any("bash" in line or "node" in line for line in _commands(cellbox, scope)), within_s=20
    )
    assert cellbox.cell(probe, scope=scope, language=language)["stdout"] == "undefined\n"


def _commands(cellbox: Cellbox, scope: str) -> list[str]:
    """Command lines of what runs in the sandbox, without the boot process and what was forked from it."""
    return [line for line in cellbox.processes(scope).values() if "sandboxd" not in line and "bwrap" not in line]


def test_a_shell_killed_from_elsewhere_costs_no_other_kernel(cellbox: Cellbox, scope: str) -> None:
    cellbox.cell("x = 1", scope=scope)
    pid = cellbox.cell("process.pid", scope=scope, language="node")
    number = text_of(pid)
    assert cellbox.exec(f"kill -9 {number}", scope=scope, language="bash")["exit_code"] == 0
    cellbox.wait_for(lambda: not cellbox.client.get(f"/v1/kernels/{scope}").json()["kernels"][1:], within_s=20)
    after = cellbox.cell("1 + 1", scope=scope, language="node")
    assert (text_of(after), after["generation"]) == ("2", 2)
    assert text_of(cellbox.cell("x", scope=scope)) == "1"


HOSTILE = {
    "bash kills its kernel": ("bash", "kill -9 $PPID; sleep 60"),
    "bash stops itself": ("bash", "kill -STOP $$"),
    "bash stops its kernel": ("bash", "kill -STOP $PPID; sleep 60"),
    "bash closes what it can": ("bash", "for ((i = 0; i < 300; i++)); do eval \"exec $i>&-\"; done 2>/dev/null; sleep 60"),
    "bash floods all it has": ("bash", "for f in /proc/$$/fd/* /proc/$PPID/fd/*; do yes forged >$f & done 2>/dev/null; sleep 60"),
    "node kills its kernel": ("node", "process.kill(process.ppid, 'SIGKILL'); await new Promise(() => {})"),
    "node stops itself": ("node", "process.kill(process.pid, 'SIGSTOP')"),
    "node stops its kernel": ("node", "process.kill(process.ppid, 'SIGSTOP'); while (true) {}"),
    "node closes what it can": (
        "node", "for (let i = 3; i < 300; i++) try { require('fs').closeSync(i) } catch {}\nwhile (true) {}"),
    "node aborts": ("node", "process.abort()"),
    "node fills its heap": ("node", "const all = []; while (true) all.push(new Array(1e5).fill(Math.random()))"),
}  # fmt: skip


@pytest.mark.alone
@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_a_cell_does_is_answered_in_time_and_the_next_one_works(
    cellbox: Cellbox, scope: str, name: str
) -> None:
    language, code = HOSTILE[name]
    cellbox.cell(SET[language], scope=scope, language=language)
    cellbox.cell("y = 1", scope=scope)
    began = time.monotonic()
    answer = cellbox.cell(code, scope=scope, language=language, timeout=3 if "heap" in name else TIMEOUT_S)
    in_time(time.monotonic() - began, 3 * _load() + GRACE_S + SLACK_S)
    assert answer["status"] in ("died", "timeout", "error"), answer
    after = cellbox.cell({"node": "1 + 1", "bash": "echo 2"}[language], scope=scope, language=language)
    assert after["status"] == "ok", after
    assert after["generation"] == (2 if answer["state"] == "lost" else 1)
    if answer["state"] == "kept":
        assert cellbox.cell(SHOW[language], scope=scope, language=language)["stdout"] == "42\n"
    assert text_of(cellbox.cell("y", scope=scope)) == "1"


# --- output ---------------------------------------------------------------------------------------------------------


LARGE = {
    "node: one line": ("node", "console.log('x'.repeat(9_999_999))"),
    "node: many lines": ("node", "for (let i = 0; i < 100_000; i++) console.log('x'.repeat(99))"),
    "bash: one program": ("bash", "yes xxxxxxxxx | head -c 10000000"),
    "bash: many lines": ("bash", f"l={'x' * 99}; for ((i = 0; i < 100000; i++)); do echo $l; done"),
}


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cellbox]:
    if not bubblewrap_is_there():
        pytest.skip("needs root and bubblewrap: apt-get install bubblewrap")
    with running(tmp_path_factory.mktemp("cellbox"), max_output_kb="12000") as service:
        yield service


@pytest.mark.alone
@pytest.mark.parametrize("name", LARGE)
def test_ten_megabytes_are_complete_within_two_seconds(roomy: Cellbox, scope: str, name: str) -> None:
    language, code = LARGE[name]
    roomy.cell("1" if language == "node" else "true", scope=scope, language=language)
    answer = roomy.cell(code, scope=scope, language=language)
    in_time(answer["timing"]["run_ms"], 2000 * _load())
    assert (answer["output_bytes"]["stdout"], len(answer["stdout"])) == (10_000_000, 10_000_000)
    assert not answer["truncated"]
    roomy.client.delete(f"/v1/scopes/{scope}?purge=true")


def _load() -> float:
    """How much longer things take, at least, than on a machine that has nothing else to do."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.alone
def test_late_output_is_never_in_the_next_answer(cellbox: Cellbox, scope: str) -> None:
    late = {
        "node": "setTimeout(() => console.log('late'), 200); console.log('now')",
        "bash": "{ sleep 0.2; echo late; } & echo now",
    }
    wait = {
        "node": "await new Promise(done => setTimeout(done, 500)); console.log('next')",
        "bash": "sleep 0.5; echo next",
    }
    for language in BOTH:
        first = cellbox.cell(late[language], scope=scope, language=language)
        assert (first["stdout"], first["stderr"]) == ("now\n", "")
        in_time(first["timing"]["run_ms"], 190 + 100 * _load())
        for _ in range(2):
            following = cellbox.cell(wait[language], scope=scope, language=language)
            assert (following["stdout"], following["stderr"]) == ("next\n", "")


def test_the_order_of_both_streams_and_of_children(cellbox: Cellbox, scope: str) -> None:
    code = "const { execSync } = require('child_process')\n" + "".join(
        f"console.log({number}); execSync('echo child', {{ stdio: 'inherit' }});\n" for number in range(5)
    )
    answer = cellbox.cell(code, scope=scope, language="node")
    assert answer["stdout"] == "".join(f"{number}\nchild\n" for number in range(5))
    code = "for i in 1 2 3; do echo $i; python3 -c 'print(\"child\")'; done"
    assert cellbox.cell(code, scope=scope, language="bash")["stdout"] == "1\nchild\n2\nchild\n3\nchild\n"


# --- real work ------------------------------------------------------------------------------------------------------


def test_a_node_session_reshapes_a_real_json_file(cellbox: Cellbox, scope: str) -> None:
    """The largest JSON file that comes with npm in every sandbox: its list of licences."""
    node = {"scope": scope, "language": "node", "session": "data"}
    found = cellbox.cell(
        "import { readFileSync, writeFileSync } from 'node:fs'\n"
        "import path from 'node:path'\n"
        "const modules = path.join(path.dirname(process.execPath), '../lib/node_modules/npm/node_modules')\n"
        "const ids = JSON.parse(readFileSync(path.join(modules, 'spdx-license-ids/index.json')))\n"
        "ids.length",
        **node,
    )
    assert found["status"] == "ok", found
    assert int(text_of(found) or 0) > 300
    grouped = cellbox.cell(
        "const families = Object.groupBy(ids, id => id.split('-')[0])\n"
        "const counts = Object.fromEntries(Object.entries(families).map(([name, of]) => [name, of.length])"
        ".sort((a, b) => b[1] - a[1]).slice(0, 3))\n"
        "counts",
        **node,
    )
    (result,) = grouped["results"]
    assert result["data"]["application/json"]["CC"] > 50
    saved = cellbox.cell(
        "writeFileSync('families.json', JSON.stringify({ total: ids.length, counts }))\n"
        "console.table(Object.entries(counts))",
        **node,
    )
    assert "CC" in saved["stdout"]
    check = "import json; d = json.load(open('families.json')); print(d['total'], d['counts']['CC'] > 50)"
    assert cellbox.cell(check, scope=scope, session="data")["stdout"] == f"{text_of(found)} True\n"


def test_a_node_session_uses_a_package_of_its_own(cellbox: Cellbox, scope: str) -> None:
    versions = cellbox.cell("npm --version && npx --version && node --version", scope=scope, language="bash")
    assert versions["exit_code"] == 0, versions["stderr"]
    assert versions["stdout"].splitlines()[2].startswith("v22.")
    made = cellbox.cell(
        "mkdir -p own app && cd own && npm init -y >/dev/null && echo 'module.exports = { twice: x => 2 * x }' > index.js && "
        "tarball=$(npm pack --silent) && cd ../app && npm init -y >/dev/null && npm install --silent ../own/$tarball",
        scope=scope,
        language="bash",
        timeout=60,
    )
    assert made["exit_code"] == 0, made["stderr"]
    used = cellbox.cell("const { twice } = require('own')\ntwice(21)", scope=scope, language="node", cwd="app")
    assert text_of(used) == "42", used


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler on the host, which sandboxes then see")
def test_a_bash_session_builds_and_runs_a_c_project(cellbox: Cellbox, scope: str) -> None:
    bash = {"scope": scope, "language": "bash", "session": "build"}
    assert cellbox.cell("mkdir -p src && cd src && CC=gcc && CFLAGS='-O1 -Wall'", **bash)["exit_code"] == 0
    sources = (
        "cat > sum.h <<'H'\nlong sum(long n);\nH\n"
        "cat > sum.c <<'C'\n#include \"sum.h\"\nlong sum(long n) { long s = 0; while (n) s += n--; return s; }\nC\n"
        "cat > main.c <<'C'\n#include <stdio.h>\n#include <stdlib.h>\n#include \"sum.h\"\n"
        'int main(int c, char **v) { printf("%ld\\n", sum(c > 1 ? atol(v[1]) : 10)); return 0; }\nC\n'
        'build() { for f in "$@"; do $CC $CFLAGS -c "$f" & done; wait; $CC -o sum *.o; }'
    )
    assert cellbox.cell(sources, **bash)["exit_code"] == 0
    built = cellbox.cell("build sum.c main.c && ls *.o | wc -l", timeout=60, **bash)
    assert (built["stdout"].strip(), built["exit_code"]) == ("2", 0), built["stderr"]
    cellbox.cell(
        "told() { until [ -e go ]; do sleep 0.02; done; }; for n in 10 100 1000; do { told; ./sum $n > out.$n; } & done",
        **bash,
    )
    assert cellbox.cell("jobs | wc -l", **bash)["stdout"].strip() == "3"
    collected = cellbox.cell("touch go; wait && cat out.10 out.100 out.1000", **bash)
    assert collected["stdout"] == "55\n5050\n500500\n"
    cellbox.cell("sed -i 's/s += n--/s += undeclared/' sum.c", **bash)
    failed = cellbox.cell("build sum.c; $CC $CFLAGS -c sum.c", timeout=60, **bash)
    assert (failed["status"], failed["exit_code"]) == ("error", 1)
    assert "undeclared" in failed["stderr"]
    assert cellbox.cell("pwd; ./sum", **bash)["stdout"] == "/opt/workspace/src\n55\n"
