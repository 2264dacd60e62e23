"""What a starting service does with what an earlier one left: adopts it, or removes it.

Promises: a sandbox is adopted if it runs and its record is there, with its kernels and all that was sent to it; whatever else
there is of this data root, spares among it, is gone when ``recover`` returns, and
what scopes have is under their quota. Adoption itself goes on in the background: who
asks for such a sandbox meanwhile waits for it, as for one that starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from interpreter.backends.base import Backend, SandboxId
from interpreter.errors import StorageFailed
from interpreter.executions.recorder import Recorder
from interpreter.executions.run import Sent
from interpreter.executions.runner import Runner
from interpreter.keys import Key
from interpreter.sandboxes.live import Live
from interpreter.sandboxes.manager import Manager
from interpreter.scopes.root import DataRoot
from interpreter.tasks import finish

log = logging.getLogger(__name__)

REMOVE_S = 600.0
MOVE_S = 6 * 3600.0
"""For moving all data there is under a quota that there was not before, once."""


async def recover(
    backend: Backend,
    data: DataRoot,
    recorder: Recorder,
    manager: Manager,
    runner: Runner,
    *,
    text_limit: int,
    clock: Callable[[], float],
) -> None:
    """Do it. text_limit: of an execution's output, in bytes. Raises BackendError."""
    records = {Key(record.scope, record.session): record for record in data.records.sandboxes()}
    wanted = {
        SandboxId(record.id): record for record in records.values()
    }  # a key's last one; one before it was leaving
    running = {
        sandbox.id: sandbox
        for sandbox in await backend.adoptable()
        # One that was started without the quota would go on without it.
        if sandbox.id in wanted and data.volumes.confined(wanted[sandbox.id].scope)
    }
    await backend.remove_leftovers(frozenset(running))
    await finish(asyncio.to_thread(data.drop_run_dirs, frozenset(running)), within_s=REMOVE_S)
    await finish(asyncio.to_thread(data.drop_spares), within_s=REMOVE_S)
    await finish(asyncio.to_thread(data.move_over), within_s=MOVE_S)
    recorder.restore_kernels(frozenset(running))
    with suppress(StorageFailed):  # then the next service finds it, without a process
        for ident in {record.id for record in data.records.sandboxes()} - running.keys():
            data.records.sandbox_leaves(ident)
    unfinished = recorder.unfinished()
    lives: dict[str, Live] = {}
    for ident, sandbox in running.items():
        expected = {record.link: text_limit for _, record in unfinished if record.link and record.sandbox == ident}
        lives[ident] = manager.adopt(wanted[ident], sandbox, expected)
    for execution, record in unfinished:
        sent = None
        if record.sandbox and record.link:
            live = lives.get(record.sandbox)
            sent = Sent(SandboxId(record.sandbox), live, record.link, record.sent_at or clock())
        runner.resume(execution, sent=sent, whole=record.whole)
    if running or unfinished:
        log.info("taken over", extra={"sandboxes": len(running), "executions": len(unfinished)})


def boot_id() -> str:
    """Return what tells this boot of the host from others; monotonic times are of one boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{time.time() - time.monotonic():.0f}"[:-1]
