"""The wall clock may jump: it is shown to people and decides nothing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
WALL = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "CLOCK_REALTIME"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
"""Names of what reads the wall clock, by the name before the dot."""
SHOWN = {
    "interpreter/executions/kernel_stops.py": "when a kernel was restarted, in listings",
    "interpreter/executions/runner.py": "when a kernel was last used, in listings",
    "interpreter/logs.py": "the time of a line",
    "interpreter/sandboxes/live.py": "when a sandbox was started, in listings",
    "interpreter/sandboxes/manager.py": "how long a sandbox has lived, in the log",
    "interpreter/sandboxes/listings.py": "when a sandbox was last used, in listings",
    "kernels/cellbox_wire/messages.py": "the date of a message, which nobody reads",
    "runtime/sandboxd/afterfork.py": "from when the logging module of a fork counts",
    "runtime/sandboxd/messages.py": "the date of a message, which nobody reads",
}
COMPARED = {
    "interpreter/backends/environment.py": "with the times of files, which are of the wall clock too",
    "interpreter/cli/doctor_engine.py": "with the clock of the engine",
    "interpreter/cli/doctor_host.py": "with the times of files, to judge the clock",
    "interpreter/recovery.py": "tells one boot from another where the kernel gives no id of it",
}


def test_nothing_but_what_people_read_is_of_the_wall_clock() -> None:
    found = defaultdict(set)
    for folder in ("interpreter", "runtime", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            if "node_modules" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                where = path.relative_to(ROOT).as_posix()
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    if node.attr in WALL.get(node.value.id, ()):
                        found[where].add(node.attr)
                elif isinstance(node, ast.ImportFrom) and node.module == "time":
                    found[where] |= {name.name for name in node.names} & WALL["time"]
    assert set(found) == {*SHOWN, *COMPARED}
