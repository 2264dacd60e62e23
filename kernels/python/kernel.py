"""The Python kernel: started like any Jupyter kernel, or called in the fork of a process that has imported this file.

``python kernel.py -f CONNECTION_FILE`` is an ordinary kernel for any Jupyter client. In both cases the variable
``CELLBOX_MARKS``, if there, makes it tell which execution its output belongs to (see ``cellbox_kernel/streams.py``).

Importing this file imports all that a kernel needs and starts nothing: no thread, no zmq context, no loop, no shell, so the
process may fork afterwards.
"""

import os
import sys

sys.modules.setdefault("debugpy", None)  # never used here; importing it costs 0.1 s and 8 MB
_here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _here)
try:
    from cellbox_kernel import app
finally:
    sys.path.remove(_here)


def run(connection_file: str) -> int:
    """Be the kernel of ``connection_file``; return the process's exit code once it has been shut down."""
    return app.run(connection_file)


if __name__ == "__main__":
    sys.path[0] = ""  # of the user: the folder of this file is nothing to import from
    if len(sys.argv) != 3 or sys.argv[1] != "-f":
        sys.exit("usage: kernel.py -f CONNECTION_FILE")
    sys.exit(run(sys.argv[2]))
