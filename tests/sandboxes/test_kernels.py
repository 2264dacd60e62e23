"""Queues, lives and losses of kernels."""

from __future__ import annotations

import pytest
from sandboxd.protocol import Reason

from interpreter.backends.base import SandboxId
from interpreter.errors import QueueFull, TooManyKernels
from interpreter.executions.model import Life
from interpreter.keys import KernelKey, Key
from interpreter.sandboxes.kernels import Kernels, Told

KEY, PY, NODE = Key("u", "s"), KernelKey("python", "default"), KernelKey("node", "default")
ONE, TWO = SandboxId("1"), SandboxId("2")


def kernels(**limits: int) -> Kernels:
    return Kernels(**{"max_queue": 2, "max_kernels": 2, **limits})


def run(table: Kernels, sandbox: SandboxId, told: Told, reason: Reason | None = None, name: KernelKey = PY) -> Life:
    assert table.join(KEY, name, "t")
    life = table.ran(KEY, name, sandbox, told=told, reason=reason, now=0)
    assert table.leave(KEY, name, "t") is None
    return life


def test_first_come_first_served() -> None:
    table = kernels()
    assert table.join(KEY, PY, "a")
    assert not table.join(KEY, PY, "b")
    assert not table.join(KEY, PY, "c")
    with pytest.raises(QueueFull):
        table.join(KEY, PY, "d")
    assert not table.join(KEY, PY, "restart", first=True)
    assert table.leave(KEY, PY, "b") is None
    assert table.leave(KEY, PY, "b") is None
    assert table.leave(KEY, PY, "a") == "restart"
    assert table.leave(KEY, PY, "a") is None
    assert table.leave(KEY, PY, "restart") == "c"
    assert table.leave(KEY, PY, "c") is None


def test_a_sandbox_has_so_many_kernels() -> None:
    table = kernels(max_kernels=1)
    assert table.join(KEY, PY, "a")
    with pytest.raises(TooManyKernels):
        table.join(KEY, NODE, "b")
    assert table.join(Key("u", None), NODE, "b")
    table.leave(KEY, PY, "a")
    assert table.join(KEY, NODE, "b")  # Nothing has run in the other one, so there is none.


def test_new_then_kept() -> None:
    table = kernels()
    assert run(table, ONE, "new") == Life("new", 1)
    assert run(table, ONE, "kept") == Life("kept", 1)
    assert [(k.executions, k.alive) for k in table.of(KEY)] == [(2, True)]


def test_a_kernel_of_which_we_knew_nothing_is_new_to_the_caller() -> None:
    table = kernels()
    assert run(table, ONE, "kept") == Life("new", 1)  # It was started for an execution that was refused.


@pytest.mark.parametrize("reason", ["crash", "exit", "oom", "timeout"])
def test_lost_in_the_call_is_said_there_and_not_again(reason: Reason) -> None:
    table = kernels()
    run(table, ONE, "new")
    assert run(table, ONE, "lost", reason) == Life("lost", 1, reason)
    assert run(table, ONE, "new") == Life("new", 2)


def test_lost_in_the_very_call_that_started_it() -> None:
    table = kernels()
    assert run(table, ONE, "lost", None) == Life("lost", 1, "crash")
    assert run(table, ONE, "lost", "exit") == Life("lost", 2, "exit")


def test_lost_between_calls_is_said_in_the_next_answer_once() -> None:
    table = kernels()
    run(table, ONE, "new")
    assert table.gone(KEY, PY, ONE, "exit")
    assert not table.gone(KEY, PY, ONE, "crash")
    assert not table.gone(KEY, NODE, ONE, "crash")
    assert run(table, ONE, "new") == Life("lost", 2, "exit")
    assert run(table, ONE, "kept") == Life("kept", 2)


def test_lost_between_and_again_in_the_call_is_said_once() -> None:
    table = kernels()
    run(table, ONE, "new")
    table.sandbox_gone(KEY, ONE, "idle")
    assert run(table, TWO, "lost", "crash") == Life("lost", 2, "crash")
    assert run(table, TWO, "new") == Life("new", 3)


def test_generations_count_across_reaping_until_purge() -> None:
    table = kernels()
    run(table, ONE, "new")
    table.sandbox_gone(KEY, ONE, "idle")
    assert run(table, TWO, "new") == Life("lost", 2, "idle")
    table.sandbox_gone(KEY, TWO, "deleted")
    assert run(table, SandboxId("3"), "new") == Life("new", 3)
    table.forget(KEY)
    assert run(table, SandboxId("4"), "new") == Life("new", 1)


def test_a_loss_of_the_old_sandbox_reaches_one_that_waited_for_a_fresh_one() -> None:
    table = kernels()
    run(table, ONE, "new")
    assert table.join(KEY, PY, "waits")
    table.sandbox_gone(KEY, ONE, "killed")
    assert table.ran(KEY, PY, TWO, told="new", reason=None, now=0) == Life("lost", 2, "killed")


def test_a_loss_with_the_sandbox_is_the_running_ones_to_say() -> None:
    table = kernels()
    run(table, ONE, "new")
    assert table.join(KEY, PY, "runs")
    table.sandbox_gone(KEY, ONE, "killed")
    assert table.ran(KEY, PY, ONE, told="lost", reason="killed", now=0) == Life("lost", 1, "killed")
    table.leave(KEY, PY, "runs")
    assert run(table, TWO, "new") == Life("new", 2)


def test_an_answer_just_before_the_sandbox_went_keeps_and_the_next_says_lost() -> None:
    table = kernels()
    run(table, ONE, "new")
    assert table.join(KEY, PY, "runs")
    table.sandbox_gone(KEY, ONE, "oom")
    assert table.ran(KEY, PY, ONE, told="kept", reason=None, now=0) == Life("kept", 1)
    table.leave(KEY, PY, "runs")
    assert run(table, TWO, "new") == Life("lost", 2, "oom")


def test_the_end_of_an_earlier_sandbox_does_not_touch_a_later_life() -> None:
    table = kernels()
    run(table, ONE, "new")
    run(table, TWO, "new")
    table.sandbox_gone(KEY, ONE, "killed")
    assert not table.gone(KEY, PY, ONE, "exit")
    assert run(table, TWO, "kept") == Life("kept", 2)


def test_what_its_owner_ends_is_no_loss() -> None:
    table = kernels()
    run(table, ONE, "new")
    table.ended_by_owner(KEY, PY)
    assert table.of(KEY) == []
    assert run(table, ONE, "new") == Life("new", 2)
    table.gone(KEY, PY, ONE, "crash")
    table.ended_by_owner(KEY)
    assert run(table, ONE, "new") == Life("new", 3)


def test_restart_gives_new_once() -> None:
    table = kernels()
    run(table, ONE, "new")
    table.restarted(KEY, PY, ONE, 0)
    assert run(table, ONE, "new") == Life("new", 2)
    assert run(table, ONE, "kept") == Life("kept", 2)
    table.restarted(KEY, PY, ONE, 0)
    assert run(table, ONE, "lost", "exit") == Life("lost", 3, "exit")
    assert run(table, ONE, "new") == Life("new", 4)
    table.restarted(KEY, PY, ONE, 0)
    table.gone(KEY, PY, ONE, "crash")
    assert run(table, ONE, "new") == Life("lost", 6, "crash")


def test_memory_is_bounded_and_what_lives_or_waits_stays() -> None:
    table = kernels(remembered=20, max_kernels=1000)
    for number in range(200):
        name = KernelKey("python", str(number))
        run(table, ONE, "lost" if number else "new", name=name)
    assert table.get(KEY, KernelKey("python", "0")) is not None
    assert table.get(KEY, KernelKey("python", "199")) is not None
    assert len(table._kernels) <= 20
