"""The first process of a sandbox: locks itself in, imports everything once, forks sandboxd, and stays as the zygote.

Started as::

    python -c "import sys; sys.path.insert(0, LIB); from sandboxd.boot import main; main()" CONFIG

LIB holds the package ``sandboxd``; CONFIG is a ``BootConfig`` as JSON. The environment is built from nothing, with
PYTHONUSERBASE pointing nowhere, and the working directory is ``/``: as isolated as ``python -I``, while ``sys.flags`` of the
programs that are forked from here are those of a plain ``python``. It may be pid 1 or not.

Promises: NO_NEW_PRIVS and the filter are in force before any fork; nobody of the same user can look into this process or
sandboxd; when sandboxd ends, so does everything, with its exit status: 0 in order, 128+n after signal n, else an error.
"""

from __future__ import annotations

from . import paths, preloaded

# What has been imported before these two calls counts as there in every program; all other imports come after them.
preloaded.note_plain()
paths.note()

import gc

gc.disable()  # imports make next to no garbage, and looking for it takes a tenth of their time

import os
import signal
import socket
import sys
from pathlib import Path

import msgspec

from . import egress, orphans, osproc, seccomp
from .protocol import BootConfig


def main() -> None:
    """Be the first process, to the end of the sandbox.

    Raises afterfork.Unwind in forks that become Python programs: no caller may catch it.
    """
    config = egress.completed(msgspec.json.decode(sys.argv[1], type=BootConfig))
    osproc.forbid_new_privileges()
    if config.seccomp:
        seccomp.install()
    osproc.set_dumpable(dumpable=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own handler would let a tenant interrupt pid 1
    orphans.keep_apart()
    from . import daemon, ending, kernelspecs, zygote  # noqa: PLC0415 - what they import is counted as ours

    for folder in kernelspecs.forked(Path(config.kernels)):
        preloaded.load_kernel(folder)
    preloaded.note_loaded()
    ending.note_modules()
    gc.freeze()
    gc.enable()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    boot = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        sys.exit(f"sandboxd cannot be forked: {error.strerror}")
    if pid == 0:
        theirs.close()
        osproc.die_with_parent()
        os._exit(daemon.run(config, ours) if os.getppid() == boot else 1)
    ours.close()
    status = zygote.serve(theirs, pid, config.environment)
    zygote.end()
    os._exit(status)
