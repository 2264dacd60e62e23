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

import zmq
from ipykernel.kernelapp import IPKernelApp
from tornado import ioloop
from traitlets import Type
from traitlets.config import Config
from zmq.eventloop.zmqstream import ZMQStream

from . import loops, publisher, streams
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


class DirectStream(ZMQStream):
    """Sends at once; the loop then looks for messages whose announcement the sending may have used up."""

    def send_multipart(self, msg: Any, *_options: Any, copy: bool = True, **_named: Any) -> None:
        self.socket.send_multipart(msg, copy=copy)
        self.io_loop.add_callback(self._handle_events, self.socket, 0)

    def flush(self, *_options: Any) -> int:
        return 0


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

    # --- with marks: one client, who needs neither heartbeat nor subshells, so one thread does it all -------------------

    def init_heartbeat(self) -> None:
        if self.secret is None:
            super().init_heartbeat()

    def init_control(self, context: zmq.Context[Any]) -> None:
        if self.secret is None:
            super().init_control(context)
            return
        self.control_socket = context.socket(zmq.ROUTER)
        self.control_socket.linger = 1000
        self.control_port = self._bind_socket(self.control_socket, self.control_port)

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        if self.secret is None:
            super().init_iopub(context)
            return
        socket = context.socket(zmq.XPUB)
        socket.linger = 1000
        socket.sndhwm = 0
        self.iopub_port = self._bind_socket(socket, self.iopub_port)
        self.configure_tornado_logger()
        self.iopub_thread = self.iopub_socket = publisher.Publisher(socket, self.session, _place)

    def init_kernel(self) -> None:
        if self.secret is None:
            super().init_kernel()
            return
        self.kernel = Kernel.instance(
            parent=self,
            session=self.session,
            shell_stream=DirectStream(self.shell_socket),
            control_stream=ZMQStream(self.control_socket),
            iopub_thread=self.iopub_thread,
            iopub_socket=self.iopub_socket,
            stdin_socket=self.stdin_socket,
            log=self.log,
            profile_dir=self.profile_dir,
            user_ns=self.user_ns,
        )
        self.kernel.record_ports({f"{name}_port": port for name, port in self._ports.items()})
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


def _place() -> list[bytes]:
    return Kernel.streams.place() if Kernel.streams is not None else []


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
