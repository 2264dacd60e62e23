"""Every order of calls on the tables, as far as a few steps go: what has to hold holds after each of them.

A world has one of the tables (or both), does one step at a time, and keeps its own plain record of what was asked. Each state
that can be reached is reached by its shortest way, by doing that way anew. Steps come late, twice and for things that are
long gone, as callers and sandboxes make them come. An invariant is a function of a world.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import pytest

from interpreter.backends.base import SandboxId
from interpreter.errors import QueueFull, SessionBusy, TooManyKernels, TooManySessions
from interpreter.executions.model import Life
from interpreter.keys import KernelKey, Key
from interpreter.sandboxes.kernels import Kernel, Kernels
from interpreter.sandboxes.table import Row, Table

Step = tuple[Any, ...]
A, B = Key("a", None), Key("a", "s")


class World(Protocol):
    def steps(self) -> Sequence[Step]:
        """What may be done now."""

    def do(self, name: str, *arguments: Any) -> None: ...

    def state(self) -> Hashable:
        """Equal for worlds whose future is the same."""


W = TypeVar("W", bound=World)


def explore(make: Callable[[], W], invariants: Sequence[Callable[[W], None]], depth: int) -> int:
    """Return how many states were seen."""
    seen, newest = {make().state()}, [()]
    for _ in range(depth):
        following: list[tuple[Step, ...]] = []
        for way in newest:
            for step in _after(make, way).steps():
                world = _after(make, (*way, step))
                _hold(world, invariants, (*way, step))
                if (state := world.state()) not in seen:
                    seen.add(state)
                    following.append((*way, step))
        newest = following  # type: ignore[assignment]  # the empty way is narrower
    return len(seen)


def _after(make: Callable[[], W], way: tuple[Step, ...]) -> W:
    world = make()
    for step in way:
        try:
            world.do(*step)
        except AssertionError as error:
            raise AssertionError(f"{error}\nat {step} of {way}") from error
    return world


def _hold(world: W, invariants: Sequence[Callable[[W], None]], way: tuple[Step, ...]) -> None:
    for invariant in invariants:
        try:
            invariant(world)
        except AssertionError as error:
            raise AssertionError(f"{invariant.__name__}: {error}\nafter {way}") from error


# --- who has a sandbox --------------------------------------------------------------------------------------------------

IDLE_S = 10.0


class Sandboxes:
    """The table of sandboxes with ``limit`` of them, and two keys that want one. At most two leases of a key."""

    def __init__(self, limit: int) -> None:
        self.table = Table(limit=limit, idle_s=IDLE_S)
        self.now = 100.0
        self.leases: Counter[Key] = Counter()
        self.rows: list[Row] = []
        """All that ever began, oldest first."""
        self.left: set[int] = set()
        self.gone: set[int] = set()
        self.fresh = True
        """Whether nothing but adoptions came yet: they are the first that a service does."""

    def steps(self) -> list[Step]:
        found: list[Step] = [("wait",), ("reap",)]
        for key in (A, B):
            if self.fresh and (key in self.taken() or len(self.taken()) < self.table.limit):
                found.append(("adopt", key))
            if self.leases[key] < 2:
                found.append(("enter", key))
            if self.leases[key]:
                found.append(("leave", key))
                if self.table.row(key) is None and len(self.rows) < 4:
                    found.append(("begin", key))
            found += [("remove", key, False), ("remove", key, True)]
        # Whatever comes of a sandbox may come in any order, more than once, and after its end.
        found += [(name, n) for n in range(len(self.rows)) for name in ("ready", "used", "take", "gone")]
        return found

    def do(self, name: str, *arguments: Any) -> None:
        self.fresh = self.fresh and name == "adopt"
        getattr(self, f"_{name}")(*arguments)

    def state(self) -> Hashable:
        ages = [min(self.now - row.used_at, IDLE_S) for row in self.rows]
        rows = [(r.key, r.phase, age, n in self.gone) for n, (r, age) in enumerate(zip(self.rows, ages, strict=True))]
        return tuple(rows), self.leases[A], self.leases[B], self.fresh

    def taken(self) -> set[Key]:
        """Keys that have room, by our own record."""
        return {key for key, count in self.leases.items() if count} | {
            row.key for n, row in enumerate(self.rows) if n not in self.gone
        }

    def _enter(self, key: Key) -> None:
        room = key in self.taken() or len(self.taken()) < self.table.limit
        if room:
            self.table.enter(key, self.now)
            self.leases[key] += 1
            return
        with pytest.raises(TooManySessions) as refused:
            self.table.enter(key, self.now)
        assert 1 <= (refused.value.retry_after_s or 0) <= 60

    def _leave(self, key: Key) -> None:
        self.table.leave(key, self.now)
        self.leases[key] -= 1

    def _begin(self, key: Key) -> None:
        self.rows.append(self.table.begin(key, SandboxId(f"{len(self.rows):016x}"), self.now))

    def _adopt(self, key: Key) -> None:
        sandbox = SandboxId(f"{len(self.rows):016x}")
        if self.table.row(key) is not None:
            with pytest.raises(ValueError, match="one sandbox"):
                self.table.adopt(key, sandbox, self.now)
            return
        self.rows.append(self.table.adopt(key, sandbox, self.now))

    def _ready(self, n: int) -> None:
        self.table.ready(self.rows[n], self.now)

    def _used(self, n: int) -> None:
        self.table.used(self.rows[n], self.now)

    def _take(self, n: int) -> None:
        assert self.table.take(self.rows[n]) == (n not in self.left), "taken once, and told so once"
        self.left.add(n)

    def _gone(self, n: int) -> None:
        self.table.gone(self.rows[n])
        self.left.add(n)
        self.gone.add(n)

    def _remove(self, key: Key, force: bool) -> None:
        try:
            found = self.table.removable([key], force=force)
        except SessionBusy:
            assert self.leases[key], "refused though nobody is there"
            assert not force
        else:
            assert force or not self.leases[key], "removed from under somebody"
            for row in found:
                self._take(self.rows.index(row))

    def _reap(self) -> None:
        for row in self.table.due(self.now):
            self._take(self.rows.index(row))

    def _wait(self) -> None:
        self.now += IDLE_S / 2


def no_leased_key_is_due(world: Sandboxes) -> None:
    for later in (0.0, IDLE_S, 1e9):
        assert not [row for row in world.table.due(world.now + later) if world.leases[row.key]]


def what_nobody_leases_is_due_in_time(world: Sandboxes) -> None:
    idle = {id(row) for row in world.table.rows() if not world.leases[row.key]}
    assert {id(row) for row in world.table.due(world.now + IDLE_S)} == idle
    soon = world.table.due(world.now)
    assert all(world.now - row.used_at >= IDLE_S for row in soon)
    assert soon == sorted(soon, key=lambda row: row.used_at)


def there_are_never_more_than_the_limit(world: Sandboxes) -> None:
    assert len(world.taken()) <= world.table.limit
    assert world.table._taken() == world.taken()


def a_key_has_one_sandbox_and_it_is_not_leaving(world: Sandboxes) -> None:
    for key in (A, B):
        here = [n for n, row in enumerate(world.rows) if row.key == key and n not in world.left]
        assert len(here) <= 1
        assert world.table.row(key) is (world.rows[here[0]] if here else None)
    assert all((row.phase == "leaving") == (n in world.left) for n, row in enumerate(world.rows))


def a_leased_key_can_begin(world: Sandboxes) -> None:
    """It has room, so a start at any later moment is not refused, whatever became of the one before."""
    for key in (A, B):
        assert world.table.leased(key) == bool(world.leases[key])
        if world.leases[key] and world.table.row(key) is None:
            row = world.table.begin(key, SandboxId("f" * 16), world.now)
            world.table.gone(row)


def the_table_holds_nothing_that_is_over(world: Sandboxes) -> None:
    assert world.table._leases == {key: count for key, count in world.leases.items() if count}
    leaving = {id(world.rows[n]) for n in world.left - world.gone}
    assert {id(row) for row in world.table._leaving} == leaving


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_the_table_of_sandboxes_in_every_order(limit: int) -> None:
    invariants = [
        no_leased_key_is_due,
        what_nobody_leases_is_due_in_time,
        there_are_never_more_than_the_limit,
        a_key_has_one_sandbox_and_it_is_not_leaving,
        a_leased_key_can_begin,
        the_table_holds_nothing_that_is_over,
    ]
    assert explore(lambda: Sandboxes(limit), invariants, depth=7) > (0, 300, 1000)[limit]


# --- sandboxes that nobody has yet --------------------------------------------------------------------------------------

NEW = Key("b", "s")


class Spares(Sandboxes):
    """The same table, with spares of the scope ``a`` and of none; NEW is a session of another scope."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.made_for: dict[int, Key] = {}
        """What each spare was known by at first."""
        self.given: dict[int, Key] = {}
        self.fresh = False

    def steps(self) -> list[Step]:
        found = super().steps()
        if len(self.rows) < 4:
            found += [("spare", scope) for scope in ("a", None)]
        if self.leases[NEW] < 1:
            found.append(("enter", NEW))
        else:
            found.append(("leave", NEW))
        found += [("claim", n, key) for n in self.made_for for key in (B, NEW)]
        return [*found, ("make_room",)]

    def state(self) -> Hashable:
        return super().state(), self.leases[NEW], tuple(self.made_for.items())

    def taken(self) -> set[Key]:
        return {key for key in super().taken() if key.session != ""}

    def _spare(self, scope: str | None) -> None:
        spares = [n for n, row in enumerate(self.rows) if row.spare and n not in self.gone]
        sandbox = SandboxId(f"{len(self.rows):016x}")
        if len(self.taken()) + len(spares) >= self.table.limit:
            with pytest.raises(ValueError, match="no room"):
                self.table.begin_spare(scope, sandbox, self.now)
            return
        self.made_for[len(self.rows)] = Key(scope or "", "")
        self.rows.append(self.table.begin_spare(scope, sandbox, self.now))

    def _claim(self, n: int, key: Key) -> None:
        row, scope = self.rows[n], self.made_for[n].scope
        may = row.spare and row.phase == "ready" and scope in ("", key.scope)
        if not may or not self.leases[key] or self.table.row(key) is not None:
            with pytest.raises(ValueError, match="once, for somebody of its scope"):
                self.table.claim(row, key, self.now)
            return
        unseen = not scope
        assert self.table.fitting(key, unseen=unseen) is not None
        self.table.claim(row, key, self.now)
        assert row.phase == "starting", "it is not the session's before its directory is"
        assert n not in self.given, "used once"
        self.given[n] = key

    def _make_room(self) -> None:
        for row in self.table.surplus():
            self._take(self.rows.index(row))


def a_spare_is_nobodys_and_then_one_sessions(world: Spares) -> None:
    for n, first in world.made_for.items():
        assert world.rows[n].key == world.given.get(n, first)
        assert first.scope in ("", world.rows[n].key.scope)
    assert not any(row.spare for row in world.table.rows())
    assert all(row.spare and row.phase in ("starting", "ready") for row in world.table.spares())


def spares_give_way(world: Spares) -> None:
    there = [n for n, row in enumerate(world.rows) if row.spare and n not in world.left]
    assert [world.rows.index(row) for row in world.table.spares()] == there
    stay = len(there) - len(world.table.surplus())
    assert stay == max(0, min(len(there), world.table.limit - len(world.taken())))
    leaving = sum(row.spare and n in world.left - world.gone for n, row in enumerate(world.rows))
    assert world.table.room() == world.table.limit - len(world.taken()) - len(there) - leaving


def a_spare_that_nobody_wants_is_due_in_time(world: Spares) -> None:
    due = world.table.due(world.now + IDLE_S)
    assert {row.id for row in due} >= {row.id for row in world.table.spares()}


@pytest.mark.parametrize("limit", [1, 2])
def test_spares_in_every_order(limit: int) -> None:
    invariants = [
        no_leased_key_is_due,
        there_are_never_more_than_the_limit,
        a_leased_key_can_begin,
        the_table_holds_nothing_that_is_over,
        a_spare_is_nobodys_and_then_one_sessions,
        spares_give_way,
        a_spare_that_nobody_wants_is_due_in_time,
    ]
    assert explore(lambda: Spares(limit), invariants, depth=5) > (0, 100, 300)[limit]


# --- who waits for a kernel, and what is said of its lives -----------------------------------------------------------

PY, OTHER = KernelKey("python", "default"), KernelKey("python", "other")
ONE, TWO = SandboxId("1" * 16), SandboxId("2" * 16)


class Lives:
    """The table of kernels with room for one kernel and one that waits. The sandbox may say anything, at any time."""

    def __init__(self) -> None:
        self.kernels = Kernels(max_queue=1, max_kernels=1)
        self.queue: dict[KernelKey, list[str]] = {PY: [], OTHER: []}
        """Tickets in the order of their turns; the first one has it."""
        self.tickets = 0
        self.lost = False
        """Whether the kernel PY was lost, and no answer has said so."""
        self.unseen = False
        """Whether it ended unseen, so that its sandbox may still tell why."""
        self.generation = 0

    def steps(self) -> list[Step]:
        found: list[Step] = [("join", PY, False), ("join", OTHER, False)]
        if len(self.queue[PY]) < 3:
            found.append(("join", PY, True))
        for name, queue in self.queue.items():
            found += [("leave", name, place) for place in range(len(queue))]
        if self.queue[PY]:
            found += [("ran", home, told) for home in (ONE, TWO) for told in ("new", "kept", "lost", None)]
        for home in (ONE, TWO):
            found += [("gone", home), ("sandbox_gone", home, "oom"), ("sandbox_gone", home, "deleted")]
            found += [("found", home, True), ("found", home, False)]
            if self.queue[PY]:  # whoever restarts it has a place in its queue
                found.append(("restarted", home))
        found += [("ended_by_owner",), ("forget",)]
        return found

    def do(self, name: str, *arguments: Any) -> None:
        getattr(self, f"_{name}")(*arguments)

    def state(self) -> Hashable:
        kernel = self.kernel
        known = kernel and (kernel.alive, kernel.home, kernel.restarted, kernel.loss, kernel.generation > 0)
        return known, self.lost, self.unseen, len(self.queue[PY]), len(self.queue[OTHER])

    @property
    def kernel(self) -> Kernel | None:
        return self.kernels.get(A, PY)

    @property
    def alive(self) -> bool:
        return self.kernel is not None and self.kernel.alive

    def _join(self, name: KernelKey, first: bool) -> None:
        ticket, queue = f"t{self.tickets}", self.queue[name]
        other = self.queue[OTHER if name == PY else PY]
        taken = bool(other) or (name == OTHER and self.alive)
        try:
            turn = self.kernels.join(A, name, ticket, first=first)
        except TooManyKernels:
            assert taken, "there was room for the kernel"
            assert not queue, "a kernel that somebody uses was refused"
            return
        except QueueFull:
            assert len(queue) > 1, "there was room in the queue"
            assert not first
            return
        self.tickets += 1
        assert turn == (not queue), "a turn is given when nobody has it"
        queue.insert(min(1, len(queue)) if first else len(queue), ticket)

    def _leave(self, name: KernelKey, place: int) -> None:
        queue = self.queue[name]
        ticket = queue.pop(place)
        following = self.kernels.leave(A, name, ticket)
        assert following == (queue[0] if queue and place == 0 else None), "the next one is told, once"

    def _ran(self, home: SandboxId, told: Any) -> None:
        was_alive, at_home = self.alive, self.kernel is not None and self.kernel.home == home
        life = self.kernels.ran(A, PY, home, told=told, reason="crash" if told == "lost" else None, now=1.0)
        if not was_alive and at_home and told not in ("new", "lost"):
            assert life == Life("kept", self.generation), "the end of its sandbox is the next answer's to tell"
            return
        self.unseen = False
        if told == "lost":
            assert (life.state, life.reason) == ("lost", "crash")
        else:
            assert (life.state == "lost") == self.lost, "a loss is told once, and only a loss"
        if not (was_alive and at_home) and self.generation == 0 and not self.lost and told != "lost":
            assert life.state == "new"
        self.lost = False
        assert life.generation is not None
        assert life.generation >= max(1, self.generation), "generations only grow"
        if life.state == "kept":
            assert life.generation == self.generation, "kept means the same life"
        self.generation = life.generation

    def _gone(self, home: SandboxId) -> None:
        here = (self.alive or self.unseen) and self.kernel is not None and self.kernel.home == home
        self.unseen = self.unseen and not here
        assert self.kernels.gone(A, PY, home, "crash") == here
        self.lost = self.lost or here

    def _sandbox_gone(self, home: SandboxId, reason: Any) -> None:
        here = self.alive and self.kernel is not None and self.kernel.home == home
        self.kernels.sandbox_gone(A, home, reason)
        if here:
            self.lost = reason != "deleted"

    def _found(self, home: SandboxId, there: bool) -> None:
        here = self.alive and self.kernel is not None and self.kernel.home == home
        self.kernels.found(A, home, [PY] if there else [])
        self.lost = self.lost or (here and not there)
        self.unseen = self.unseen or (here and not there)

    def _ended_by_owner(self) -> None:
        self.kernels.ended_by_owner(A)
        self.lost = self.unseen = False

    def _restarted(self, home: SandboxId) -> None:
        known = self.kernel is not None
        self.unseen = False
        self.kernels.restarted(A, PY, home, 1.0)
        self.lost = self.lost and not known
        self.generation += known

    def _forget(self) -> None:
        self.kernels.forget(A)
        self.lost, self.unseen, self.generation = False, False, 0


def turns_go_round_in_order(world: Lives) -> None:
    for name, queue in world.queue.items():
        kernel = world.kernels.get(A, name)
        known = [] if kernel is None else [*([kernel.running] if kernel.running else []), *kernel.waiting]
        assert known == queue
        assert kernel is None or kernel.running or not kernel.waiting, "somebody waits for nobody"


def a_sandbox_has_so_many_kernels(world: Lives) -> None:
    assert len(world.kernels.of(A)) <= 1


def what_is_told_of_a_kernel_is_one_life(world: Lives) -> None:
    kernel = world.kernel
    if kernel is None:
        return
    assert kernel.generation == world.generation or kernel.generation == 0
    assert not (kernel.alive and kernel.loss), "alive and lost at once"
    assert not kernel.alive or kernel.home is not None
    assert not kernel.restarted or kernel.alive
    assert (kernel.loss is not None) == world.lost


def test_the_table_of_kernels_in_every_order() -> None:
    invariants = [turns_go_round_in_order, a_sandbox_has_so_many_kernels, what_is_told_of_a_kernel_is_one_life]
    reached = explore(Lives, invariants, depth=8)
    assert reached == explore(Lives, [], depth=10), "these are all the states that there are"


# --- both together, as the service uses them ----------------------------------------------------------------------------


class Session:
    """One session with one kernel: its sandboxes start, work and end in any order with calls and with what its owner does.

    Answers come from the sandbox in which their call began, also when that one has ended meanwhile.
    """

    def __init__(self) -> None:
        self.table = Table(limit=1, idle_s=IDLE_S)
        self.kernels = Kernels(max_queue=2, max_kernels=2)
        self.rows: list[Row] = []
        self.reasons: dict[int, str] = {}
        """Why each row is leaving."""
        self.gone: set[int] = set()
        self.calls: list[str] = []
        self.called = 0
        self.home: int | None = None
        """The row in which the call whose turn it is began."""
        self.lives = 0
        self.untold = False

    def steps(self) -> list[Step]:
        found: list[Step] = []
        if len(self.calls) < 2:
            found.append(("call",))
        row = self.table.row(A)
        if self.calls and row is None and len(self.rows) < 3:
            found.append(("begin",))
        if self.calls and self.home is None and row is not None and row.phase == "ready":
            found.append(("send",))
        if self.home is not None:
            found += [("answer", told) for told in ("new", "kept", "lost")]
        for n in range(len(self.rows)):
            found += [("ready", n), ("end", n, "crash"), ("end", n, "idle"), ("kernel_gone", n)]
            if n in self.reasons:
                found.append(("gone", n))
        return [*found, ("remove",), ("purge",)]

    def do(self, name: str, *arguments: Any) -> None:
        getattr(self, f"_{name}")(*arguments)

    def state(self) -> Hashable:
        kernel = self.kernels.get(A, PY)
        known = kernel and (kernel.alive, kernel.home, kernel.restarted, kernel.loss, kernel.generation > 0)
        rows = [(row.phase, self.reasons.get(n), n in self.gone) for n, row in enumerate(self.rows)]
        return known, tuple(rows), len(self.calls), self.home, self.untold

    def _call(self) -> None:
        self.table.enter(A, 0.0)
        self.called += 1
        self.calls.append(f"t{self.called}")
        self.kernels.join(A, PY, self.calls[-1])

    def _begin(self) -> None:
        self.rows.append(self.table.begin(A, SandboxId(f"{len(self.rows):016x}"), 0.0))

    def _ready(self, n: int) -> None:
        self.table.ready(self.rows[n], 0.0)

    def _send(self) -> None:
        row = self.table.row(A)
        assert row is not None
        self.home = self.rows.index(row)

    def _answer(self, told: Any) -> None:
        assert self.home is not None
        before, n, self.home = self.kernels.get(A, PY), self.home, None
        assert before is not None
        alive, generation = before.alive, before.generation
        sandbox = self.rows[n].id
        life = self.kernels.ran(A, PY, sandbox, told=told, reason="crash" if told == "lost" else None, now=0.0)
        if n in self.reasons:
            self.kernels.sandbox_gone(A, sandbox, self.reasons[n])  # type: ignore[arg-type]  # one of the reasons
        if told == "lost":
            self.untold = False
        elif life.state == "lost":
            assert self.untold, "a loss that never was, or was told before"
            self.untold = False
        elif life.state == "kept":
            assert life.generation == generation, "kept means the same life"
        # A life that began with this answer, in a sandbox that has ended since, is the next answer's to tell.
        now = self.kernels.get(A, PY)
        assert now is not None
        if not alive and now.generation > generation and self.reasons.get(n, "deleted") != "deleted":
            self.untold = told != "lost"
        elif alive and not now.alive and told != "lost" and self.reasons.get(n, "deleted") != "deleted":
            self.untold = True
        self._over()

    def _over(self) -> None:
        self.kernels.leave(A, PY, self.calls.pop(0))
        self.table.leave(A, 0.0)

    def _end(self, n: int, reason: str) -> None:
        if not self.table.take(self.rows[n]):
            return
        self.reasons[n] = reason
        kernel = self.kernels.get(A, PY)
        here = kernel is not None and kernel.alive and kernel.home == self.rows[n].id
        self.kernels.sandbox_gone(A, self.rows[n].id, reason)  # type: ignore[arg-type]  # one of the reasons
        if here:
            self.untold = reason != "deleted"

    def _kernel_gone(self, n: int) -> None:
        if self.kernels.gone(A, PY, self.rows[n].id, "exit"):
            self.untold = True

    def _gone(self, n: int) -> None:
        self.table.gone(self.rows[n])
        self.gone.add(n)

    def _remove(self) -> None:
        for row in self.table.removable([A], force=True):
            self._end(self.rows.index(row), "deleted")
        self.kernels.ended_by_owner(A)
        self.untold = False

    def _purge(self) -> None:
        self._remove()
        self.kernels.forget(A)


def a_kernel_lives_in_a_sandbox_that_is_there(world: Session) -> None:
    kernel, row = world.kernels.get(A, PY), world.table.row(A)
    assert kernel is None or not kernel.alive or (row is not None and kernel.home == row.id)


def a_loss_waits_for_the_next_answer(world: Session) -> None:
    kernel = world.kernels.get(A, PY)
    assert (kernel is not None and kernel.loss is not None) == world.untold


def a_call_holds_its_lease_and_its_place(world: Session) -> None:
    assert world.table._leases.get(A, 0) == len(world.calls)
    kernel = world.kernels.get(A, PY)
    known = [] if kernel is None else [*([kernel.running] if kernel.running else []), *kernel.waiting]
    assert known == world.calls


def test_a_session_in_every_order() -> None:
    invariants = [a_kernel_lives_in_a_sandbox_that_is_there, a_loss_waits_for_the_next_answer]
    assert explore(Session, [*invariants, a_call_holds_its_lease_and_its_place], depth=9) > 500
