"""A service that starts sandboxes and is killed: ``python -m tests.contracts.dying KIND ROOT UID IDLE_S PROGRAM BEHAVIOUR...``.

It takes the lock of the data root, says ``{"started": [ids]}`` once all run, and waits for its end. PROGRAM: of the
supervisors; empty: their own. With the one behaviour ``churn`` it adopts what it finds but for a few, says ``{"kept": n}``,
and starts and stops sandboxes for ever, and says so of each that it has started.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from interpreter.backends.bubblewrap import backend as module
from tests.contracts.conftest import House


async def main(kind: str, root: Path, uid: int, idle_s: float, supervise: str, behaviours: list[str]) -> None:
    house = House(kind, root, uid=uid, idle_s=idle_s)
    await house.backend.check()
    if supervise:
        module._SUPERVISE = supervise
    if behaviours == ["churn"]:
        await churn(house)
    started = [await house.start(behaviour, until_ready=behaviour != "exits") for behaviour in behaviours]
    print(json.dumps({"started": [sandbox.id for sandbox in started]}), flush=True)
    await asyncio.Event().wait()


async def churn(house: House) -> None:
    """Adopt, and be busy in every way at once."""
    found = await house.backend.adoptable()
    kept = found[:3]
    await house.backend.remove_leftovers(frozenset(sandbox.id for sandbox in kept))
    assert house.known() <= {sandbox.id for sandbox in kept}, "what was not kept is there"
    print(json.dumps({"kept": len(kept)}), flush=True)

    async def busy(number: int) -> None:
        while True:
            sandbox = await house.backend.start(house.spec())
            print(json.dumps({"started": sandbox.id}), flush=True)
            await asyncio.sleep(0.05 * number)
            if number % 4:
                await sandbox.stop()

    await asyncio.gather(*(busy(number) for number in range(5)), *(sandbox.stop() for sandbox in kept[:1]))


if __name__ == "__main__":
    kind, root, uid, idle_s, supervise, *behaviours = sys.argv[1:]
    asyncio.run(main(kind, Path(root), int(uid), float(idle_s), supervise, behaviours))
