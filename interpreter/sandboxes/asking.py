"""Asks the programs of a sandbox something, in one of its own that nobody has used and nobody gets.

Promises: nothing of it is left afterwards, whatever happens; what it says is believed as much as what the sandbox is made of,
since no tenant has been in it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

from sandboxd.protocol import Execute, Finished, OutputLimits, ProtocolError

from interpreter.backends.base import Backend, BackendError, SandboxId, SandboxSpec
from interpreter.link.connection import Connection, LinkLimits
from interpreter.link.errors import LinkError
from interpreter.link.listener import Listener
from interpreter.sandboxes.starting import PREPARE_S, SandboxConfig
from interpreter.scopes.root import DataRoot
from interpreter.tasks import finish

log = logging.getLogger(__name__)

_TEXT_BYTES = 64 * 1024
_STOP_S = 20.0


async def ask(backend: Backend, data: DataRoot, config: SandboxConfig, code: str, *, within_s: float) -> str:
    """Return what Python ``code`` prints, without a network; empty where it could not be asked in time."""
    ident = SandboxId(secrets.token_hex(8))
    try:
        place = await finish(asyncio.to_thread(data.prepare_spare, ident, None), within_s=PREPARE_S)
        async with asyncio.timeout(within_s):
            directory = await finish(asyncio.to_thread(data.run_dir, ident), within_s=PREPARE_S)
            spec = SandboxSpec(ident, place.uid, place.gid, place.workspace, place.user, directory, config.limits)
            return await _asked(backend, spec, config.link, code, within_s)
    except (BackendError, LinkError, ProtocolError, OSError, TimeoutError) as error:
        log.warning("programs of a sandbox could not be asked", extra={"error": f"{type(error).__name__}: {error}"})
        return ""
    finally:
        try:
            await finish(asyncio.to_thread(data.drop_run_dir, ident), within_s=PREPARE_S)
            await finish(asyncio.to_thread(data.drop_spare, ident, None), within_s=PREPARE_S)
        except (OSError, TimeoutError) as error:  # it goes with the next start
            log.warning("what was made to ask programs is left", extra={"error": f"{type(error).__name__}: {error}"})


async def _asked(backend: Backend, spec: SandboxSpec, limits: LinkLimits, code: str, within_s: float) -> str:
    listener = Listener(spec.link_dir, uid=spec.uid, gid=spec.gid)
    try:
        sandbox = await backend.start(spec)
        try:
            accepted = await listener.accept(within_s=within_s)
            return await _printed(await Connection.open(accepted, limits=limits), code, within_s)
        finally:
            await finish(sandbox.stop(), within_s=_STOP_S)
    finally:
        listener.close()


async def _printed(connection: Connection, code: str, within_s: float) -> str:
    limits = OutputLimits(text=_TEXT_BYTES, results=0, spill=0)
    try:
        await connection.hello(within_s=within_s)
        reading = asyncio.get_running_loop().create_task(connection.run(), name="link of one who is asked")
        try:
            execute = Execute(secrets.token_hex(16), "python", code, within_s, 1.0, limits)
            end = await (await connection.execute(execute)).end
            return end.outcome.stdout if isinstance(end, Finished) else ""
        finally:
            reading.cancel()
            await asyncio.wait([reading])
    finally:
        await connection.wait_closed()
