"""Run the rows against a real service with the bubblewrap backend; write ``bench.json``; exit 1 if over a limit."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from tests.bench import containers, egress, files, languages, measure, rows, scale, streams
from tests.bench.rows import Caller
from tests.e2e.conftest import running

ROWS = {**rows.ROWS, **streams.ROWS, **scale.ROWS, **languages.ROWS, **containers.ROWS, **files.ROWS, **egress.ROWS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("only", nargs="?", choices=ROWS, help="one of them (default: all)")
    only = parser.parse_args().only
    if os.geteuid() != 0:
        sys.exit("the bench starts sandboxes of many scopes, which needs root")
    taken: list[measure.Row] = []
    for name, take in ROWS.items():
        if only in (None, name):
            print(f"{name}: {' '.join((take.__doc__ or '').split())}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="cellbox-bench-") as directory:
                Path(directory).chmod(0o755)
                with running(Path(directory)) as service:
                    caller = Caller(service)
                    try:
                        taken += take(service, caller)
                    finally:
                        caller.close()
    print(measure.table(taken))
    host = {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    Path("bench.json").write_text(json.dumps({"host": host, "rows": [row.to_json() for row in taken]}, indent=1) + "\n")
    sys.exit(not all(row.within for row in taken))


if __name__ == "__main__":
    main()
