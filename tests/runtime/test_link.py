"""The link ends and comes back: nothing of what runs is lost, nothing runs twice, and what is kept meanwhile is bounded."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxd.link import Link, Unsettled
from sandboxd.protocol import (
    MAX_KNOWN,
    MAX_RUNNING,
    Alive,
    Cancel,
    Finished,
    FromSandbox,
    KernelGone,
    KernelStopped,
    Known,
    Outcome,
    OutputLimits,
    Preparing,
    Progress,
    Refused,
    Result,
    Settled,
    Started,
    StillWriting,
    StopKernel,
    UserError,
    decode_from_sandbox,
    encode,
)

from tests.attempts import in_time
from tests.runtime.box import PYTHON, Box, box
from tests.waiting import until


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Box]:
    with box(tmp_path) as opened:
        yield opened


def told(sandbox: Box) -> list[FromSandbox]:
    """What has been sent until now, and not been taken yet."""
    sandbox.send(StopKernel(request="until-here", language="none", context="none"))
    messages: list[FromSandbox] = []
    while not isinstance(message := sandbox.receive(), KernelStopped):
        messages.append(message)
    return messages


def wait_for(*files: Path) -> None:
    until(lambda: all(file.exists() for file in files))


def running(*executions: str) -> list[Known]:
    return [Known(execution, "running") for execution in executions]


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


# --- what runs goes on ----------------------------------------------------------------------------------------------


def test_a_cell_goes_on_through_ten_links_and_is_answered_once(sandbox: Box) -> None:
    code = (
        "import os, time\nopen('began', 'a').write('x')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('end')"
    )
    assert sandbox.run("x = 41", stateful=True, id="before").outcome.kernel == "new"
    sandbox.send(Settled(ids=["before"]))
    cell = sandbox.begin(code, stateful=True)
    wait_for(sandbox.workspace / "began")
    for _ in range(10):
        sandbox.hang_up()
        sandbox.listen_again()
        assert (sandbox.hello.known, sandbox.hello.alive) == (running(cell), [Alive("python", "default")])
    (sandbox.workspace / "go").touch()
    outcome = sandbox.end(cell).outcome
    assert (outcome.status, outcome.stdout, outcome.kernel) == ("ok", "end\n", "kept")
    assert (sandbox.workspace / "began").read_text() == "x"
    assert told(sandbox) == []
    assert sandbox.run("x + 1", stateful=True).outcome.results[0].data == {"text/plain": "42"}


@pytest.mark.parametrize("language", ["python", "bash", "node"])
def test_a_run_goes_on_through_ten_links_and_is_answered_once(sandbox: Box, language: str) -> None:
    code = {
        "bash": "echo x >> began; while ! [ -e go ]; do sleep 0.01; done; echo end",
        "python": "import os, time\nopen('began', 'a').write('x\\n')\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        "print('end')",
        "node": "const fs = require('fs'); fs.appendFileSync('began', 'x\\n')\n"
        "const timer = setInterval(() => { if (fs.existsSync('go')) { clearInterval(timer); console.log('end') } }, 5)",
    }[language]
    run = sandbox.begin(code, language)
    wait_for(sandbox.workspace / "began")
    for _ in range(10):
        sandbox.hang_up()
        sandbox.listen_again()
        assert sandbox.hello.known == running(run)
    (sandbox.workspace / "go").touch()
    assert sandbox.end(run).outcome.stdout == "end\n"
    assert (sandbox.workspace / "began").read_text() == "x\n"
    assert told(sandbox) == []


@pytest.mark.alone
def test_the_clock_of_an_execution_goes_on_without_a_link(sandbox: Box) -> None:
    sandbox.run("x = 1", stateful=True)
    cell = sandbox.begin("while True: pass", stateful=True, timeout_s=0.3)
    sandbox.hang_up()
    time.sleep(0.8)
    sandbox.listen_again()
    assert Known(cell, "finished") in sandbox.hello.known
    outcome = sandbox.end(cell).outcome
    assert (outcome.status, outcome.kernel) == ("timeout", "kept")
    in_time(outcome.run_ms, 700)


def test_an_execution_is_cancelled_over_the_next_link(sandbox: Box) -> None:
    cell = sandbox.begin("import time; open('began', 'w'); time.sleep(600)", stateful=True)
    run = sandbox.begin("touch began-too; sleep 600", "bash")
    wait_for(sandbox.workspace / "began", sandbox.workspace / "began-too")
    sandbox.hang_up()
    sandbox.listen_again()
    for execution in (cell, run):
        sandbox.send(Cancel(id=execution))
    assert [sandbox.end(execution).outcome.status for execution in (cell, run)] == ["interrupted"] * 2


def test_the_output_so_far_is_told_again_from_its_start(sandbox: Box) -> None:
    for stateful in (False, True):
        run = sandbox.begin(
            "print('first', flush=True)\nimport time; time.sleep(600)", stateful=stateful, timeout_s=1e6
        )
        for _ in range(3):
            while not isinstance(message := sandbox.receive(), Progress):
                pass
            assert (message.id, message.text) == (run, "first\n")
            sandbox.hang_up()
            sandbox.listen_again()
        sandbox.send(Cancel(id=run))
        sandbox.end(run)


def test_whoever_waits_for_a_kernel_is_told_apart(sandbox: Box) -> None:
    folder = sandbox.user / ".local/share/jupyter/kernels/slow"
    folder.mkdir(parents=True)
    kernel = f"while ! [ -e go ]; do sleep 0.01; done; exec {PYTHON} -m ipykernel_launcher -f {{connection_file}}"
    argv = ["sh", "-c", kernel]
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "slow", "language": "python"}))
    cell = sandbox.begin("print(1)", "slow", stateful=True)
    assert sandbox.receive() == Preparing(cell)
    sandbox.hang_up()
    sandbox.listen_again()
    assert sandbox.hello.known == [Known(cell, "running", preparing=True)]
    (sandbox.workspace / "go").touch()
    while (message := sandbox.receive()) == StillWriting():
        pass  # such kernels write something when they start
    assert message == Started(cell)
    assert sandbox.end(cell).outcome.stdout == "1\n"


def test_a_kernel_that_ended_meanwhile_is_told_after_what_it_answered(sandbox: Box) -> None:
    sandbox.begin("import os; print(os.getpid())", stateful=True, id="cell")
    pid = int(sandbox.end("cell").outcome.stdout)
    kernels = sandbox.workspace.parent / "run"
    assert list(kernels.glob("k*"))
    sandbox.hang_up()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not list(kernels.glob("k*")))  # removed once its end is noticed and noted
    sandbox.listen_again()
    answer, gone = sandbox.receive(), sandbox.receive()
    assert isinstance(answer, Finished)
    assert (answer.id, gone) == ("cell", KernelGone("python", "default", "crash"))
    assert sandbox.hello.alive == []
    sandbox.run("1", stateful=True, id="next")
    sandbox.send(Settled(ids=["cell", "next"]))
    assert told(sandbox) == []
    sandbox.hang_up()
    sandbox.listen_again()
    assert sandbox.hello.alive == [Alive("python", "default")]
    assert told(sandbox) == []  # of a kernel that runs anew, no end


# --- answers are kept until they are settled ------------------------------------------------------------------------


def test_an_answer_comes_on_each_link_until_it_is_settled(sandbox: Box) -> None:
    answer = sandbox.run("print(1)")
    refused = sandbox.end(sandbox.begin("1", "klingon"))
    for _ in range(3):
        sandbox.hang_up()
        sandbox.listen_again()
        assert sandbox.hello.known == [Known(answer.id, "finished"), Known(refused.id, "finished")]
        assert told(sandbox) == [answer, refused]
    sandbox.send(Settled(ids=["unknown", answer.id, answer.id]))
    assert told(sandbox) == []
    sandbox.hang_up()
    sandbox.listen_again()
    assert sandbox.hello.known == [Known(refused.id, "finished")]
    assert told(sandbox) == [refused]


def test_an_id_that_has_ended_is_not_run_again_but_answered_again(sandbox: Box) -> None:
    code = "open('count', 'a').write('x')"
    first = sandbox.end(sandbox.begin(code, id="same"))
    assert sandbox.end(sandbox.begin(code, id="same")) == first
    sandbox.hang_up()
    sandbox.listen_again()
    assert sandbox.end(sandbox.begin(code, id="same")) == first
    assert (sandbox.workspace / "count").read_text() == "x"


def test_what_the_next_hello_does_not_know_never_runs(sandbox: Box) -> None:
    for number in range(10):
        (sandbox.workspace / "count").write_text("")
        size = 2 ** (10 + number)  # the more there is, the less of it is read before the link has ended
        filler = "#" * size
        sent = [
            sandbox.begin(f"echo r{number}-{run} >> count\n{filler}", "bash", id=f"r{number}-{run}") for run in range(4)
        ]
        sandbox.hang_up()
        sandbox.listen_again()
        known = {known.id for known in sandbox.hello.known}
        assert known <= set(sent)
        for run in known:
            sandbox.end(run)
        ran = sandbox.run("cat count", "bash", id="count").outcome.stdout.split()
        assert sorted(ran) == sorted(known)
        sandbox.send(Settled(ids=[*sent, "count"]))


def test_an_answer_that_nobody_wants_is_neither_sent_nor_kept(sandbox: Box) -> None:
    run = sandbox.begin("while ! [ -e go ]; do sleep 0.01; done; touch over", "bash")
    sandbox.send(Settled(ids=[run]))
    assert told(sandbox) == []
    (sandbox.workspace / "go").touch()
    wait_for(sandbox.workspace / "over")

    def over() -> bool:
        assert told(sandbox) == []
        sandbox.hang_up()
        sandbox.listen_again()
        return sandbox.hello.known == []

    until(over)
    assert told(sandbox) == []


def test_a_kernel_that_is_lost_with_an_unwanted_answer_is_told(sandbox: Box) -> None:
    cell = sandbox.begin(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nos._exit(3)", stateful=True
    )
    sandbox.send(Settled(ids=[cell]))
    assert [message for message in told(sandbox) if not isinstance(message, Preparing | Started)] == []
    (sandbox.workspace / "go").touch()
    while isinstance(message := sandbox.receive(), Started):
        pass
    assert message == KernelGone("python", "default", "exit")


# --- bounds ---------------------------------------------------------------------------------------------------------


def answer_of(size: int, name: str = "a") -> bytes:
    results = [Result("display", {"text/plain": "x" * (size // 2)})]
    return encode(
        Finished(name, Outcome("ok", 0, 1, stdout="x" * (size // 2), stdout_bytes=size // 2, results=results))
    )


def test_beyond_the_bytes_the_oldest_answers_lose_their_text_and_rich_outputs() -> None:
    kept = Unsettled(most=10_000)
    for name in "abcd":
        kept.add(name, answer_of(4_000, name))
    assert list(kept) == list("abcd")
    outcomes = {}
    for name in "abcd":
        message = decode_from_sandbox(kept.frame(name)[4:])
        assert isinstance(message, Finished)
        outcomes[name] = message.outcome
    assert [outcome.truncated for outcome in outcomes.values()] == [True, True, False, False]
    assert (outcomes["a"].stdout, outcomes["a"].stdout_bytes, outcomes["a"].status) == ("", 2_000, "ok")
    assert [(result.type, result.mime) for result in outcomes["a"].results] == [("omitted", "*/*")]
    assert outcomes["d"].stdout == "x" * 2_000


@pytest.mark.parametrize("size", [0, 100, 9_000, 30_000])
def test_what_is_kept_is_bounded_in_bytes_and_never_forgotten(size: int) -> None:
    kept = Unsettled(most=10_000)
    names = [f"x{number}" for number in range(MAX_KNOWN)]
    for name in names:
        kept.add(name, answer_of(size, name))
        assert sum(map(len, kept.frames())) <= 10_000 + len(kept) * 200
    assert (list(kept), len(kept)) == (names, MAX_KNOWN)
    for name in names:
        kept.settle(name)
    assert (list(kept), list(kept.frames()), len(kept), kept._size) == ([], [], 0, 0)


def test_the_longest_error_is_short_in_an_answer_that_is_not_kept_whole() -> None:
    kept = Unsettled(most=0)
    error = UserError("\U0001f4a9" * 1_000, "\U0001f4a9" * 100_000, ["\U0001f4a9" * 2_000] * 200)
    kept.add("a", encode(Finished("a", Outcome("error", 1, 1, error=error), sandbox_unsafe=True)))
    message = decode_from_sandbox(kept.frame("a")[4:])
    assert isinstance(message, Finished)
    assert message.sandbox_unsafe
    assert message.outcome.error == UserError("\U0001f4a9" * 500, "\U0001f4a9" * 500, [])
    kept.add("b", encode(Refused("b", "cwd_not_found", "no")))
    assert decode_from_sandbox(kept.frame("b")[4:]) == Refused("b", "cwd_not_found", "no")


def test_an_answer_that_is_kept_again_is_counted_once() -> None:
    kept = Unsettled(most=10_000)
    for _ in range(10):
        kept.add("a", answer_of(4_000))
    assert kept.frame("a") == answer_of(4_000)
    kept.settle("a")
    kept.settle("a")
    assert "a" not in kept
    assert kept._size == 0


def test_a_flood_while_nobody_listens_costs_bounded_memory_and_no_answer(sandbox: Box) -> None:
    limits = OutputLimits(text=4 * 2**20, results=0, spill=0)
    sandbox.run("import subprocess\nbackground = subprocess.Popen(['yes'])", stateful=True, id="yes")
    sandbox.send(Settled(ids=["yes"]))
    daemon = sandbox.sandboxd
    before = most = resident_mib(daemon)
    code = "touch began-$NAME; while ! [ -e go ]; do sleep 0.05; done; head -c 3900000 /dev/zero | tr '\\0' x"
    runs = [sandbox.begin(code, "bash", env={"NAME": str(number)}, limits=limits, timeout_s=60) for number in range(20)]
    wait_for(*(sandbox.workspace / f"began-{number}" for number in range(20)))
    sandbox.hang_up()
    (sandbox.workspace / "go").touch()
    while sandbox.boot.poll() is None:
        sandbox.listen_again()
        most = max(most, resident_mib(daemon))
        if all(known.state == "finished" for known in sandbox.hello.known):
            break
        sandbox.hang_up()
    assert sorted(known.id for known in sandbox.hello.known) == sorted(runs)
    outcomes = [sandbox.end(run).outcome for run in runs]
    assert {outcome.stdout_bytes for outcome in outcomes} == {3_900_000}
    assert sorted(len(outcome.stdout) for outcome in outcomes) == [0] * 3 + [3_900_000] * 17  # 64 MiB
    # Those, twice while they are being sent, and what a few runs hold that are being read meanwhile.
    assert most - before < 250
    assert sandbox.run("background.kill()", stateful=True).outcome.status == "ok"


def test_more_executions_than_may_run_are_refused(sandbox: Box) -> None:
    cells = [sandbox.begin("import time; time.sleep(600)", stateful=True) for _ in range(MAX_RUNNING + 1)]
    refused = sandbox.end(cells[-1])
    assert isinstance(refused, Refused)
    assert refused.code == "run_start_failed"
    sandbox.hang_up()
    sandbox.listen_again()
    assert [known.id for known in sandbox.hello.known] == cells[:-1]  # the last one did not run


def test_a_service_that_settles_nothing_is_refused_before_anything_is_forgotten(sandbox: Box) -> None:
    runs = [sandbox.end(sandbox.begin("1", "klingon")).id for _ in range(MAX_KNOWN)]
    refused = sandbox.end(sandbox.begin("1"))
    assert isinstance(refused, Refused)
    assert refused.code == "run_start_failed"
    sandbox.hang_up()
    sandbox.listen_again()
    assert [known.id for known in sandbox.hello.known] == runs
    sandbox.send(Settled(ids=runs[:1]))
    assert sandbox.run("1").outcome.status == "ok"


# --- dialling -------------------------------------------------------------------------------------------------------


async def test_the_pauses_between_dials_grow_while_nobody_says_anything(tmp_path: Path) -> None:
    link = Link(str(tmp_path / "link.sock"))
    server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), tmp_path / "link.sock")
    pauses = []
    for _ in range(6):
        pauses.append(link._pause_s)
        await link.dial()
        assert await link.receive() is None
    assert pauses == [0, 0.02, 0.04, 0.08, 0.16, 0.25]
    server.close()
    await server.wait_closed()


async def test_a_service_that_speaks_is_dialled_again_at_once(tmp_path: Path) -> None:
    link = Link(str(tmp_path / "link.sock"))

    def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(Cancel(id="a")))
        writer.close()

    dialling = asyncio.gather(link.dial())
    await asyncio.sleep(0.01)  # nobody listens yet
    server = await asyncio.start_unix_server(speak, tmp_path / "link.sock")
    await dialling
    assert link._pause_s > 0
    assert await link.receive() == Cancel(id="a")
    assert link._pause_s == 0
    assert await link.receive() is None
    server.close()
    await server.wait_closed()


async def test_without_a_connection_the_last_end_of_each_kernel_is_kept_and_nothing_else(tmp_path: Path) -> None:
    link = Link(str(tmp_path / "link.sock"))
    for number in range(1_000):
        link.send(Progress("a", "stdout", "x" * 1_000))
        link.send(KernelGone("python", f"c{number % 100}", "exit"))
    link.send(KernelGone("python", "c99", "crash", sandbox_unsafe=True))
    link.send(KernelGone("python", "c99", "oom"))
    assert len(link._gone) == 64
    assert link._gone["python", "c99"] == KernelGone("python", "c99", "crash", sandbox_unsafe=True)
