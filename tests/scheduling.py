"""How tests are shared out between processes: whole files, on each backend, those that take long first.

What is marked ``alone`` comes at the end, when nothing else runs.

Tests that judge how long something took, or use the machine up, are marked so. One of the processes has them all.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

_ALONE = "alone"
_TAKE_LONG = ("e2e", "contracts", "cli", "backends", "delivery", "image", "kernels", "runtime")


def tell_what_runs_alone(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process that runs tests for another, which is told no more of a test than its id: the first one tells the rest."""
    given = getattr(config, "workerinput", None)
    if given is not None and given["workerid"] == "gw0":
        alone = [item.nodeid for item in items if item.get_closest_marker("alone") is not None]
        _told(given).write_text(json.dumps(alone))


def take_long_first(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process that runs tests for another: what begins late should take little, so that all end at the same time."""
    if hasattr(config, "workerinput"):
        places = {name: place for place, name in enumerate(_TAKE_LONG)}
        items.sort(key=lambda item: places.get(item.nodeid.split("/")[1], len(places)) if "/" in item.nodeid else 0)


def shorten_directory(config: pytest.Config) -> None:
    """In a process that runs tests for another: have temporary directories whose sockets have paths of less than 108 bytes."""
    given = getattr(config, "workerinput", None)
    if given is not None:
        config.option.basetemp = str(Path(config.option.basetemp).with_name(given["workerid"].removeprefix("gw")))


def _told(given: dict[str, str]) -> Path:
    return Path(tempfile.gettempdir(), f"cellbox-tests-{given['testrunuid']}")


class Scheduling(LoadScopeScheduling):
    """In the order of collection. The process that is left over in the end runs what runs alone."""

    _alone: frozenset[str] = frozenset()

    def schedule(self) -> None:
        if self.collection is None and self.nodes:
            told = _told(self.nodes[0].workerinput)
            self._alone = frozenset(json.loads(told.read_text()))
            told.unlink()
            self.config.option.loadscopereorder = False
        super().schedule()

    def remove_node(self, node: WorkerController) -> str | None:
        crashed: str | None = super().remove_node(node)
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        return _ALONE if nodeid in self._alone else f"{file} {'docker' in test}"

    def _assign_work_unit(self, node: WorkerController) -> None:
        if _ALONE in self.workqueue:
            self.workqueue.move_to_end(_ALONE)
        if not self._only_alone_left() or self.nodes == [node]:
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self._only_alone_left() and any(not other.shutting_down for other in self.nodes if other is not node):
            node.shutdown()  # after what it has
        else:
            super()._reschedule(node)

    def _only_alone_left(self) -> bool:
        return list(self.workqueue) == [_ALONE]
