"""``cellbox serve`` over the fake backend, as a program of its own: ``python -m tests.cli.program``."""

import asyncio

from interpreter import app, logs, settings
from interpreter.backends.fake import FakeBackend
from tests.fakes.sandboxd import Sandboxd


async def main() -> None:
    await app.serve(settings.load(), say=lambda line: print(line, flush=True), backend=FakeBackend(Sandboxd()))


if __name__ == "__main__":
    logs.configure()
    asyncio.run(main())
