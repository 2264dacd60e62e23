"""The examples, with calls as models make them, against a real service."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from interpreter.client import Client
from tests.client.conftest import cellbox, client, scope  # noqa: F401 - fixtures
from tests.e2e.conftest import KEY, Cellbox

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_recorded_calls_in_openais_way_are_run_and_answered(client: Client, scope: str) -> None:  # noqa: F811
    tool = example("openai_tool")
    session = client.session(scope, "chat1")
    first, second, last = [tool.answers(session, message) for message in RECORDED["openai"]]
    assert [(answer["role"], answer["tool_call_id"]) for answer in first] == [("tool", "call_1"), ("tool", "call_2")]
    told = [json.loads(answer["content"]) for answer in first + second]
    assert told[0] == {"status": "ok", "exit_code": 0, "stdout": "[1, 2, 3]\n", "stderr": "", "value": "6"}
    assert told[1]["stdout"] == "/opt/workspace\n"
    assert (told[2]["status"], "IndexError" in told[2]["stderr"]) == ("error", True)
    assert last == []


def test_recorded_calls_in_anthropics_way_are_run_and_answered(client: Client, scope: str) -> None:  # noqa: F811
    tool = example("anthropic_tool")
    session = client.session(scope, "chat1")
    (shown,), (failed,) = [tool.answers(session, message["content"]) for message in RECORDED["anthropic"]]
    assert (shown["type"], shown["tool_use_id"], shown["is_error"]) == ("tool_result", "toolu_1", False)
    text, image = shown["content"]
    assert text["text"].startswith("done\n")
    assert base64.b64decode(image["source"]["data"]).startswith(b"\x89PNG")
    assert (failed["is_error"], "ReferenceError" in failed["content"][0]["text"]) == (True, True)


@pytest.mark.parametrize("smuggled", ["scope", "session", "env", "execution_id"])
def test_what_the_application_decides_is_never_taken_from_a_model(smuggled: str) -> None:
    class Untouched:
        def run(self, *_: Any, **__: Any) -> None:
            raise AssertionError("it was run")

    given = {"language": "python", "code": "1", smuggled: "somebody-else"}
    call = {"id": "c", "function": {"name": "run_code", "arguments": json.dumps(given)}}
    (answer,) = example("openai_tool").answers(Untouched(), {"tool_calls": [call]})
    assert answer["content"].startswith("error: ")
    use = {"type": "tool_use", "id": "t", "name": "run_code", "input": given}
    (block,) = example("anthropic_tool").answers(Untouched(), [use])
    assert block["is_error"] is True


def test_the_schemas_name_no_scope_and_say_where_files_belong() -> None:
    function = example("openai_tool").TOOL["function"]
    other = example("anthropic_tool").TOOL
    for schema, text in (
        (function["parameters"], function["description"]),
        (other["input_schema"], other["description"]),
    ):
        assert set(schema["properties"]) == set(schema["required"]) == {"language", "code"}
        assert schema["additionalProperties"] is False
        assert "all files of the conversation into /opt/workspace" in text
        assert "/opt/user only for what the user asks to keep" in text


def test_dispatchers_are_short() -> None:
    for name in ("openai_tool", "anthropic_tool"):
        source = (EXAMPLES / f"{name}.py").read_text()
        assert len(source.partition("\n}\n")[2].splitlines()) <= 40


def test_a_call_that_is_no_json_is_answered_to_the_model(client: Client, scope: str) -> None:  # noqa: F811
    call = {"id": "c", "function": {"name": "run_code", "arguments": "{"}}
    (answer,) = example("openai_tool").answers(client.session(scope), {"tool_calls": [call]})
    assert answer["content"].startswith("error: ")
    call["function"] = {"name": "run_code", "arguments": '{"language": "cobol", "code": "1"}'}
    (answer,) = example("openai_tool").answers(client.session(scope), {"tool_calls": [call]})
    assert "language" in answer["content"]


def test_a_model_is_told_that_its_variables_are_gone(client: Client, scope: str) -> None:  # noqa: F811
    given = {"language": "python", "code": "import os; os._exit(3)"}
    call = {"id": "c", "function": {"name": "run_code", "arguments": json.dumps(given)}}
    (answer,) = example("openai_tool").answers(client.session(scope, "chat1"), {"tool_calls": [call]})
    gone = "variables, imports and functions are gone (exit); files are there"
    assert json.loads(answer["content"])["note"] == gone
    use = {"type": "tool_use", "id": "t", "name": "run_code", "input": given}
    (block,) = example("anthropic_tool").answers(client.session(scope, "chat2"), [use])
    assert (block["is_error"], block["content"][0]["text"]) == (True, f"died, exit code 3; {gone}")


def test_three_plain_functions_run_upload_and_download(
    cellbox: Cellbox,  # noqa: F811
    scope: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CELLBOX_URL", cellbox.url)
    monkeypatch.setenv("CELLBOX_API_KEY", KEY)
    plain = example("requests_client")
    (tmp_path / "in").write_bytes(b"41")
    plain.upload(scope, "chat1", tmp_path / "in", "data/n")
    plain.run(scope, "chat1", "n = int(open('data/n').read()) + 1")
    assert plain.run(scope, "chat1", "open('out', 'w').write(str(n)); n")["results"][0]["data"] == {"text/plain": "42"}
    plain.download(scope, "chat1", "out", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"42"
    with pytest.raises(ValueError, match="no path"):
        plain.download(scope, "chat1", "../other/x", tmp_path / "x")
