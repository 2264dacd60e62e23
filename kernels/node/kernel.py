"""The Node kernel: ``python kernel.py -f CONNECTION_FILE``, for sandboxd and for any Jupyter client.

It needs ``node`` (22.13 or newer) on the PATH, and acorn in ``node_modules`` beside this file: ``npm ci`` puts it there.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [_here, os.path.dirname(_here)]
try:
    from cellbox_node.kernel import Node
    from cellbox_wire import serve
finally:
    del sys.path[:2]


def run(connection_file: str) -> int:
    """Be the kernel of ``connection_file``; return the process's exit code once it has been shut down."""
    return serve(connection_file, Node)


if __name__ == "__main__":
    sys.path[0] = ""  # of the user: the folder of this file is nothing to import from
    if len(sys.argv) != 3 or sys.argv[1] != "-f":
        sys.exit("usage: kernel.py -f CONNECTION_FILE")
    sys.exit(run(sys.argv[2]))
