"""Node cells ask for input when they really wait for it, and for nothing else."""

from __future__ import annotations

import asyncio

import pytest
from sandboxd.protocol import Asked, Input

from tests.kernels.conftest import Sandbox
from tests.kernels.test_bash_input import Asking

NODE = {"language": "node"}
QUESTIONS = """
const readline = require('node:readline/promises').createInterface({input: process.stdin, output: process.stdout});
const name = await readline.question('name? ');
const word = await readline.question('word? ');
readline.close();
await new Promise((resolve) => setTimeout(resolve, 300));
console.log(`${name}/${word}`);"""


@pytest.fixture
def asking(sandbox: Sandbox) -> Asking:
    return Asking(sandbox)


async def test_readline_asks_for_each_line_and_for_no_more_than_are_wanted(asking: Asking) -> None:
    outcome = await asking.run(QUESTIONS, "Ada L.", "x", **NODE)
    assert (outcome.stdout, outcome.status) == ("name? word? Ada L./x\n", "ok")
    assert asking.asked == [("", False)] * 2
    assert (await asking.run(QUESTIONS.replace("const ", "var "), "a", "b", **NODE)).stdout == "name? word? a/b\n"


@pytest.mark.parametrize(
    "code",
    [
        "const {readSync} = require('fs'); const b = Buffer.alloc(99); console.log(b.toString('utf8', 0, readSync(0, b) - 1))",
        "process.stdin.once('data', (data) => { process.stdin.pause(); process.stdout.write(data); done(); });"
        "let done; await new Promise((resolve) => { done = resolve; })",
        "const lines = require('readline').createInterface(process.stdin);"
        "for await (const line of lines) { console.log(line); lines.close(); }",
        "require('child_process').execFileSync('head', ['-n1'], {stdio: 'inherit'}) && 0",
        "require('child_process').execFileSync('node', ['-e', 'process.stdin.once(\"data\", (d) => {"
        " process.stdout.write(d); process.exit(); })'], {stdio: 'inherit'}) && 0",
    ],
    ids=["readSync", "data", "lines", "child", "child that is node"],
)
async def test_whoever_reads_is_asked_for(asking: Asking, code: str) -> None:
    outcome = await asking.run(code, "text", **NODE)
    assert (outcome.stdout, outcome.status, asking.asked) == ("text\n", "ok", [("", False)]), outcome


@pytest.mark.parametrize("code", ["require('fs').readFileSync(0)", "await process.stdin.toArray()"])
async def test_an_interrupt_ends_the_wait_and_keeps_the_state(asking: Asking, code: str) -> None:
    sandbox = asking.sandbox
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sandbox.run(f"var x = 1; {code}", id="waits", allow_input=True, **NODE))
        await sandbox.until_told(Asked)
        sandbox.kernels.cancel("waits")
    assert (running.result().status, running.result().kernel) == ("interrupted", "new")
    sandbox.kernels.input(Input("waits", "late"))
    assert (await sandbox.run("console.log(x)", **NODE)).stdout == "1\n"


async def test_a_timeout_ends_the_wait(asking: Asking) -> None:
    outcome = await asking.run("var x = 1; require('fs').readFileSync(0)", timeout_s=1.0, **NODE)
    assert (outcome.status, outcome.kernel, asking.asked) == ("timeout", "new", [("", False)])
    assert (await asking.run("x", **NODE)).kernel == "kept"


async def test_a_cell_that_reads_nothing_asks_for_nothing(asking: Asking) -> None:
    code = "process.stdin; await new Promise((resolve) => setTimeout(resolve, 300)); console.log(1)"
    outcome = await asking.run(code, **NODE)
    assert (outcome.stdout, asking.asked) == ("1\n", [])


async def test_without_somebody_who_answers_input_is_at_its_end(sandbox: Sandbox) -> None:
    outcome = await sandbox.run("console.log(require('fs').readFileSync(0).length)", **NODE)
    assert (outcome.stdout, sandbox.told(Asked)) == ("0\n", [])


async def test_input_that_is_given_with_the_cell_is_all_there_is(asking: Asking) -> None:
    outcome = await asking.run("console.log(require('fs').readFileSync(0, 'utf8'))", stdin="1", **NODE)
    assert (outcome.stdout, asking.asked) == ("1\n", [])
