"""The Bash kernel: ``python kernel.py -f CONNECTION_FILE`` is an ordinary kernel for any Jupyter client.

The variable ``CELLBOX_MARKS``, if there, makes it tell which execution its output belongs to (``cellbox_wire/output.py``).
Importing this file imports all that it needs and starts nothing.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_paths = [_here, os.path.dirname(_here)]
sys.path[:0] = _paths
try:
    from cellbox_bash.kernel import Bash
    from cellbox_wire import serve
finally:
    del sys.path[: len(_paths)]


def run(connection_file: str) -> int:
    """Be the kernel of ``connection_file``; return the process's exit code once it has been shut down."""
    return serve(connection_file, Bash)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "-f":
        sys.exit("usage: kernel.py -f CONNECTION_FILE")
    sys.exit(run(sys.argv[2]))
