"""Measure the service beside what people would use instead; write bench.json, bench.svg and bench.png; exit 1 if over a limit.

Each row says how it was taken. The machine should do nothing else: the last column of the table is its load.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.bench import containers, egress, files, languages, measure, rows, scale, streams
from tests.bench.rows import PYTHON, Caller
from tests.e2e.conftest import running

ROWS = {**rows.ROWS, **streams.ROWS, **scale.ROWS, **languages.ROWS, **containers.ROWS, **files.ROWS, **egress.ROWS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("only", nargs="?", choices=ROWS, help="one of them (default: all)")
    only = parser.parse_args().only
    if os.geteuid() != 0:
        sys.exit("the bench starts sandboxes of many scopes, which needs root")
    taken: dict[str, measure.Rows] = {}
    for name, take in ROWS.items():
        if only in (None, name):
            print(f"{name}: {' '.join((take.__doc__ or '').split())}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="cellbox-bench-") as directory:
                Path(directory).chmod(0o755)
                with running(Path(directory)) as service:
                    caller = Caller(service)
                    try:
                        taken[name] = take(service, caller)
                    except Exception as error:  # noqa: BLE001 - the others are worth having all the same
                        traceback.print_exc()
                        taken[name] = [measure.LeftOut(name, f"it failed with {error!r:.200}", failed=True)]
                    finally:
                        caller.close()
            if len(taken) == 1:
                print(measure.HEAD)
            print(*map(measure.line, taken[name]), sep="\n", flush=True)
    rows = [row for each in taken.values() for row in each]
    host = {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    found = {key: row.to_json() for name, each in taken.items() for key, row in _keys(name, each)}
    Path("bench.json").write_text(json.dumps({"host": host, "rows": found}, indent=1) + "\n")
    if only is None:
        subprocess.run([PYTHON, Path(__file__).with_name("plot.py"), "bench.json", "bench"], check=True)
    sys.exit(not all(row.within for row in rows))


def _keys(name: str, rows: measure.Rows) -> Iterator[tuple[str, measure.Row | measure.LeftOut]]:
    """Yield each row with a key of its own: the name, and a number from the second one on."""
    for number, row in enumerate(rows, 1):
        yield row.key or (name if number == 1 else f"{name}-{number}"), row


if __name__ == "__main__":
    main()
