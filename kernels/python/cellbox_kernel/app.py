"""Makes the kernel of this process out of its parts.

Imports also what ipykernel imports late, so that a fork has nothing left to import: that was a third of its start.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import random
import sys
from pathlib import Path
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from tornado import ioloop
from traitlets import Type
from traitlets.config import Config

from . import direct, loops, streams
from .kernel import Kernel

for _late in (
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "cellbox_kernel.wire",
    "faulthandler",
    "ipykernel.debugger",
    "tornado.platform.asyncio",
    "unicodedata",
):
    importlib.import_module(_late)


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

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """There is none: all is said in ``run``."""

    # --- with a secret: one client, who is there from the start, so there are neither sockets nor threads -------------

    def init_connection_file(self) -> None:
        if self.secret is None:
            super().init_connection_file()

    def write_connection_file(self, **options: Any) -> None:
        if self.secret is None:
            super().write_connection_file(**options)

    def init_sockets(self) -> None:
        if self.secret is None:
            super().init_sockets()
            return
        self.configure_tornado_logger()
        self.session.auth = None  # nobody else can write to the client, so nothing is signed
        self.iopub_thread = self.iopub_socket = Kernel.direct = direct.Direct(_place)

    def init_heartbeat(self) -> None:
        if self.secret is None:
            super().init_heartbeat()

    def init_kernel(self) -> None:
        if self.secret is None:
            super().init_kernel()
            return
        self.kernel = Kernel.instance(
            parent=self,
            session=self.session,
            iopub_thread=self.iopub_thread,
            iopub_socket=self.iopub_socket,
            log=self.log,
            profile_dir=self.profile_dir,
            user_ns=self.user_ns,
        )
        self.displayhook.get_execution_count = lambda: self.kernel.execution_count

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


def _place() -> int:
    return Kernel.streams.place() if Kernel.streams is not None else 0


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
    app.log.setLevel(logging.ERROR)  # traitlets makes a record of every debug line else, some 0.2 ms a cell
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
    with contextlib.suppress(KeyboardInterrupt):
        app.start()
    return 0
