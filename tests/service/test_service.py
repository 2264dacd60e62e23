"""The service's promises, over a sandboxd that does as told. Nothing here waits for seconds."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable

import pytest
from sandboxd.protocol import Execute, Finished, KernelGone, Output, Preparing, Progress, Refused, Started

from interpreter.backends.base import BackendError, BackendUnavailable, Stats
from interpreter.backends.fake import FakeSandbox
from interpreter.errors import (
    CwdNotFound,
    ExecutionIdTaken,
    ExecutionNotFound,
    KernelNotFound,
    QueueFull,
    QueueTimeout,
    RuntimeUnavailable,
    SandboxStartFailed,
    SessionBusy,
    ShuttingDown,
    SingleTenant,
    TooManyExecutions,
    TooManyKernels,
    TooManySessions,
    UnknownLanguage,
)
from interpreter.executions.run import Run
from interpreter.link.errors import LinkNotSent
from interpreter.sandboxes import reaper
from interpreter.scopes.root import DataRoot, DataRootLocked
from interpreter.service import Interpreter
from interpreter.service_config import ServiceConfig
from tests.attempts import in_time
from tests.fakes.sandboxd import Peer, never, until_cancelled
from tests.service.conftest import House

MakeHouse = Callable[..., Awaitable[House]]


async def dies(peer: Peer, message: Execute) -> None:
    peer.writer.transport.abort()


# --- one execution --------------------------------------------------------------------------------------------------


async def test_state_is_new_then_kept(house: House) -> None:
    first, second = await house.exec("a"), await house.exec("b")
    assert (first.stdout, first.state, first.generation, first.reason) == ("a", "new", 1, None)
    assert (second.stdout, second.state, second.generation) == ("b", "kept", 1)
    assert len(house.backend.started) == 1


async def test_stateless_answers_have_no_kernel(house: House) -> None:
    answer = await house.exec("a", stateful=False)
    assert (answer.context, answer.execution_count, answer.state, answer.generation) == (None, None, None, None)


async def test_events_begin_with_started_and_end_with_finished(house: House) -> None:
    execution = house.submit("a")
    answer = await house.service.settle(execution)
    events = execution.events.after()
    assert [event.type for event in events] == ["started", "kernel", "stdout", "finished"]
    assert [event.seq for event in events] == [0, 1, 2, 3]
    last = json.loads(events[-1].body)
    assert last["status"] == answer.status
    assert "stdout" not in last
    assert await execution.events.wait(3, wait_s=60) == []


@pytest.mark.parametrize(("code", "error"), [("cwd_not_found", CwdNotFound), ("unknown_language", UnknownLanguage)])
async def test_a_refusal_is_an_error_and_the_next_one_runs(house: House, code: str, error: type[Exception]) -> None:
    async def refuse(peer: Peer, message: Execute) -> None:
        peer.send(Refused(id=message.id, code=code, message="no\x1b[31m"))  # type: ignore[arg-type]

    house.sandboxd.script["refused"] = refuse
    with pytest.raises(error) as raised:
        await house.exec("refused")
    assert "\x1b" not in str(raised.value)
    assert (await house.exec("a")).state == "new"


async def test_what_is_wrong_never_reaches_a_sandbox(house: House) -> None:
    for fields in ({"scope": "../x"}, {"session": "a/b"}, {"context": ""}, {"execution_id": "x" * 65}):
        with pytest.raises(Exception, match="must be"):
            house.submit("a", **fields)
    assert house.backend.started == []


# --- queues and limits ----------------------------------------------------------------------------------------------


async def test_executions_of_a_kernel_run_in_order_and_contexts_side_by_side(house: House) -> None:
    house.sandboxd.script["wait"] = until_cancelled
    running = house.submit("wait")
    await house.sandboxd.wait_for("wait")
    waiting = [house.submit(str(number)) for number in range(5)]
    assert (await house.exec("elsewhere", context="other")).state == "new"
    assert [execution.phase for execution in waiting] == ["queued"] * 5
    house.service.cancel(running)
    await asyncio.gather(*(house.service.settle(execution) for execution in waiting))
    assert house.sandboxd.began == ["wait", "elsewhere", "0", "1", "2", "3", "4"]
    answer = await house.service.settle(running)
    assert (answer.status, answer.exit_code, answer.state) == ("interrupted", 130, "new")


async def test_a_cancelled_waiting_execution_never_runs(house: House) -> None:
    house.sandboxd.script["wait"] = until_cancelled
    running = house.submit("wait")
    await house.sandboxd.wait_for("wait")
    waiting, after = house.submit("never"), house.submit("after")
    house.service.cancel(waiting)
    answer = await house.service.settle(waiting)
    assert (answer.status, answer.exit_code, answer.state) == ("cancelled", 130, None)
    house.service.cancel(running)
    await house.service.settle(after)
    assert "never" not in house.sandboxd.began


async def test_limits_are_refused_at_once(make_house: MakeHouse) -> None:
    house = await make_house(max_queue=1, max_kernels=1, max_sessions=1, max_concurrent=3)
    house.sandboxd.script["wait"] = until_cancelled
    running = house.submit("wait")
    waiting = house.submit("a")
    with pytest.raises(QueueFull):
        house.submit("b")
    with pytest.raises(TooManyKernels):
        house.submit("b", context="other")
    with pytest.raises(TooManySessions) as raised:
        house.submit("b", session="other")
    assert raised.value.retry_after_s
    stateless = house.submit("wait", stateful=False)
    with pytest.raises(TooManyExecutions):
        house.submit("c", stateful=False)
    for execution in (running, waiting, stateless):
        house.service.cancel(execution)
        await house.service.settle(execution)
    await house.exec("d")


async def test_queue_timeout(house: House) -> None:
    house.sandboxd.script["wait"] = until_cancelled
    running = house.submit("wait")
    await house.sandboxd.wait_for("wait")
    with pytest.raises(QueueTimeout):
        await house.exec("never", queue_timeout_s=0.0)
    house.service.cancel(running)
    await house.service.settle(running)
    assert (await house.exec("a", queue_timeout_s=0.0)).state == "kept"
    assert "never" not in house.sandboxd.began


async def test_the_same_id_is_the_same_execution_within_its_scope(house: House) -> None:
    first = house.submit("a", execution_id="mine")
    assert house.submit("a", execution_id="mine", timeout_s=1.0) is first
    with pytest.raises(ExecutionIdTaken):
        house.submit("b", execution_id="mine")
    other = house.submit("b", execution_id="mine", scope="u2")
    await asyncio.gather(house.service.settle(first), house.service.settle(other))
    assert house.sandboxd.began.count("a") == 1
    with pytest.raises(ExecutionNotFound):
        house.service.execution("mine", None)
    assert house.service.execution("mine", "u2") is other
    ours = house.submit("c")
    assert house.service.execution(ours.id, None) is ours
    with pytest.raises(ExecutionNotFound):
        house.service.execution(ours.id, "u2")
    await house.service.settle(ours)
    house.clock.ahead += 601
    with pytest.raises(ExecutionNotFound):
        house.service.execution(ours.id, None)


# --- clocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize("stateful", [True, False])
async def test_a_sandbox_that_never_answers_is_ended_by_our_clock(house: House, stateful: bool) -> None:
    async def silent(peer: Peer, message: Execute) -> None:
        peer.send(Progress(id=message.id, stream="stdout", text="so far"))

    house.sandboxd.script["silent"] = silent
    house.sandboxd.script["other"] = never
    other = house.submit("other", context="other")
    await house.sandboxd.wait_for("other")
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await house.exec("silent", timeout_s=0.1, stateful=stateful)
    in_time(loop.time() - began, 0.1 + 0.1 + 0.3)
    assert (answer.status, answer.timed_out, answer.stdout) == ("timeout", True, "so far")
    assert answer.exit_code == (124 if stateful else 137)
    assert (answer.state, answer.reason) == ("lost" if stateful else None, "timeout")
    died = await house.service.settle(other)
    assert (died.status, died.reason, died.state) == ("died", "killed", "lost")
    after = await house.exec("after")
    assert (after.state, after.reason, after.generation) == ("new", None, 2 if stateful else 1)
    assert len(house.backend.running) == 1


@pytest.mark.alone
async def test_a_sandboxd_that_reads_nothing_is_ended_by_our_clock(house: House) -> None:
    house.sandboxd.frozen = True
    loop = asyncio.get_running_loop()
    for code in ("short", "x" * 1_000_000):
        began = loop.time()
        answer = await house.exec(code, timeout_s=0.1)
        assert (answer.status, answer.state) == ("timeout", "lost")
        in_time(loop.time() - began, 0.1 + 0.1 + 0.3 + 0.2)
    house.sandboxd.frozen = False
    assert (await house.exec("after")).stdout == "after"


@pytest.mark.alone
async def test_the_clock_stands_still_while_a_kernel_starts_but_not_twice(house: House) -> None:
    async def slow(peer: Peer, message: Execute) -> None:
        peer.send(Preparing(id=message.id))
        await asyncio.sleep(0.5)
        peer.send(Started(id=message.id))
        peer.send(Preparing(id=message.id))
        await asyncio.Event().wait()

    house.sandboxd.script["slow"] = slow
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await house.exec("slow", timeout_s=0.1)
    assert 0.7 < loop.time() - began < 1.2
    assert answer.status == "timeout"


async def test_an_interrupt_that_is_ignored_costs_the_sandbox(house: House) -> None:
    house.sandboxd.script["deaf"] = never
    running = house.submit("deaf")
    await house.sandboxd.wait_for("deaf")
    house.service.cancel(running)
    answer = await house.service.settle(running)
    assert (answer.status, answer.exit_code, answer.state) == ("interrupted", 130, "lost")
    assert (await house.exec("a")).stdout == "a"


async def test_an_unsafe_sandbox_is_stopped_and_the_kept_kernel_is_lost_next_time(house: House) -> None:
    async def unsafe(peer: Peer, message: Execute) -> None:
        peer.send(Finished(id=message.id, outcome=peer.outcome(message), sandbox_unsafe=True))

    house.sandboxd.script["unsafe"] = unsafe
    await house.exec("a")
    assert (await house.exec("unsafe")).state == "kept"
    after = await house.exec("b")
    assert (after.state, after.reason, after.generation) == ("lost", "killed", 2)
    assert (await house.exec("c")).state == "kept"


# --- deaths ---------------------------------------------------------------------------------------------------------


async def test_death_of_the_link_ends_everything_with_a_reason_and_the_next_call_works(house: House) -> None:
    house.sandboxd.script.update(dies=dies, wait=never)
    other = house.submit("wait", context="other")
    idle = await house.exec("a", context="idle")
    await house.sandboxd.wait_for("wait")
    answer = await house.exec("dies")
    assert (answer.status, answer.exit_code, answer.reason, answer.state) == ("died", 137, "crash", "lost")
    assert (await house.service.settle(other)).status == "died"
    assert idle.state == "new"
    assert (await house.exec("b")).state == "new"
    lost = await house.exec("b", context="idle")
    assert (lost.state, lost.reason, lost.generation) == ("lost", "crash", 2)
    assert (await house.exec("c", context="idle")).state == "kept"


@pytest.mark.parametrize(
    ("status", "oom", "reason"),
    [
        (137, False, "killed"),
        (143, False, "killed"),
        (None, False, "killed"),
        (137, True, "oom"),
        (1, False, "crash"),
        (139, False, "crash"),
        (0, False, "crash"),
    ],
)
async def test_death_of_the_process(house: House, status: int | None, oom: bool, reason: str) -> None:
    house.sandboxd.script["wait"] = never
    running = house.submit("wait")
    await house.sandboxd.wait_for("wait")
    next(iter(house.backend.running.values())).die(status, oom=oom)
    answer = await house.service.settle(running)
    assert (answer.status, answer.reason) == ("died", reason)
    assert (await house.exec("a")).stdout == "a"


@pytest.mark.parametrize("moment", range(12))
async def test_a_call_that_a_dead_sandbox_never_read_is_served_by_a_fresh_one(house: House, moment: int) -> None:
    await house.exec("a")
    house.sandboxd.peers[0].writer.transport.abort()
    for _ in range(moment):
        await asyncio.sleep(0)
    after = await house.exec("b")
    assert (after.status, after.stdout, after.state, after.reason) == ("ok", "b", "lost", "crash")
    assert house.sandboxd.began == ["a", "b"]
    assert (await house.exec("c")).state == "kept"


async def test_sandboxes_that_never_read_are_given_up_after_a_few(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unread(_run: Run) -> Finished:
        raise LinkNotSent("gone")

    monkeypatch.setattr(Run, "finished", unread)
    execution = house.submit("a")
    with pytest.raises(SandboxStartFailed, match="nothing has run"):
        await house.service.settle(execution)
    assert [event.type for event in execution.events.after()] == ["started", "finished"]


async def test_a_new_sandbox_begins_when_the_one_before_is_gone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, go_on, stop = asyncio.Event(), asyncio.Event(), FakeSandbox.stop

    async def slow(sandbox: FakeSandbox) -> None:
        stopping.set()
        await go_on.wait()
        await stop(sandbox)

    await house.exec("a")
    monkeypatch.setattr(FakeSandbox, "stop", slow)
    (live,) = house.service._manager._lives.values()
    house.service._manager.stop(live, "idle")
    after = house.submit("b")
    await stopping.wait()
    await asyncio.sleep(0.2)  # a start that does not wait takes 10 ms
    assert len(house.backend.started) == 1
    go_on.set()
    assert (await house.service.settle(after)).stdout == "b"
    assert len(house.backend.started) == 2


@pytest.mark.parametrize("reason", ["restart", "deleted"])
async def test_what_ended_with_its_kernel_says_why(house: House, reason: str) -> None:
    house.sandboxd.script["wait"] = until_cancelled
    running = house.submit("wait")
    await house.sandboxd.wait_for("wait")
    end = house.service.restart_kernel if reason == "restart" else house.service.delete_kernel
    await end("u1", "chat", "python", "default")
    answer = await house.service.settle(running)
    assert (answer.status, answer.reason, answer.exit_code) == ("cancelled", reason, 130)


@pytest.mark.parametrize("stateful", [True, False])
async def test_oom_is_told_from_crash_by_the_counters(house: House, stateful: bool) -> None:
    async def eats(peer: Peer, message: Execute) -> None:
        house.backend.numbers = Stats(memory_bytes=1, oom_kills=1, processes=1)
        fields = {"status": "died", "reason": "killed", "kernel": "lost"} if stateful else {"status": "error"}
        peer.finish(message, exit_code=137, **fields)

    house.sandboxd.script["eats"] = eats
    answer = await house.exec("eats", stateful=stateful)
    assert (answer.status, answer.reason, answer.exit_code) == ("died", "oom", 137)
    assert answer.stderr.startswith("out of memory: ")
    assert answer.error is not None
    assert (answer.error.name, answer.error.value) == ("OutOfMemory", answer.stderr.strip())
    assert answer.output_bytes["stderr"] == len(answer.stderr)


@pytest.mark.parametrize("said", ["", "as it went"])
async def test_out_of_memory_stands_at_the_end_of_what_was_streamed_too(house: House, said: str) -> None:
    async def eats(peer: Peer, message: Execute) -> None:
        if said:
            peer.send(Output(message.id, "stderr", said))
        house.backend.numbers = Stats(memory_bytes=1, oom_kills=1, processes=1)
        peer.finish(message, exit_code=137, status="error", stderr=said)

    house.sandboxd.script["eats"] = eats
    execution = house.submit("eats", stream=True, stateful=False)
    answer = await execution.finished()
    assert answer.error is not None
    assert answer.stderr == (said + "\n" if said else "") + answer.error.value + "\n"
    assert len(execution.events) > 2
    assert b"".join(execution.events.text("stderr", 0, 1000)).decode() == answer.stderr


async def test_a_child_killed_for_memory_is_an_error_of_a_kernel_that_lives(house: House) -> None:
    async def child_is_killed(peer: Peer, message: Execute) -> None:
        house.backend.numbers = Stats(memory_bytes=1, oom_kills=1, processes=1)
        peer.finish(message, status="error", exit_code=137, kernel="kept")

    await house.exec("a")
    house.sandboxd.script["greedy"] = child_is_killed
    answer = await house.exec("greedy")
    assert (answer.status, answer.reason, answer.exit_code) == ("error", "oom", 137)
    assert (answer.state, answer.generation) == ("kept", 1)
    assert (await house.exec("b")).state == "kept"


async def test_a_kernel_that_went_between_calls_is_said_once(house: House) -> None:
    await house.exec("a")
    peer = house.sandboxd.peers[0]
    for _ in range(3):
        peer.send(KernelGone(language="python", context="default", reason="exit"))
    peer.kernels.clear()
    await house.exec("sync", context="other")
    lost = await house.exec("b")
    assert (lost.state, lost.reason, lost.generation) == ("lost", "exit", 2)
    assert (await house.exec("c")).state == "kept"


# --- starting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [(BackendError("It broke."), SandboxStartFailed), (BackendUnavailable("Type this."), RuntimeUnavailable)],
)
async def test_a_start_that_fails_says_so_and_the_next_one_works(
    house: House, error: BackendError, expected: type[Exception]
) -> None:
    """The same call does, also with an id of its own: that is free, since nothing has run."""
    house.backend.refuse = error
    with pytest.raises(expected, match=str(error)) as raised:
        await house.exec("a", execution_id="mine")
    assert getattr(raised.value, "retry_after_s", None)
    with pytest.raises(expected):
        await house.service.settle(house.service.execution("mine", "u1"))
    house.backend.refuse = None
    assert (await house.exec("a", execution_id="mine")).state == "new"


async def test_a_sandbox_that_says_no_hello_fails_within_the_deadline(make_house: MakeHouse) -> None:
    house = await make_house(start_timeout_s=1.0)

    async def silent(peer: Peer) -> None:
        await asyncio.Event().wait()

    good, house.sandboxd.hello = house.sandboxd.hello, silent
    with pytest.raises(SandboxStartFailed, match="in time"):
        await house.exec("a")
    house.sandboxd.hello = good
    await house.exec("a")
    assert len(house.backend.running) == 1


@pytest.mark.parametrize("first", [b"\0\0\0\x01x", b"\xff\xff\xff\xff", b""])
async def test_a_sandbox_that_greets_with_junk_fails_at_once(house: House, first: bytes) -> None:
    async def junk(peer: Peer) -> None:
        peer.raw(first)
        if not first:
            peer.writer.close()

    house.sandboxd.hello = junk
    with pytest.raises(SandboxStartFailed, match=r"did not work|ended while"):
        await house.exec("a")


async def test_one_start_is_shared_and_a_cancelled_caller_fails_no_other(house: House) -> None:
    house.backend.hold.clear()
    executions = [house.submit(str(number), context=str(number)) for number in range(4)]
    house.service.cancel(executions[0])
    assert (await house.service.settle(executions[0])).status == "cancelled"
    house.backend.hold.set()
    for execution in executions[1:]:
        assert (await house.service.settle(execution)).status == "ok"
    assert len(house.backend.started) == 1


async def test_single_tenant(make_house: MakeHouse) -> None:
    house = await make_house(single_tenant=True)
    await house.exec("a")
    with pytest.raises(SingleTenant):
        await house.exec("a", scope="u2")
    assert (await house.exec("b")).state == "kept"


# --- ending ---------------------------------------------------------------------------------------------------------


async def test_an_idle_sandbox_is_reaped_and_its_loss_is_said_once(house: House) -> None:
    await house.exec("a")
    house.clock.ahead += 601
    table, manager = house.service._table, house.service._manager
    assert reaper.reap(table, manager, house.clock()) == 1
    assert reaper.reap(table, manager, house.clock()) == 0
    lost = await house.exec("b")
    assert (lost.state, lost.reason, lost.generation) == ("lost", "idle", 2)
    assert (await house.exec("c")).state == "kept"


async def test_an_exec_that_meets_the_reaper_gets_a_sandbox(house: House) -> None:
    house.sandboxd.script["wait"] = until_cancelled
    await house.exec("a")
    house.clock.ahead += 601
    running = house.submit("wait")
    assert reaper.reap(house.service._table, house.service._manager, house.clock()) == 0
    house.service.cancel(running)
    await house.service.settle(running)
    house.clock.ahead += 601
    assert reaper.reap(house.service._table, house.service._manager, house.clock()) == 1
    assert (await house.exec("b")).status == "ok"


async def test_delete_is_refused_while_busy_and_forced_ends_what_runs(house: House) -> None:
    house.sandboxd.script["wait"] = never
    running, waiting = house.submit("wait"), house.submit("never")
    await house.sandboxd.wait_for("wait")
    with pytest.raises(SessionBusy):
        await house.service.remove_session("u1", "chat")
    assert await house.service.remove_session("u1", "chat", force=True) == {"removed": 1, "purged": False}
    answers = [await house.service.settle(execution) for execution in (running, waiting)]
    assert [(a.status, a.reason, a.exit_code) for a in answers] == [("cancelled", "deleted", 130)] * 2
    assert [a.state for a in answers] == ["lost", None]
    after = await house.exec("b")
    assert (after.state, after.generation) == ("new", 2)
    assert await house.service.remove_session("u1", "chat") == {"removed": 1, "purged": False}
    assert await house.service.remove_session("u1", "chat") == {"removed": 0, "purged": False}


async def test_an_exec_that_meets_a_delete_runs_in_a_fresh_sandbox(house: House) -> None:
    await house.exec("a")
    deleting = asyncio.get_running_loop().create_task(house.service.remove_session("u1", "chat", purge=True))
    while await house.service.sessions("u1"):  # noqa: ASYNC110 - until it is decided, which takes no time
        await asyncio.sleep(0)
    answer, removed = await house.exec("b"), await deleting
    assert (answer.status, answer.state, answer.generation) == ("ok", "new", 1)
    assert removed == {"removed": 1, "purged": True}
    assert len(house.backend.started) == 2


async def test_many_purges_at_once_take_one_thread(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep may take minutes; the pool of threads is what sandboxes that start need as well."""
    sweeping, go_on = 0, threading.Event()

    def sweep() -> bool:
        nonlocal sweeping
        sweeping += 1
        return go_on.wait(30)

    monkeypatch.setattr(DataRoot, "sweep", lambda _root: sweep())
    purges = [
        asyncio.get_running_loop().create_task(house.service.remove_scope(f"s{number}", purge=True))
        for number in range(50)
    ]
    try:
        async with asyncio.timeout(20):
            assert (await house.exec("a")).stdout == "a"
        assert sweeping == 1
    finally:
        go_on.set()
    for purge in purges:
        assert (await purge) == {"removed": 0, "purged": True}
    assert sweeping == 50


async def test_purge_takes_data_results_and_generations(house: House) -> None:
    await house.exec("a")
    kept = await house.exec("a", session="other")
    done = house.submit("a")
    await house.service.settle(done)
    (house.root / "u1/sessions/chat/file").write_text("x")
    assert await house.service.remove_session("u1", "chat", purge=True) == {"removed": 1, "purged": True}
    assert not (house.root / "u1/sessions/chat").exists()
    assert (house.root / "u1/sessions/other").exists()
    with pytest.raises(ExecutionNotFound):
        house.service.execution(done.id, None)
    assert house.service.execution(kept.execution_id, None).answer is kept
    assert (await house.exec("b")).generation == 1
    assert await house.service.remove_scope("u1", purge=True) == {"removed": 2, "purged": True}
    assert await house.service.scopes() == []


async def test_kernels_are_listed_restarted_and_deleted(house: House) -> None:
    assert house.service.kernels("u1", "chat") == []
    with pytest.raises(KernelNotFound):
        await house.service.restart_kernel("u1", "chat", "python", "default")
    with pytest.raises(KernelNotFound):
        await house.service.interrupt_kernel("u1", "chat", "python", "default")
    assert (await house.service.delete_kernel("u1", "chat", "python", "default"))["removed"] == 0
    house.sandboxd.script["wait"] = until_cancelled
    await house.exec("a")
    assert await house.service.interrupt_kernel("u1", "chat", "python", "default") == {"interrupted": False}
    running, waiting = house.submit("wait"), house.submit("never")
    await house.sandboxd.wait_for("wait")
    (row,) = house.service.kernels("u1", "chat")
    assert (row["state"], row["generation"], row["execution_count"]) == ("busy", 1, 1)
    assert ((await house.service.sessions("u1"))[0]["state"], await house.service.sessions("u2")) == ("busy", [])
    assert await house.service.restart_kernel("u1", "chat", "python", "default") == {"restarted": True}
    assert [(await house.service.settle(e)).status for e in (running, waiting)] == ["cancelled"] * 2
    after = await house.exec("b")
    assert (after.state, after.generation) == ("new", 2)
    assert (await house.service.delete_kernel("u1", "chat", "python", "default"))["removed"] == 1
    assert house.service.kernels("u1", "chat") == []
    again = await house.exec("c")
    assert (again.state, again.generation) == ("new", 3)
    session = (await house.service.sessions("u1"))[0]
    assert session["state"] == "idle"
    assert session["expires_at"] > session["last_used_at"]


async def test_drain_takes_nothing_new_and_waits(make_house: MakeHouse) -> None:
    house = await make_house(drain_timeout_s=60.0)
    house.sandboxd.script["wait"] = until_cancelled
    running = house.submit("wait")
    await house.sandboxd.wait_for("wait")
    draining = asyncio.get_running_loop().create_task(house.service.drain())
    await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        house.submit("b")
    house.service.cancel(running)
    await draining
    assert running.phase == "finished"


async def test_closing_ends_what_runs_and_what_starts(house: House) -> None:
    house.sandboxd.script["wait"] = never
    running = house.submit("wait")
    await house.sandboxd.wait_for("wait")
    house.backend.hold.clear()
    starting = house.submit("b", session="other")
    await house.service.aclose()
    assert [(await house.service.settle(e)).status for e in (running, starting)] == ["cancelled"] * 2
    assert not house.backend.running


async def test_a_second_service_on_the_root_names_the_first(house: House) -> None:
    second = Interpreter(ServiceConfig(data_root=house.root), house.backend)
    with pytest.raises(DataRootLocked, match="pid"):
        await second.start()


async def test_health(house: House) -> None:
    assert await house.service.health() == (True, {"status": "ok", "runtime": "fake"})
    house.backend.unavailable = BackendUnavailable("Type this.")
    assert (await house.service.health())[0], "asked again within its time"
    house.clock.ahead += 6
    ok, about = await house.service.health()
    assert (ok, about["message"]) == (False, "Type this.")


async def test_many_questions_for_health_are_one_check(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0

    async def check() -> list[str]:
        nonlocal checks
        checks += 1
        await asyncio.sleep(0)
        return []

    monkeypatch.setattr(house.backend, "check", check)
    assert all(ok for ok, _ in await asyncio.gather(*(house.service.health() for _ in range(20))))
    assert checks == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [(TimeoutError(), "The runtime does not answer."), (OSError(24, "/secret/path"), "could not be asked")],
)
async def test_a_runtime_that_cannot_be_asked_is_no_fault_of_the_caller(
    house: House, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    async def check() -> list[str]:
        raise error

    monkeypatch.setattr(house.backend, "check", check)
    ok, about = await house.service.health()
    assert not ok
    assert said in about["message"]
    assert "/secret" not in about["message"]
