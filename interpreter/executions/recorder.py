"""Keeps executions and kernels where the next service finds them, and tells sandboxes what is kept.

Promises: an execution whose id its caller knows is noted before it waits, and before its sandbox is told of it, so that nothing
runs twice; any other one a moment later, if it still runs then. Its answer is noted after whoever waited got it, and only then
is the sandbox told to forget its own copy. Where the disk takes nothing, named executions are refused and the others run all the
same; answers are noted later.
Leaves to records.py: the file; to runner.py: what is resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from interpreter.backends.base import SandboxId
from interpreter.errors import StorageFailed
from interpreter.executions import kept
from interpreter.executions.execution import Execution
from interpreter.executions.model import Answer
from interpreter.records import SOME, ExecutionRecord, Records
from interpreter.sandboxes.kernels import Changes, Kernels
from interpreter.tasks import Tasks

log = logging.getLogger(__name__)

INLINE_BYTES = 64 * 1024
"""Longer answers are files of their own, written in a thread."""
MAX_WRITING_BYTES = 128 * 1024 * 1024
"""Of long answers that are being written, two at a time. Past it one is kept without its output."""
MAX_NUMBER = 10_000
MAX_BYTES = 256 * 1024 * 1024
"""Of kept answers."""
RETRY_S = 1.0
SOON_S = 0.02
"""For what is noted together. Of what has no record when a service is killed the sandbox knows."""
CHECKPOINT_S = 2.0
"""Between two looks at the log of the records, which grows by some 30 KB with each execution."""
MAX_WAITING = 1_000
"""Answers that wait for a disk that takes nothing. Past it the oldest is not kept beyond this service."""
CLOSE_S = 10.0


_AllSent = dict[Execution, tuple[SandboxId, str, float]]
"""To which sandbox, under which id, when."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """An answer to be noted. settle: to be called once it is. known: its execution has a record already."""

    record: ExecutionRecord
    settle: Callable[[], None]
    known: bool


class Recorder:
    """Notes what happens. root: of the data; ``records`` is open. keep_s: how long an answer is kept."""

    def __init__(
        self, records: Records, kernels: Kernels, root: Path, *, keep_s: float, clock: Callable[[], float]
    ) -> None:
        self._records = records
        self._kernels = kernels
        self._folder = root / ".answers"
        self._keep_s = keep_s
        self._clock = clock
        self._tasks = Tasks()
        self._files: dict[asyncio.Task[None], Execution] = {}
        self._uncertain: dict[tuple[str, str], tuple[Execution, Callable[[], None]]] = {}
        self._ended: list[_Ended] = []
        self._sent: _AllSent = {}  # not noted yet
        self._next: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writers = asyncio.Semaphore(2)
        self._writing_bytes = 0
        self._added = self._added_bytes = 0  # since the last look at what is too much
        self._failing = False
        kernels.on_change = lambda soon: self._soon() if soon else self._later()

    @property
    def failing(self) -> bool:
        """Whether something waits for a disk that takes nothing, as far as is known."""
        return self._failing or self._records.refused is not None

    def taken(self, execution: Execution) -> None:
        """Note a named execution before it waits for anything. Raises StorageFailed: then it must not run."""
        if execution.named:
            self._give_up(execution)
            self._records.execution(kept.waiting(execution))
            execution.noted = True

    def sent(self, execution: Execution, sandbox: SandboxId, link: str) -> None:
        """Note that it is about to be sent. Raises StorageFailed for a named one: then it must not be.

        One that nobody knows by its id is noted a moment later, unless it has ended by then: most have. Should this service be
        killed within that moment, the next one ends it, as any that nobody can ask for.
        """
        if not (execution.named or execution.request.stream):
            self._sent[execution] = (sandbox, link, self._clock())
            self._later()
            return
        self._note_sent(execution, (sandbox, link, self._clock()))

    def _note_sent(self, execution: Execution, where: tuple[SandboxId, str, float]) -> None:
        try:
            self._records.execution(kept.sent(execution, *where))
            execution.noted = True
        except StorageFailed:
            if execution.named:
                raise
            self._trouble()

    def ended(self, execution: Execution, answer: Answer, *, settle: Callable[[], None]) -> None:
        """Note its answer, soon; call ``settle`` then."""
        self._sent.pop(execution, None)
        if answer.size() > INLINE_BYTES:
            task = self._tasks.start(self._file(execution, answer, settle), name=f"keep answer {execution.id}")
            self._files[task] = execution
            task.add_done_callback(self._files.pop)
            return
        self._add(_Ended(kept.answered(execution, answer.to_json()), settle, execution.noted))

    def dropped(self, execution: Execution) -> None:
        """Note that it never ran: the same id may be used again."""
        self._sent.pop(execution, None)
        if execution.noted:
            with contextlib.suppress(StorageFailed):
                self._records.forget(execution.scope, execution.id)

    def uncertain(self, execution: Execution, *, settle: Callable[[], None]) -> None:
        """Leave the record of one that may have run and has no answer: so it does not run again, and the next service asks its
        sandbox. For as long as an answer is kept; ``settle`` is called then.
        """
        if execution in self._sent:
            self._note_sent(execution, self._sent.pop(execution))
        self._uncertain[execution.scope, execution.id] = execution, settle
        if len(self._uncertain) > MAX_WAITING:
            self._give_up(next(iter(self._uncertain.values()))[0])

    async def forget(self, scope: str, session: str | None = None) -> None:
        """Forget the answers of a purged session, or of all of a scope if ``session`` is None. Raises StorageFailed, also where
        one of them is still being written after ``CLOSE_S``.
        """

        def purged(execution: Execution) -> bool:
            return execution.scope == scope and session in (None, execution.session)

        writing = [task for task, execution in self._files.items() if purged(execution)]
        if writing and (await asyncio.wait(writing, timeout=CLOSE_S))[1]:
            raise StorageFailed("The disk of the service does not take an answer in time, which is purged after it.")
        self._records.attach()
        for execution, _ in list(self._uncertain.values()):
            if purged(execution):
                self._give_up(execution)
        self._flush()
        await self._all_gone(partial(self._records.purge, scope, session))

    def find(self, execution_id: str, scope: str | None) -> Execution | None:
        """Return a finished execution that is kept and not in memory any more. scope: None for ids of ours.

        Reads a file where the answer is long: after ``recall`` there is no need to.
        """
        try:
            record = self._found(execution_id, scope)
            return None if record is None else self._read(record)
        except (StorageFailed, OSError, msgspec.MsgspecError) as error:
            log.error("a kept answer cannot be read", extra={"execution": execution_id, "error": str(error)[:200]})
            return None

    async def recall(self, execution_id: str, scope: str | None) -> Execution | None:
        """Return the same if its answer is long, read in a thread."""
        try:
            record = self._found(execution_id, scope)
            if record is None or record.file is None:
                return None
            kept = await asyncio.to_thread(self._read, record)
            return None if self._found(execution_id, scope) is None else kept  # it may have been purged meanwhile
        except (StorageFailed, OSError, msgspec.MsgspecError):
            return None  # ``find`` says why

    def unfinished(self) -> list[tuple[Execution, ExecutionRecord]]:
        """Return what an earlier service left waiting or running, in the order of its coming."""
        found = []
        for record in self._records.unfinished():
            with contextlib.suppress(msgspec.MsgspecError):
                found.append((kept.restored(record, None), record))
        return found

    def restore_kernels(self, running: frozenset[SandboxId]) -> None:
        """Let the table of kernels know what an earlier service knew. running: sandboxes that are still there."""
        self._kernels.restore((kept.kernel(record) for record in self._records.kernels()), running)

    async def run(self) -> None:
        """Forget what is kept too long, and keep the log of the records small, for ever."""
        every_s = min(30.0, max(self._keep_s / 4, 0.25))
        due = self._clock()
        while True:
            if self._records.refused is None:
                await asyncio.to_thread(self._records.checkpoint)
            elif self._records.attach():
                log.warning("the data root can be written again")
            if self._clock() >= due or self._added_bytes > MAX_BYTES // 4 or self._added > MAX_NUMBER // 4:
                due = self._clock() + every_s
                for execution, _ in list(self._uncertain.values()):
                    if (execution.finished_at or 0.0) < self._clock() - self._keep_s:
                        self._give_up(execution)
                self._added = self._added_bytes = 0
                with contextlib.suppress(StorageFailed):
                    await self._all_gone(
                        partial(self._records.expire, self._clock() - self._keep_s, MAX_BYTES, MAX_NUMBER)
                    )
            await asyncio.sleep(min(CHECKPOINT_S, every_s))

    def sweep(self) -> None:
        """Remove files that no record names. Blocks; to be called before anything is noted."""
        if self._folder.is_dir():
            self._remove(list(set(os.listdir(self._folder)) - self._records.files()))

    async def aclose(self) -> None:
        """Note all that is left to note. May be called twice."""
        while len(self._tasks):
            await self._tasks.idle(within_s=CLOSE_S)
        self._flush()
        if self._timer is not None:
            self._timer.cancel()  # of the next try
            self._timer = None

    def _give_up(self, execution: Execution) -> None:
        """Free the id of one that may have run."""
        uncertain, settle = self._uncertain.pop((execution.scope, execution.id), (None, None))
        if uncertain is not None and settle is not None:
            self.dropped(uncertain)
            settle()

    def _found(self, execution_id: str, scope: str | None) -> ExecutionRecord | None:
        record = self._records.finished(execution_id, scope)
        if record is None or record.finished_at is None or record.finished_at < self._clock() - self._keep_s:
            return None
        return dataclasses.replace(
            record, finished_at=min(record.finished_at, self._clock())
        )  # it may be of another boot

    def _read(self, record: ExecutionRecord) -> Execution | None:
        text = record.answer if record.file is None else (self._folder / record.file).read_bytes()
        return None if text is None else kept.restored(record, Answer.from_json(text))

    async def _file(self, execution: Execution, answer: Answer, settle: Callable[[], None]) -> None:
        name, held = secrets.token_hex(16), answer.size()
        try:
            if self._writing_bytes + held > MAX_WRITING_BYTES:
                raise OSError(errno.EBUSY, "the disk is slower than the answers that come")
            self._writing_bytes += held
            try:
                async with self._writers:
                    size = await asyncio.to_thread(_write, self._folder / name, answer)
            finally:
                self._writing_bytes -= held
        except OSError as error:
            # Not left to the sandbox, which keeps a bounded number of answers and then takes nothing more.
            log.error("an answer is kept without its output", extra={"execution": execution.id, "error": str(error)})
            self._add(_Ended(kept.answered(execution, kept.lean(answer).to_json()), settle, execution.noted))
            return
        self._add(_Ended(kept.answered(execution, None, file=name, size=size), settle, execution.noted))

    def _add(self, ended: _Ended) -> None:
        self._ended.append(
            dataclasses.replace(ended, record=dataclasses.replace(ended.record, finished_at=self._clock()))
        )
        self._added += 1
        self._added_bytes += ended.record.size
        if len(self._ended) > MAX_WAITING:
            self._let_go()
        if ended.record.named:
            self._soon()
        else:
            self._later()

    def _let_go(self) -> None:
        """Give up one answer: the oldest that has no record, so that no service can run it again once its sandbox forgets it."""
        oldest = next((number for number, one in enumerate(self._ended) if not one.known), None)
        if oldest is None:
            del self._ended[0]
        else:
            self._ended.pop(oldest).settle()

    def _soon(self) -> None:
        """Write all that is to be noted in one go, after what the loop has to do now."""
        if self._failing:
            self._later()
        elif self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._flush)

    def _later(self) -> None:
        """The same a moment later, with what comes until then: each writing costs as much as several answers in it."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self._flush)

    def _flush(self) -> None:
        for timer in (self._next, self._timer):
            if timer is not None:
                timer.cancel()
        self._next = self._timer = None
        sent, ended, changes = self._sent, self._ended, self._kernels.changes()
        if not (sent or ended or changes):
            return
        try:
            self._write(sent, ended, changes)
        except StorageFailed:
            self._kernels.changed_again(changes)
            self._trouble()
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._flush)
            return
        self._ended, self._sent = [], {}
        for execution in sent:
            execution.noted = True
        if self._failing:
            self._failing = False
            log.warning("the data root can be written again")
        for one in ended:
            one.settle()

    def _write(self, sent: _AllSent, ended: list[_Ended], changes: Changes) -> None:
        """Raises StorageFailed; then nothing is written."""
        with self._records.batch():
            for key, name, kernel in changes:
                if kernel is None:
                    self._records.forget_kernel(*key, *name)
                else:
                    self._records.kernel(kept.kernel_record(kernel))
            for execution, where in sent.items():
                self._records.execution(kept.sent(execution, *where))
            for one in ended:
                self._records.execution(one.record)

    def _trouble(self) -> None:
        """Say once that nothing can be noted."""
        if not self._failing:
            self._failing = True
            log.error("the data root cannot be written: answers and kernels are not kept beyond this service")

    async def _all_gone(self, forget: Callable[[], tuple[int, list[str]]]) -> None:
        """Call ``forget`` until it finds no more, and remove the files; others have their turns between."""
        gone = SOME
        while gone == SOME:
            gone, files = forget()
            await asyncio.to_thread(self._remove, files)

    def _remove(self, files: list[str]) -> None:
        for file in files:
            with contextlib.suppress(OSError):
                (self._folder / file).unlink()


def _write(file: Path, answer: Answer) -> int:
    text = answer.to_json()
    file.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
            out.write(text)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return len(text)
