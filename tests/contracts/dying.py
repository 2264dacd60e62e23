"""A service that starts sandboxes and is killed: ``python -m tests.contracts.dying ROOT UID IDLE_S PROGRAM BEHAVIOUR...``.

It takes the lock of the data root, says ``{"started": [ids]}`` once all run, and waits for its end. PROGRAM: of the
supervisors; empty: their own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from interpreter.backends.bubblewrap import backend as module
from tests.contracts.conftest import House


async def main(root: Path, uid: int, idle_s: float, supervise: str, behaviours: list[str]) -> None:
    house = House("bubblewrap", root, uid=uid, idle_s=idle_s)
    await house.backend.check()
    if supervise:
        module._SUPERVISE = supervise
    started = [await house.start(behaviour, until_ready=behaviour != "exits") for behaviour in behaviours]
    print(json.dumps({"started": [sandbox.id for sandbox in started]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5:]))
