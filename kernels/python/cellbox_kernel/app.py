"""Makes the kernel of this process out of its parts."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
from pathlib import Path

from ipykernel.kernelapp import IPKernelApp
from tornado import ioloop
from traitlets import Type
from traitlets.config import Config

from . import loops, streams
from .kernel import Kernel


class App(IPKernelApp):
    """The application around the one kernel."""

    kernel_class = Type(Kernel)
    secret: str | None = None
    """Of the marks; None: an ordinary kernel whose streams go to its clients."""

    def init_io(self) -> None:
        if self.secret is not None:
            self.outstream_class = None
            Kernel.streams = streams.Streams(self.secret)
            Kernel.streams.put_right()
        super().init_io()

    def log_connection_info(self) -> None:
        """Say nothing: ipykernel would print advice for people at a terminal here."""
        self._ports = {name: getattr(self, f"{name}_port") for name in ("shell", "iopub", "stdin", "hb", "control")}

    def start(self) -> None:
        """Serve until shut down. What a cell's tasks and callbacks raise ends no kernel."""
        if self.poller is not None:
            self.poller.start()
        self.kernel.start()
        self.io_loop = ioloop.IOLoop.current()
        while True:
            try:
                self.io_loop.start()
            except (KeyboardInterrupt, SystemExit):
                continue
            return


def run(connection_file: str) -> int:
    """Be the kernel of ``connection_file``, in this process, until it is shut down; return the exit code."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.IPCompleter.use_jedi = False
    config.Session.packer = "cellbox_kernel.wire.pack"
    config.Session.unpacker = "cellbox_kernel.wire.unpack"
    secret = os.environ.pop("CELLBOX_MARKS", None)
    if secret is not None:
        # Nothing of this is to be seen in the user's home.
        folder = Path(connection_file).with_suffix(".ipython")
        folder.mkdir(mode=0o700, exist_ok=True)
        config.BaseIPythonApplication.ipython_dir = str(folder)
    app = App.instance(connection_file=connection_file, config=config)
    app.secret = secret
    app.initialize([])
    loops.allow_nesting()
    kernel = app.kernel
    shell = kernel.shell
    streams.carry(
        [
            streams.owner,
            kernel._shell_parent,
            kernel._shell_parent_ident,
            shell._parent_header,
            shell.displayhook._parent_header,
            shell.display_pub._parent_header,
        ]
    )
    gc.collect()
    with contextlib.suppress(KeyboardInterrupt):
        app.start()
    return 0
