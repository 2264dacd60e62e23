"""How tests are shared out between processes: whole files, and what is marked ``alone`` at the end, when nothing else runs.

Tests that judge how long something took, or use the machine up, are marked so. One of the processes has them all.
"""

from __future__ import annotations

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

_ALONE = "@alone"
"""Ends the ids of such tests: nothing else of a test is known where they are shared out."""


def name_what_runs_alone(items: list[pytest.Item]) -> None:
    """Let the ids say it, in a process that runs tests for another."""
    for item in items:
        if item.get_closest_marker("alone") is not None:
            item._nodeid += _ALONE


class Scheduling(LoadScopeScheduling):
    """Files by their number of tests, the largest first. The process that is left over in the end runs what runs alone."""

    def _split_scope(self, nodeid: str) -> str:
        return _ALONE if nodeid.endswith(_ALONE) else nodeid.partition("::")[0]

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

    def remove_node(self, node: WorkerController) -> str | None:
        crashed = super().remove_node(node)
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _only_alone_left(self) -> bool:
        return list(self.workqueue) == [_ALONE]
