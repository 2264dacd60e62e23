"""A code tool for models that are called in OpenAI's way: the schema, and a dispatcher for one conversation.

session = Client().session(user_id, conversation_id)     # from the application, never from the model
reply = model(messages, tools=[TOOL])                    # any client of yours
messages += [reply, *answers(session, reply)]
"""

import json
from typing import Any

from interpreter.client import CellboxError, Session

TOOL = {
    "type": "function",
    "function": {
        "name": "run_code",
        "description": "Run code in this conversation's sandbox. Variables, imports and functions stay from call to call, in "
        "each language. Put all files of the conversation into /opt/workspace, the working directory; use /opt/user only "
        "for what the user asks to keep beyond this conversation. There is no network.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "language": {"type": "string", "enum": ["python", "node", "bash"]},
                "code": {"type": "string", "description": "The value of a last expression is shown, as in a notebook."},
            },
            "required": ["language", "code"],
            "additionalProperties": False,
        },
    },
}


def answers(session: Session, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Run each tool call of an assistant's message, and return the messages that answer them."""
    calls = message.get("tool_calls") or []
    return [{"role": "tool", "tool_call_id": call["id"], "content": _run(session, call["function"])} for call in calls]


def _run(session: Session, call: dict[str, Any], limit: int = 20_000) -> str:
    try:
        given = json.loads(call["arguments"])
        if call["name"] != "run_code" or not isinstance(given, dict) or given.keys() != {"language", "code"}:
            return "error: there is run_code alone, which takes language and code, and nothing else"
        result = session.run(str(given["code"]), str(given["language"]), timeout=60)
    except (ValueError, CellboxError) as error:  # told to the model, which may do better
        return f"error: {error}"
    told = {"stdout": result.stdout[-limit:], "stderr": result.stderr[-limit:], "value": result.text[:limit]}
    if result.state == "lost":  # a model that is not told uses variables that are no more
        told["note"] = f"variables, imports and functions are gone ({result.reason}); files are there"
    return json.dumps({"status": result.status, "exit_code": result.exit_code, **told})
