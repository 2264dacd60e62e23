"""What comes before a run, in its sandbox and in its turn: its files are written, and what they require is installed.

Promises: where a file cannot be written nothing has run, and none of them is there; where requirements cannot be installed the
execution ends with what pip says. Neither costs the code its time.
Leaves to requirements.py: what pip is told and what its end means.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from sandboxd.protocol import Refused

from interpreter.errors import RunStartFailed
from interpreter.executions import requirements
from interpreter.executions.model import ExecRequest
from interpreter.executions.run import Run, RunConfig, Work
from interpreter.keys import Key
from interpreter.link.errors import LinkClosed
from interpreter.sandboxes.live import Live

StoreFiles = Callable[[Key, Mapping[str, bytes]], Awaitable[None]]
"""Write files into the directory of a key, all of them or none."""

StartRun = Callable[[Work, Live, RunConfig, ExecRequest], Run]
"""Make the run of something else in the place of an execution."""


async def prepare(work: Work, live: Live, config: RunConfig, store: StoreFiles, run: StartRun) -> bool:
    """Do it; return whether the code is to run then: it may have been cancelled, or ``work.failed`` says how it ends.

    Raises ServiceError for files that cannot be written, LinkNotSent.
    """
    request = work.execution.request
    if request.files:
        await store(request.key, request.files)
        if work.how:
            return False
    if work.execution.phase == "queued":
        work.execution.running()
    if requirements.wanted(request):
        await _install(work, live, config, run)
    return not (work.how or work.failed)


async def _install(work: Work, live: Live, config: RunConfig, run: StartRun) -> None:
    request = work.execution.request
    output = requirements.limits(request, config.output)
    pip = run(work, live, replace(config, output=output), requirements.installing(request, network=config.network))
    finished = await pip.finished()
    with contextlib.suppress(LinkClosed):
        live.connection.settle([pip.link_id])
    if isinstance(finished, Refused):
        raise RunStartFailed("pip could not be started; nothing has run.", retry_after_s=1.0)
    if finished.sandbox_unsafe:
        pip.abandon()
    work.installed = finished.outcome
    work.failed = requirements.failed(finished.outcome, network=config.network)
