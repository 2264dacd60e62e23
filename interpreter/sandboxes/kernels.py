"""Which kernels there are, who waits for them in which order, and what has to be said of their lives.

Promises: a kernel runs one execution at a time, first come first served. ``generation`` counts the lives of a kernel from 1
until its session is purged. That a kernel was lost is said exactly once, in the answer that lost it or in the next one; a
kernel that its owner ended himself is not called lost. What has changed is in ``changes`` until it was taken, so that it can
outlive the service.
Leaves to others: waiting, clocks, keeping, and the sandbox itself. Plain code: no await, no I/O. Times are wall-clock seconds,
for listings only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sandboxd.protocol import Reason

from interpreter.backends.base import SandboxId
from interpreter.errors import QueueFull, TooManyKernels
from interpreter.executions.model import Life, State
from interpreter.keys import KernelKey, Key

MAX_REMEMBERED = 10_000
"""Kernels that are known, running or not. Past it those that have been gone longest are forgotten."""

Told = State | None


@dataclass(eq=False, slots=True)
class Kernel:
    """One kernel and its queue. alive: it runs, as far as is known. executions: answered in this life.

    home: the sandbox of its present or last life. loss: a loss that no answer has told yet.
    unseen: it ended while there was no service, and why may still be told.
    restarted: by its owner, so the next answer says ``new`` though the kernel was there before.
    """

    key: Key
    name: KernelKey
    generation: int = 0
    alive: bool = False
    home: SandboxId | None = None
    unseen: bool = False
    restarted: bool = False
    loss: Reason | None = None
    running: str | None = None
    waiting: deque[str] = field(default_factory=deque)
    executions: int = 0
    started_at: float = 0.0
    used_at: float = 0.0

    @property
    def wanted(self) -> bool:
        """Whether something runs or waits in it."""
        return self.running is not None or bool(self.waiting)


Changes = list[tuple[Key, KernelKey, Kernel | None]]
"""Kernels as they are now, None for one that is forgotten."""


@dataclass(slots=True)
class Kernels:
    """max_queue: executions that wait for one kernel. max_kernels: of one sandbox. remembered: in all. on_change: called
    whenever ``changes`` has got something new, with whether that is more than how often it was used.
    """

    max_queue: int
    max_kernels: int
    remembered: int = MAX_REMEMBERED
    on_change: Callable[[bool], None] = lambda _soon: None
    _kernels: dict[tuple[Key, KernelKey], Kernel] = field(default_factory=dict)
    _by_key: dict[Key, dict[KernelKey, Kernel]] = field(default_factory=dict)
    _changed: dict[tuple[Key, KernelKey], None] = field(default_factory=dict)

    def changes(self) -> Changes:
        """Take what has changed since the last call: kernels as they are now, None for one that is forgotten."""
        changed, self._changed = self._changed, {}
        return [(key, name, self._kernels.get((key, name))) for key, name in changed]

    def changed_again(self, changes: Changes) -> None:
        """Give back changes that could not be kept; ``on_change`` is not called."""
        for key, name, _ in changes:
            self._changed[key, name] = None

    def restore(self, kernels: Iterable[Kernel], running: Iterable[SandboxId]) -> None:
        """Take over what an earlier service knew. running: sandboxes that still run; the kernels of others are lost."""
        homes = set(running)
        for kernel in kernels:
            self._add(kernel)
            if kernel.alive and kernel.home not in homes:
                self._lose(kernel, "killed")

    def found(self, key: Key, sandbox: SandboxId, alive: Iterable[KernelKey]) -> None:
        """Say which kernels of ``key`` run in the ``sandbox`` that was taken over: the others ended unseen."""
        there = set(alive)
        for name, kernel in self._here(key):
            if kernel.home == sandbox and kernel.alive and name not in there:
                self._lose(kernel, "crash")
                kernel.unseen = True

    def get(self, key: Key, name: KernelKey) -> Kernel | None:
        """Return what is known of a kernel."""
        return self._kernels.get((key, name))

    def of(self, key: Key) -> list[Kernel]:
        """Return the kernels of one sandbox that run or are wanted."""
        return [kernel for _, kernel in self._here(key) if kernel.alive or kernel.wanted]

    def counts(self) -> dict[str, int]:
        """Return how many kernels run or are wanted, by language."""
        return Counter(name.language for (_, name), kernel in self._kernels.items() if kernel.alive or kernel.wanted)

    def join(self, key: Key, name: KernelKey, ticket: str, *, first: bool = False) -> bool:
        """Take a place in the queue; True if it is ``ticket``'s turn now. Raises QueueFull, TooManyKernels.

        first: before all others that wait, and there is always room.
        """
        kernel = self._kernels.get((key, name))
        if kernel is None or not (kernel.alive or kernel.wanted):
            if len(self.of(key)) >= self.max_kernels:
                raise TooManyKernels(
                    f"This sandbox has {self.max_kernels} kernels, which is the limit; delete one of them.",
                    retry_after_s=5.0,
                )
            if kernel is None:
                self._forget()
                kernel = self._add(Kernel(key, name))
        if kernel.running is None and not kernel.waiting:
            kernel.running = ticket
            return True
        if first:
            kernel.waiting.appendleft(ticket)
            return False
        if len(kernel.waiting) >= self.max_queue:
            raise QueueFull(f"{self.max_queue} executions wait for this kernel.", retry_after_s=1.0)
        kernel.waiting.append(ticket)
        return False

    def leave(self, key: Key, name: KernelKey, ticket: str) -> str | None:
        """Give a turn or a place in the queue back; return the ticket whose turn it is now, if that changed."""
        kernel = self._kernels[key, name]
        if kernel.running != ticket:
            if ticket in kernel.waiting:
                kernel.waiting.remove(ticket)
            return None
        kernel.running = kernel.waiting.popleft() if kernel.waiting else None
        return kernel.running

    def ran(
        self, key: Key, name: KernelKey, sandbox: SandboxId, *, told: Told, reason: Reason | None, now: float
    ) -> Life:
        """Say what an execution that ran in ``sandbox`` has told of its kernel; return what its answer says.

        told: as in ``Outcome.kernel``; None counts as kept. reason: why the kernel is lost, if it is.
        """
        kernel = self._kernels[key, name]
        fresh = kernel.home != sandbox or (told == "new" and not kernel.restarted)  # that life has begun already
        if not fresh and not kernel.alive and told != "lost":
            return Life(
                "kept", kernel.generation
            )  # The sandbox ended just after; that loss is the next answer's to tell.
        untold, kernel.loss = kernel.loss, None
        restarted, kernel.restarted = kernel.restarted, False
        if fresh:
            self._begin(kernel, sandbox, now)
        kernel.executions += 1
        kernel.used_at = now
        kernel.unseen = False
        self._note(kernel, soon=fresh or restarted or untold is not None or told == "lost")
        if told == "lost":
            kernel.alive, kernel.home = False, None
            return Life("lost", kernel.generation, reason or "crash")
        if untold is not None:
            return Life("lost", kernel.generation, untold)
        return Life("new" if fresh or restarted else "kept", kernel.generation)

    def gone(self, key: Key, name: KernelKey, sandbox: SandboxId, reason: Reason) -> bool:
        """Say that a kernel in ``sandbox`` ended between executions; False if it was not there."""
        kernel = self._kernels.get((key, name))
        if kernel is None or not (kernel.alive or kernel.unseen) or kernel.home != sandbox:
            return False
        self._lose(kernel, reason)
        kernel.home = None
        return True

    def sandbox_gone(self, key: Key, sandbox: SandboxId, reason: Reason) -> None:
        """Say that the kernels of ``key`` in ``sandbox`` ended with it. ``deleted``: by their owner, so it is no loss."""
        for _, kernel in self._here(key):
            if kernel.home == sandbox and kernel.alive:
                self._lose(kernel, None if reason == "deleted" else reason)

    def ended_by_owner(self, key: Key, name: KernelKey | None = None) -> None:
        """Say that their owner ended one kernel or all of ``key``: the next answer says ``new``, and no loss."""
        for called, kernel in self._here(key):
            if name in (None, called):
                self._lose(kernel, None)
                if kernel.running is None:
                    kernel.home = None

    def restarted(self, key: Key, name: KernelKey, sandbox: SandboxId, now: float) -> None:
        """Say that its owner restarted a kernel: it runs, in a life that no answer has told yet."""
        if (kernel := self._kernels.get((key, name))) is not None:
            self._begin(kernel, sandbox, now)
            kernel.restarted = True
            kernel.loss = None

    def forget(self, key: Key) -> None:
        """Forget the kernels of a purged session, generations too. Those still wanted begin anew."""
        for _, kernel in self._here(key):
            self._note(kernel)
            if kernel.wanted:
                kernel.generation, kernel.alive, kernel.restarted, kernel.loss, kernel.home = (
                    0,
                    False,
                    False,
                    None,
                    None,
                )
            else:
                self._remove(kernel)

    def keys(self, scope: str) -> set[Key]:
        """Return the keys of ``scope`` of which kernels are known."""
        return {key for key in self._by_key if key.scope == scope}

    def _here(self, key: Key) -> list[tuple[KernelKey, Kernel]]:
        """Return the kernels of one sandbox, known or running."""
        return list(self._by_key.get(key, {}).items())

    def _add(self, kernel: Kernel) -> Kernel:
        self._kernels[kernel.key, kernel.name] = kernel
        self._by_key.setdefault(kernel.key, {})[kernel.name] = kernel
        return kernel

    def _remove(self, kernel: Kernel) -> None:
        del self._kernels[kernel.key, kernel.name]
        here = self._by_key[kernel.key]
        del here[kernel.name]
        if not here:
            del self._by_key[kernel.key]

    def _begin(self, kernel: Kernel, sandbox: SandboxId, now: float) -> None:
        kernel.generation += 1
        kernel.alive = True
        kernel.home = sandbox
        kernel.executions = 0
        kernel.started_at = kernel.used_at = now
        self._note(kernel)

    def _lose(self, kernel: Kernel, reason: Reason | None) -> None:
        kernel.alive = kernel.restarted = kernel.unseen = False
        kernel.loss = reason
        self._note(kernel)

    def _note(self, kernel: Kernel, *, soon: bool = True) -> None:
        self._changed[kernel.key, kernel.name] = None
        self.on_change(soon)

    def _forget(self) -> None:
        if len(self._kernels) < self.remembered:
            return
        gone = sorted((k for k in self._kernels.values() if not (k.alive or k.wanted)), key=lambda k: k.used_at)
        for kernel in gone[: max(1, self.remembered // 10)]:
            self._remove(kernel)
            self._note(kernel)
