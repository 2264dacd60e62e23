"""Who waits for the input of a cell, as the system tells it."""

import asyncio
import os
import platform
import subprocess
from contextlib import aclosing

import pytest
from cellbox_wire import AskedInput, Cell, reading


def started(path, *command):
    """A program that reads ``path``."""
    with open(path) as stdin:
        return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE)


def cell(**fields):
    values = {
        "number": 1,
        "count": 1,
        "code": "",
        "env": {},
        "cwd": None,
        "stdin": None,
        "silent": False,
        "ordered": False,
    }
    return Cell(**values | {"publish": print, "ask": ask} | fields)


async def ask(prompt, secret):
    raise AssertionError(prompt, secret)


def test_a_cell_asks_where_somebody_can_answer_and_the_system_can_tell(monkeypatch):
    assert reading.asking(cell()) is ask
    assert reading.asking(cell(ask=None)) is None
    assert reading.asking(cell(stdin="all of it")) is None
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    assert reading.asking(cell()) is None


@pytest.mark.parametrize("below", [False, True])
async def test_a_process_that_reads_is_asked_for_once_a_line(tmp_path, below):
    asked = []

    async def answer(pid):
        asked.append(pid)
        return f"line {len(asked)}"

    path = tmp_path / "in"
    reader = None
    async with asyncio.timeout(20), aclosing(AskedInput(path, lambda: os.getpid() if below else reader.pid, answer)):
        reader = started(path, "head", "-n", "2")
        said, _ = await asyncio.to_thread(reader.communicate)
    assert (said, asked) == (b"line 1\nline 2\n", [reader.pid] * 2)
    assert not path.exists()


async def test_who_reads_is_at_its_end_when_nobody_is_asked_any_more(tmp_path):
    came = asyncio.Event()

    async def never(_pid):
        came.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(20):
        asked = AskedInput(tmp_path / "in", os.getpid, never)
        reader = started(asked.path, "cat")
        await came.wait()
        await asked.aclose()
        asked.close()
        assert await asyncio.to_thread(reader.communicate) == (b"", None)
