"""One service for a data root: the lock ends with its holder, at once and however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SERVICE = """
import sys
from pathlib import Path
from interpreter.scopes.root import DataRoot, DataRootLocked
from interpreter.scopes.uids import Ids

print("ready", flush=True)
sys.stdin.readline()
try:
    DataRoot(Path(sys.argv[1]), Ids(own=True)).open()
    print("open", flush=True)
except DataRootLocked as error:
    print(error, flush=True)
sys.stdin.readline()
"""


class Service:
    """A process that opens the data root when it is told to."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVICE, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )
        assert self.says() == "ready"

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[[], Service]]:
    made: list[Service] = []

    def make() -> Service:
        made.append(Service(tmp_path / "data"))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.communicate()


def test_the_next_one_starts_at_once_after_a_kill(service: Callable[[], Service]) -> None:
    """Also in the moment in which the killed one is not gone yet."""
    one = service()
    one.begin()
    assert one.says() == "open"
    for _ in range(5):
        other = service()
        one.process.kill()
        other.begin()
        assert other.says() == "open"
        one = other


def test_of_several_at_once_one_serves_and_the_others_name_it(service: Callable[[], Service]) -> None:
    several = [service() for _ in range(4)]
    for each in several:
        each.begin()
    said = {each: each.says() for each in several}
    (serving,) = (each for each in several if said[each] == "open")
    others = {said[each] for each in several if each is not serving}
    assert len(others) == 1
    assert f"pid {serving.process.pid}," in others.pop()
