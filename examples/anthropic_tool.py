"""A code tool for models that are called in Anthropic's way: the schema, and a dispatcher for one conversation.

session = Client().session(user_id, conversation_id)     # from the application, never from the model
reply = model(messages, tools=[TOOL])                    # any client of yours
messages += [reply, {"role": "user", "content": answers(session, reply["content"])}]
"""

import base64
from typing import Any

from interpreter.client import CellboxError, Session

TOOL = {
    "name": "run_code",
    "description": "Run code in this conversation's sandbox. Variables, imports and functions stay from call to call, in each "
    "language. Put all files of the conversation into /opt/workspace, the working directory; use /opt/user only for what the "
    "user asks to keep beyond this conversation. Figures are shown to you. There is no network.",
    "input_schema": {
        "type": "object",
        "properties": {
            "language": {"type": "string", "enum": ["python", "node", "bash"]},
            "code": {"type": "string", "description": "The value of a last expression is shown, as in a notebook."},
        },
        "required": ["language", "code"],
        "additionalProperties": False,
    },
}


def answers(session: Session, content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run each tool use of an assistant's content, and return the blocks that answer them."""
    return [_answer(session, block) for block in content if block["type"] == "tool_use"]


def _answer(session: Session, use: dict[str, Any], limit: int = 20_000) -> dict[str, Any]:
    answer = {"type": "tool_result", "tool_use_id": use["id"]}
    if use["name"] != "run_code" or use["input"].keys() != {"language", "code"}:
        return {**answer, "is_error": True, "content": "There is run_code alone, which takes language and code only."}
    try:
        result = session.run(str(use["input"]["code"]), str(use["input"]["language"]), timeout=60)
    except CellboxError as error:  # told to the model, which may do better
        return {**answer, "is_error": True, "content": str(error)}
    ended = f"{result.status}, exit code {result.exit_code}"
    if result.state == "lost":  # a model that is not told uses variables that are no more
        ended += f"; variables, imports and functions are gone ({result.reason}); files are there"
    parts = [result.stdout[-limit:], result.text[:limit], result.stderr[-limit:], ended]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": "\n".join(part for part in parts if part)}]
    for image in result.images[:5]:
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(image).decode()}
        blocks.append({"type": "image", "source": source})
    return {**answer, "is_error": not result.ok, "content": blocks}
