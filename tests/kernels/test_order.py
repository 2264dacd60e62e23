"""What is streamed has the order of the code: text and displays alternate as they were made."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from sandboxd.protocol import Displayed, Output

from tests.attempts import in_time
from tests.kernels.conftest import LIMITS, Sandbox

STREAMED = msgspec.structs.replace(LIMITS, spill=10_000_000)

CELLS = {
    "python": """
from IPython.display import display
for n in range(200):
    print(f"t{n}", flush=True)
    display({"text/plain": f"d{n}"}, raw=True)
""",
    "node": 'for (let n = 0; n < 200; n += 1) { console.log(`t${n}`); display.mime({"text/plain": `d${n}`}); }',
    "bash": 'for ((n = 0; n < 200; n++)); do echo "t$n"; echo -n "d$n" >shown; display shown; done',
}
ALTERNATING = [word for n in range(200) for word in (f"t{n}", f"d{n}")]


def streamed(sandbox: Sandbox) -> list[str]:
    """Words of text and of displays, as they were told."""
    words: list[str] = []
    for message in sandbox.sent:
        if isinstance(message, Output):
            words += message.text.split()
        elif isinstance(message, Displayed):
            words += [plain(entry) for entry in message.entries]
    return words


def plain(entry: Any) -> str:
    return str(entry.data["text/plain"])


@pytest.mark.parametrize("language", CELLS)
async def test_text_and_displays_alternate_as_they_were_made(sandbox: Sandbox, language: str) -> None:
    outcome = await sandbox.run(CELLS[language], language=language, stream=True, limits=STREAMED)
    assert outcome.status == "ok", outcome
    assert streamed(sandbox) == ALTERNATING
    assert [plain(entry) for entry in outcome.results] == ALTERNATING[1::2]
    assert outcome.stdout.split() == ALTERNATING[::2]


async def test_what_children_write_has_its_place_too(sandbox: Sandbox) -> None:
    code = """
import os
from IPython.display import display
for n in range(50):
    os.write(1, b"t%d\\n" % n)
    display({"text/plain": f"d{n}"}, raw=True)"""
    await sandbox.run(code, stream=True, limits=STREAMED)
    assert streamed(sandbox) == ALTERNATING[:100]


async def test_a_large_display_comes_before_the_text_behind_it(sandbox: Sandbox) -> None:
    code = """
from IPython.display import display
for n in range(5):
    display({"text/plain": "d" * 1_000_000}, raw=True)
    print(f"t{n}", flush=True)"""
    limits = msgspec.structs.replace(STREAMED, results=10_000_000)
    await sandbox.run(code, stream=True, limits=limits)
    assert [word[0] for word in streamed(sandbox)] == ["d", "t"] * 5


FORGED = """
import os, sys
streams = sys.stdout._streams
os.write(1, streams._prefix + b"d;999999\\a")
print("behind")"""


@pytest.mark.alone
async def test_a_forged_place_holds_up_nothing_but_its_own_text(sandbox: Sandbox) -> None:
    """All that was published has come by the end; nobody waits for more."""
    async with asyncio.timeout(20):
        outcome = await sandbox.run(FORGED, stream=True, limits=STREAMED)
    assert (outcome.status, outcome.stdout) == ("ok", "behind\n")
    in_time(outcome.run_ms, 900)
    assert (await sandbox.run("print(2)", stream=True, limits=STREAMED)).stdout == "2\n"


async def test_text_behind_a_place_whose_message_never_comes_is_told_while_the_code_runs(sandbox: Sandbox) -> None:
    code = FORGED + "\nimport time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sandbox.run(code, stream=True, limits=STREAMED))
        await sandbox.until_told(Output)
        (sandbox.workspace / "go").touch()
    assert running.result().stdout == "behind\n"


async def test_nothing_is_marked_where_nobody_listens(sandbox: Sandbox) -> None:
    code = """
import os, sys
streams = sys.stdout._streams
display({"text/plain": "d"}, raw=True)
print(streams._places)"""
    assert (await sandbox.run(code)).stdout == "0\n"
    assert (await sandbox.run(code, stream=True, limits=STREAMED)).stdout == "1\n"
