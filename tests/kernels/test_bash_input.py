"""Bash cells ask for input when a program really waits for it, and for nothing else."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import pytest
from sandboxd.protocol import Asked, Input, Outcome, Output

from tests.kernels.conftest import LIMITS, Sandbox

STREAMED = msgspec.structs.replace(LIMITS, spill=1_000_000)


class Asking:
    """A cell that is answered.

    asked: prompts, and whether what is asked for is a secret. told_before: what was streamed when the last answer was asked for.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.asked: list[tuple[str, bool]] = []
        self.told_before = ""

    async def run(self, code: str, *answers: str, **options: Any) -> Outcome:
        identity = uuid.uuid4().hex
        self.asked.clear()
        self.sandbox.sent.clear()
        options = {"language": "bash", "allow_input": True, "id": identity} | options
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.sandbox.run(code, **options))
            for answer in answers:
                await self.sandbox.until_told(Asked)
                asked = next(message for message in self.sandbox.sent if isinstance(message, Asked))
                before = self.sandbox.sent[: self.sandbox.sent.index(asked)]
                self.told_before = "".join(message.text for message in before if isinstance(message, Output))
                self.sandbox.sent.remove(asked)
                self.asked.append((asked.prompt, asked.password))
                self.sandbox.kernels.input(Input(identity, answer))
        self.asked += [
            (message.prompt, message.password) for message in self.sandbox.sent if isinstance(message, Asked)
        ]
        return running.result()


@pytest.fixture
def asking(sandbox: Sandbox) -> Asking:
    return Asking(sandbox)


async def test_read_asks_with_its_prompt_and_gets_a_line(asking: Asking) -> None:
    code = 'read -p "name? " name; read -rsp "word? " word; read more; echo "$name/$word/$more"'
    outcome = await asking.run(code, "Ada L.", r"a\b", "x")
    assert (outcome.stdout, outcome.status) == ("Ada L./a\\b/x\n", "ok")
    assert asking.asked == [("name? ", False), ("word? ", True), ("", False)]
    assert "read" not in (await asking.sandbox.run("declare -F", language="bash")).stdout


async def test_read_keeps_its_meaning(asking: Asking) -> None:
    code = """
two() { local a b; IFS=: read -r a b; echo "$b,$a"; }
two
read -a words
echo "${#words[@]}"
read -n 2 start
read
echo "$start|$REPLY"
echo "${a-unset} $?" """
    outcome = await asking.run(code, "1:2", "x y z", "abcd")
    assert outcome.stdout == "2,1\n3\nab|cd\nunset 0\n"


@pytest.mark.parametrize(
    "code",
    [
        "head -n 1",
        "python3 -c 'print(input())'",
        "exec 3<&0; read -u 3 x; echo $x",
        "(read x; echo $x)",
        "exec 5<&0; head -n 1 <&5 | cat",
        "python3 -c 'import asyncio, sys\nasync def main():\n r = asyncio.StreamReader()\n"
        " await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(r), sys.stdin)\n"
        ' print((await r.readline()).decode(), end="")\nasyncio.run(main())\'',
    ],
    ids=["program", "python", "other descriptor", "subshell", "pipeline", "epoll"],
)
async def test_programs_that_read_are_asked_for(asking: Asking, code: str) -> None:
    outcome = await asking.run(code, "text")
    assert (outcome.stdout, outcome.status, asking.asked) == ("text\n", "ok", [("", False)])


async def test_what_was_printed_is_told_before_it_is_asked(asking: Asking) -> None:
    outcome = await asking.run('printf "name: "; read x; echo "$x"', "Ada", stream=True, limits=STREAMED)
    assert (outcome.stdout, asking.told_before) == ("name: Ada\n", "name: ")


async def test_who_does_not_wait_for_the_input_of_the_cell_is_not_asked_for(asking: Asking) -> None:
    code = """
while read -p no line; do echo "$line"; done < <(echo 1; sleep 0.2; echo 2)
sleep 0.3 | cat
read -p no x <<<3
echo $x"""
    outcome = await asking.run(code)
    assert (outcome.stdout, asking.asked) == ("1\n2\n3\n", [])


async def test_a_line_that_is_longer_than_a_pipe_comes_whole(asking: Asking) -> None:
    outcome = await asking.run("read x; echo ${#x}", "x" * 200_000)
    assert outcome.stdout == "200000\n"


async def test_an_interrupt_ends_the_wait_and_keeps_the_shell(asking: Asking) -> None:
    sandbox = asking.sandbox
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sandbox.run("x=1; read y", language="bash", id="waits", allow_input=True))
        await sandbox.until_told(Asked)
        sandbox.kernels.cancel("waits")
    assert (running.result().status, running.result().kernel) == ("interrupted", "new")
    sandbox.kernels.input(Input("waits", "late"))
    outcome = await asking.run('read z; echo "$x/$y/$z"', "in time")
    assert outcome.stdout == "1//in time\n"


async def test_a_cell_that_exits_leaves_no_read_behind(asking: Asking) -> None:
    assert (await asking.run("read x; exit 3", "text")).exit_code == 3
    assert (await asking.run("declare -F; echo $x")).stdout.splitlines()[-1] == "text"
    assert (await asking.sandbox.run("declare -F | grep -e read -e cellbox", language="bash")).stdout == ""


async def test_a_timeout_ends_the_wait(asking: Asking) -> None:
    outcome = await asking.run("x=1; cat", timeout_s=1.0)
    assert (outcome.status, asking.asked) == ("timeout", [("", False)])
    assert (await asking.run("echo $x")).stdout == "1\n"


async def test_without_somebody_who_answers_input_is_at_its_end(sandbox: Sandbox) -> None:
    outcome = await sandbox.run("read -p prompt x; echo $?; cat; echo over", language="bash")
    assert (outcome.stdout, sandbox.told(Asked)) == ("1\nover\n", [])


async def test_input_that_is_given_with_the_cell_is_all_there_is(asking: Asking) -> None:
    outcome = await asking.run("read x; echo $x; read y || echo over", stdin="1\n")
    assert (outcome.stdout, asking.asked) == ("1\nover\n", [])


async def test_a_read_of_the_users_own_stays(asking: Asking) -> None:
    await asking.run("read() { echo mine; }")
    assert (await asking.run("read x")).stdout == "mine\n"
    assert (await asking.run("read x")).stdout == "mine\n"
