"""Files that come with an execution, and files that its answer tells of, on each backend."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest

from tests.e2e import wheels
from tests.e2e.conftest import CONFINED, Cellbox

RUNTIMES = CONFINED

WRITING = {
    "python": "open('out', 'w').write('12345') and None",
    "node": "require('fs').writeFileSync('out', '12345')",
    "bash": "printf 12345 > out",
}


def run(cellbox: Cellbox, scope: str, code: str, **fields: Any) -> dict[str, Any]:
    answer = cellbox.exec(code, scope=scope, session="chatA", **fields)
    assert answer["files_incomplete"] is None
    return answer


def told(answer: dict[str, Any]) -> list[tuple[str, str, int | None]]:
    return [(each["path"], each["change"], each["size"]) for each in answer["files"]]


# --- files that come ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("language", list(WRITING))
def test_files_are_there_before_the_code_runs(cellbox: Cellbox, scope: str, language: str, stateful: bool) -> None:
    files = {"in/a b.txt": "grüße\n", "in/b": {"base64": base64.b64encode(b"\0\xff").decode()}}
    reading = {
        "python": "print(open('in/a b.txt').read(), open('in/b', 'rb').read().hex())",
        "node": "const read = require('fs').readFileSync; console.log(`${read('in/a b.txt')}`, read('in/b').toString('hex'))",
        "bash": "cat 'in/a b.txt'; od -An -tx1 in/b | tr -d ' '",
    }
    answer = run(cellbox, scope, reading[language], language=language, stateful=stateful, files=files)
    assert answer["stdout"].split() == ["grüße", "00ff"]
    assert answer["files"] == []
    assert (
        run(cellbox, scope, "ls -l in/b | cut -c1-10; echo more >> in/b", language="bash")["stdout"] == "-rw-r--r--\n"
    )


def test_where_one_file_cannot_be_written_none_is_and_nothing_runs(cellbox: Cellbox, scope: str) -> None:
    run(cellbox, scope, "mkdir -p d && echo old > f", language="bash")
    for name, code in (("d", "file_exists"), ("f/in", "file_exists")):
        refused = cellbox.post(
            scope=scope,
            session="chatA",
            language="bash",
            code="touch ran",
            files={"new/deep/a": "1", "f2": "2", name: "3"},
        )
        assert (refused.status_code, refused.json()["code"]) == (409, code)
        assert f"'{name}'" in refused.json()["message"]
        assert run(cellbox, scope, "cat f; ls", language="bash")["stdout"].split() == ["old", "d", "f"]
    run(cellbox, scope, "ln -s /etc out", language="bash")
    refused = cellbox.post(scope=scope, session="chatA", language="bash", code="touch ran", files={"out/x": "1"})
    assert (refused.status_code, refused.json()["code"]) == (403, "outside_directory")
    assert run(cellbox, scope, "ls ran", language="bash")["exit_code"] != 0


def test_files_of_an_execution_that_waits_are_written_when_it_is_its_turn(cellbox: Cellbox, scope: str) -> None:
    run(cellbox, scope, "0", stateful=True)
    slow = threading.Thread(
        target=run,
        args=(
            cellbox,
            scope,
            "import time; open('begun', 'w').close(); time.sleep(1); open('seen', 'w').write(open('f').read())",
        ),
        kwargs={"stateful": True, "files": {"f": "first"}},
    )
    slow.start()
    url = f"/v1/files/{scope}/begun?session=chatA"
    cellbox.wait_for(lambda: cellbox.client.get(url).status_code == 200, within_s=20)
    answer = run(cellbox, scope, "print(open('seen').read(), open('f').read())", stateful=True, files={"f": "second"})
    slow.join()
    assert answer["stdout"] == "first second\n"


def test_requirements_that_are_there_are_no_hindrance_and_others_are_said(cellbox: Cellbox, scope: str) -> None:
    assert run(cellbox, scope, "print(1)", files={"requirements.txt": "numpy\n"}, stateful=True)["stdout"] == "1\n"
    for stateful in (False, True):
        answer = run(
            cellbox,
            scope,
            "open('ran', 'w').close()",
            files={"requirements.txt": "no-such-thing-at-all==1.0\n"},
            stateful=stateful,
        )
        assert (answer["status"], answer["exit_code"], answer["state"]) == ("error", 1, None)
        assert answer["error"]["name"] == "RequirementsNotInstalled"
        assert "no-such-thing-at-all" in answer["stderr"]
        assert "SANDBOX_NETWORK=none" in answer["stderr"]
    assert run(cellbox, scope, "ls ran", language="bash")["exit_code"] != 0
    assert run(cellbox, scope, "print(2)", stateful=True)["state"] == "kept"


@pytest.mark.parametrize("stateful", [False, True])
def test_a_requirement_that_comes_along_is_installed_before_the_code_runs(
    cellbox: Cellbox, scope: str, stateful: bool
) -> None:
    code = f"import {wheels.NAME}; print({wheels.NAME}.SAID, {wheels.NAME}.__file__)"
    assert "ModuleNotFoundError" in str(run(cellbox, scope, code, stateful=stateful))
    files = {
        wheels.FILE: {"base64": base64.b64encode(wheels.wheel()).decode()},
        "requirements.txt": f"./{wheels.FILE}\n",
    }
    answer = run(cellbox, scope, code, stateful=stateful, files=files)
    assert answer["stdout"].startswith(f"{wheels.SAID} /opt/user/.local/lib/"), answer
    assert answer["files"] == [], "what the caller has sent is no news"


def test_what_pip_says_comes_first_in_a_stream(cellbox: Cellbox, scope: str) -> None:
    body = {
        "scope": scope,
        "session": "chatA",
        "language": "python",
        "code": "1",
        "files": {"requirements.txt": "no-such-thing-at-all\n"},
    }
    lines = cellbox.client.post("/v1/exec", json=body, headers={"Accept": "text/event-stream"}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert events[0]["type"] == "started"
    assert "no-such-thing-at-all" in "".join(each["text"] for each in events if each["type"] == "stderr")
    assert (events[-1]["type"], events[-1]["status"]) == ("finished", "error")


# --- files that are told of ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("language", list(WRITING))
def test_an_answer_tells_what_was_created_changed_and_deleted(
    cellbox: Cellbox, scope: str, language: str, stateful: bool
) -> None:
    how = {"language": language, "stateful": stateful}
    assert told(run(cellbox, scope, WRITING[language], **how)) == [("out", "created", 5)]
    assert told(run(cellbox, scope, WRITING[language], **how)) == [("out", "changed", 5)]
    nothing = {"python": "1", "node": "1", "bash": "true"}[language]
    assert told(run(cellbox, scope, nothing, **how)) == []
    deleting = {"python": "import os; os.remove('out')", "node": "require('fs').rmSync('out')", "bash": "rm out"}
    assert told(run(cellbox, scope, deleting[language], **how)) == [("out", "deleted", None)]


@pytest.mark.parametrize("stateful", [False, True])
def test_what_was_written_before_a_timeout_a_death_or_an_error_is_told(
    cellbox: Cellbox, scope: str, stateful: bool
) -> None:
    for number, end in enumerate(("import time; time.sleep(60)", "import os; os._exit(3)", "1 / 0")):
        answer = run(cellbox, scope, f"open('f{number}', 'w').close()\n{end}", stateful=stateful, timeout=1)
        assert answer["status"] != "ok"
        assert told(answer) == [(f"f{number}", "created", 0)]


def test_files_are_told_in_streams_too_and_by_bytes_where_they_are_not_utf8(cellbox: Cellbox, scope: str) -> None:
    body = {"scope": scope, "session": "chatA", "language": "python", "code": "open(b'\\xff', 'w').close()"}
    lines = cellbox.client.post("/v1/exec", json=body, headers={"Accept": "text/event-stream"}).text.splitlines()
    finished = json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))
    assert finished["files"] == [{"path": "\ufffd", "change": "created", "size": 0, "raw": "%FF"}]
    assert cellbox.client.get(f"/v1/files/{scope}/%FF?session=chatA").status_code == 200


def test_uploads_between_two_executions_are_in_no_answer(cellbox: Cellbox, scope: str) -> None:
    run(cellbox, scope, "1", stateful=True)
    for number in range(5):
        where = f"/v1/files/{scope}/d/{number}?session=chatA"
        assert cellbox.client.put(where, content=b"x").status_code == 201
        assert told(run(cellbox, scope, "1", stateful=True)) == []


def test_a_first_call_tells_nothing_of_what_its_kernel_has_made(cellbox: Cellbox, scope: str) -> None:
    for language in ("python", "node", "bash"):
        answer = cellbox.exec("", language=language, scope=scope, stateful=True)
        assert (answer["files"], answer["files_incomplete"]) == ([], None)


def test_more_entries_than_are_looked_at_are_said(cellbox: Cellbox, scope: str) -> None:
    answer = cellbox.exec(
        "mkdir many && cd many && seq 6000 | xargs touch && touch ../here",
        language="bash",
        scope=scope,
        session="chatA",
    )
    assert answer["files_incomplete"] == "too_many_entries"
    assert told(answer) == [("here", "created", 0)]


def test_where_the_sandbox_ends_with_the_execution_nothing_is_known_and_that_is_said(
    cellbox: Cellbox, scope: str
) -> None:
    answer = cellbox.cell("import os; open('f', 'w').close(); os.kill(-1, 9)", scope=scope)
    assert (answer["status"], answer["files"], answer["files_incomplete"]) == ("died", [], "not_known")
    answer = cellbox.cell("import os; os.remove('f')", scope=scope)
    assert told(answer) == [("f", "deleted", None)]
