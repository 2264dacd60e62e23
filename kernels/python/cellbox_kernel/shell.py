"""IPython as the cells see it: one error per cell, no colours, no terminals, and an ``exit`` that ends the cell alone."""

from __future__ import annotations

import asyncio
import codeop
import os
import subprocess
import sys
from types import TracebackType
from typing import Any

from ipykernel.compiler import XCachingCompiler
from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQExitAutocall, ZMQInteractiveShell
from IPython.core import interactiveshell
from IPython.core.error import StdinNotImplementedError
from traitlets import Instance, Type, default

from . import charts, errors, packages

interactiveshell.warn = lambda *_args, **_options: None  # its one use is advice on leaving a terminal


class Compiler(XCachingCompiler):
    """Names cells as people do; their lines are found under these names by tracebacks and ``inspect``.

    What is wrong with the end of a cell is said as it is in a program, not as "incomplete input": nobody goes on typing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flags &= ~codeop.PyCF_ALLOW_INCOMPLETE_INPUT

    def get_code_name(self, _raw_code: str, _code: str, number: int) -> str:
        return f"<cell {number}>"


class Exit(ZMQExitAutocall):
    """``exit``, ``quit``: with or without parentheses, with or without a code."""

    def __call__(self, code: object = None) -> None:
        raise SystemExit(code)


class DisplayHook(ZMQShellDisplayHook):
    """The value of the last expression."""

    def finish_displayhook(self) -> None:
        self.shell.kernel.put_streams_right()
        super().finish_displayhook()


class DisplayPublisher(ZMQDisplayPublisher):
    """Rich displays."""

    def _flush_streams(self) -> None:
        self.shell.kernel.put_streams_right()


class Shell(ZMQInteractiveShell):
    """The shell of the one kernel of this process."""

    compiler_class = Type(Compiler)
    displayhook_class = Type(DisplayHook)
    display_pub_class = Type(DisplayPublisher)
    exiter = Instance(Exit)

    shown: errors.Described | None = None
    """The last error that the running cell has shown."""

    @default("exiter")
    def _default_exiter(self) -> Exit:
        return Exit(self)

    def ask_exit(self) -> None:
        raise SystemExit

    def init_ipython_dir(self, ipython_dir: str | None) -> None:
        """The application's; IPython would make one in the user's home."""
        self.ipython_dir = ipython_dir or self.kernel.parent.ipython_dir

    def init_display_formatter(self) -> None:
        super().init_display_formatter()
        self.display_formatter.formatters[charts.MIME] = charts.ChartFormatter(parent=self.display_formatter)

    def init_environment(self) -> None:
        """Pagers would wait for keys. Colours, which ipykernel forces on programs here, are nothing for a pipe."""
        os.environ["PAGER"] = os.environ["GIT_PAGER"] = "cat"

    def showtraceback(
        self,
        exc_tuple: Any = None,
        filename: str | None = None,
        tb_offset: int | None = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        """Show an error of the cell, whatever its kind, in one way."""
        kind, error, trace = exc_tuple or sys.exc_info()
        if kind is not None and error is not None:
            self.show(kind, error, trace)

    def showsyntaxerror(self, filename: str | None = None, running_compiled_code: bool = False) -> None:
        self.showtraceback()

    def showindentationerror(self) -> None:
        self.showtraceback()

    def show_usage_error(self, exc: BaseException) -> None:
        self.show(type(exc), exc, None)

    def show(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Publish an error and remember it; ``exit()`` and its like are none."""
        if isinstance(error, SystemExit) and errors.exit_code(error) == 0:
            return
        if isinstance(error, asyncio.CancelledError) and self.kernel.interrupted:
            kind, error = KeyboardInterrupt, KeyboardInterrupt()
        described = errors.describe(kind, error, trace)
        if described == self.shown:  # each formatter of a value meets the same broken __repr__
            return
        self.shown = described
        self._last_traceback = described.traceback
        self.kernel.put_streams_right()
        hook = self.displayhook
        content = {"ename": described.name, "evalue": described.value, "traceback": described.traceback}
        hook.session.send(hook.pub_socket, "error", content, hook.parent_header, ident=self.kernel._topic("error"))

    def _format_exception_for_storage(
        self,
        exception: BaseException,
        filename: str | None = None,
        running_compiled_code: bool = False,
    ) -> dict[str, Any]:
        """What the history keeps of an error: IPython's own way takes seconds for a deep recursion."""
        described = self.shown or errors.describe(type(exception), exception, exception.__traceback__)
        return {"ename": described.name, "evalue": described.value, "traceback": described.traceback}

    def payloadpage_page(self, strg: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None) -> None:
        """Print what asks for a pager (``len?``), unless a client may have one of its own."""
        if self.kernel.streams is None:
            super().payloadpage_page(strg, start, screen_lines, pager_cmd)
        else:
            print(strg["text/plain"] if isinstance(strg, dict) else strg)

    def system(self, cmd: str) -> None:
        """Run ``!cmd``: on the cell's own streams, without a terminal, its input at the end."""
        command = self.var_expand(cmd, depth=1)
        self.kernel.put_streams_right()
        shell = os.environ.get("SHELL")
        done = subprocess.run(command, shell=True, executable=shell, stdin=subprocess.DEVNULL, check=False)  # noqa: S602 - what `!` means
        self.user_ns["_exit_code"] = done.returncode
        packages.find_new()

    system_piped = system_raw = system


def no_breakpoint(*_args: object, **_options: object) -> None:
    """Take the place of ``breakpoint()`` where nobody can answer a debugger."""
    raise StdinNotImplementedError("breakpoint() needs somebody to answer it, and nobody can here")
