"""Runs cells: with their environment, until they end or are interrupted, and always with an answer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from IPython.core.async_helpers import _pseudo_sync_runner
from IPython.core.error import StdinNotImplementedError
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type

from . import errors, packages
from .direct import Direct
from .shell import Compiler, Shell, no_breakpoint
from .streams import Streams


class Kernel(IPythonKernel):
    """The kernel of this process.

    An execute request may carry ``{"cellbox": {"execution": 7, "env": {…}, "cwd": "…"}}`` in its metadata: the number its
    marks carry, variables that are set for this execution, and the directory it runs in. The reply has ``exit_code``. To the one
    client that ``direct`` leads to neither status nor execute_input are published: the end of an execution is the reply.
    """

    shell_class = Type(Shell)
    compiler_class = Type(Compiler)
    streams: Streams | None = None
    direct: Direct | None = None
    interrupted = False
    """Whether the running cell's await was cancelled by SIGINT."""

    _execute_sleep = 0.0  # ipykernel waits here for its own stream threads, of which there are none

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._cell: asyncio.Future[Any] | None = None
        self._serving: asyncio.Future[None] | None = None
        self._in_cell = False
        self._libc = ctypes.CDLL(None)
        self._home = (sys.stdout, sys.stderr)
        for stream in self._home:
            stream.close = lambda: None  # the next cell prints too
        os.register_at_fork(after_in_child=self._in_child)

    def put_streams_right(self) -> None:
        """Undo what the cell did to ``sys.stdout`` and the like, if they are unusable now."""
        if any(getattr(stream, "closed", True) for stream in (sys.stdout, sys.stderr)):
            self._streams_home()

    def start(self) -> None:
        """Serve the clients."""
        super().start()
        if self.direct is not None:
            self._cells = contextvars.copy_context()
            self.direct.listen(self.io_loop.asyncio_loop, partial(self._serve, self.direct))

    def _serve(self, direct: Direct, request: dict[str, Any]) -> None:
        """Answer a request of the one client, in the context that all cells share."""
        loop = self.io_loop.asyncio_loop
        self._serving = loop.create_task(self._answer(direct, request), context=self._cells)

    async def _answer(self, direct: Direct, request: dict[str, Any]) -> None:
        async with self._main_asyncio_lock:
            self.set_parent([], request)
            content = request["content"]
            reply = await self.do_execute(
                content["code"], False, allow_stdin=content["allow_stdin"], cell_meta=request["metadata"]
            )
            direct.reply(request, reply)

    def _publish_status(self, status: str, channel: str, parent: dict[str, Any] | None = None) -> None:
        if self.direct is None:
            super()._publish_status(status, channel, parent)

    def _input_request(self, prompt: str, ident: Any, parent: dict[str, Any], password: bool = False) -> Any:
        if self.direct is None:
            return super()._input_request(prompt, ident, parent, password)
        return self.direct.ask(parent, {"prompt": prompt, "password": password})

    def raw_input(self, prompt: str = "") -> Any:
        """Ask whoever runs the cell, if anybody is to be asked."""
        self._need_answers("input()")
        return super().raw_input(prompt)

    def getpass(self, prompt: str = "", stream: Any = None) -> Any:
        """Ask without showing the answer."""
        self._need_answers("getpass()")
        return super().getpass(prompt, stream)

    def _need_answers(self, what: str) -> None:
        if self.direct is not None and not self._allow_stdin:
            raise StdinNotImplementedError(
                f"{what} needs somebody to answer it: nobody was asked to, since the execution is without allow_input"
            )

    def pre_handler_hook(self) -> None:
        """SIGINT is of the cell only; see ``do_execute``."""

    def post_handler_hook(self) -> None:
        """SIGINT is of the cell only; see ``do_execute``."""

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, str] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: dict[str, Any] | None = None,
        cell_id: str | None = None,
    ) -> dict[str, Any]:
        """Run ``code``; return the content of the reply. Raises nothing: a request without a reply lasts to its timeout."""
        request = (cell_meta or {}).get("cellbox") or {}
        try:
            reply = await self._execute(
                request,
                code,
                silent=silent,
                store_history=store_history,
                user_expressions=user_expressions,
                allow_stdin=allow_stdin,
                cell_id=cell_id,
            )
        except BaseException as error:  # noqa: BLE001 - cells can break what we stand on
            name = type(error).__name__
            reply = {"status": "error", "exit_code": 1, "ename": name, "evalue": f"in the kernel: {error}"[:1000]}
            reply |= {"traceback": [f"{name}: in the kernel, which an earlier cell may have broken: {error}"[:1000]]}
            reply |= {"execution_count": self.shell.execution_count, "payload": [], "user_expressions": {}}
        return reply

    async def _execute(
        self,
        request: dict[str, Any],
        code: str,
        *,
        silent: bool,
        store_history: bool,
        user_expressions: dict[str, str] | None,
        allow_stdin: bool,
        cell_id: str | None,
    ) -> dict[str, Any]:
        shell = self.shell
        shell.shown = None
        self.interrupted = False
        failed: BaseException | None = None
        with contextlib.suppress(Exception):  # a cell put something else in the place of sys.path or the like
            packages.find_new()
        self._streams_home()
        old_hook, sys.breakpointhook = sys.breakpointhook, (sys.breakpointhook if allow_stdin else no_breakpoint)
        self._forward_input(allow_stdin)
        try:
            with self._interruptible(), _environment(request.get("env") or {}), _directory(request.get("cwd")):
                if self.streams is not None and self.direct is not None:
                    self.streams.begin(request["execution"], ordered=request["ordered"])
                    self.direct.begun()
                failed = await self._run_cell(code, silent, store_history, cell_id)
        except BaseException as error:  # noqa: BLE001 - an interrupt between the cell and us, a broken hook of the cell's
            failed = error
            shell.show(type(error), error, error.__traceback__)
        finally:
            self._restore_input()
            sys.breakpointhook = old_hook
        reply = self._reply(failed, user_expressions)
        self._streams_home()
        self._flush_c()
        return reply

    async def _run_cell(
        self, code: str, silent: bool, store_history: bool, cell_id: str | None
    ) -> BaseException | None:
        shell = self.shell
        transformed, problem = code, None
        try:
            transformed = shell.transform_cell(code)
        except Exception:  # noqa: BLE001 - shown by the shell
            problem = sys.exc_info()
        shell._last_traceback_during_displayhook = False
        running = shell.run_cell_async(
            code,
            store_history=store_history,
            silent=silent,
            transformed_cell=transformed,
            preprocessing_exc_tuple=problem,
            cell_id=cell_id,
        )
        result = None
        try:
            if shell.should_run_async(code, transformed_cell=transformed, preprocessing_exc_tuple=problem):
                self._cell = self.io_loop.asyncio_loop.create_task(running)
                result = await self._cell
            else:
                result = _pseudo_sync_runner(running)
        finally:
            self._cell = None
            shell.events.trigger("post_execute")
            if not silent:
                shell.events.trigger("post_run_cell", result)
        error: BaseException | None = result.error_before_exec or result.error_in_exec
        return error

    def _reply(self, failed: BaseException | None, user_expressions: dict[str, str] | None) -> dict[str, Any]:
        shell = self.shell
        shown = shell.shown
        exit_code = errors.exit_code(failed) if isinstance(failed, SystemExit) else 0
        if shown is None and failed is not None and not isinstance(failed, SystemExit):
            shown = errors.describe(type(failed), failed, failed.__traceback__)
        reply: dict[str, Any] = {"status": "ok", "exit_code": exit_code, "user_expressions": {}}
        if shown is not None:
            reply |= {"status": "error", "exit_code": exit_code or 1}
            reply |= {"ename": shown.name, "evalue": shown.value, "traceback": shown.traceback}
        elif user_expressions:
            reply["user_expressions"] = shell.user_expressions(user_expressions)
        reply["execution_count"] = shell.execution_count - 1
        reply["payload"] = shell.payload_manager.read_payload()
        shell.payload_manager.clear_payload()
        return reply

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """While in here SIGINT ends the cell; outside it is ignored."""
        if threading.current_thread() is not threading.main_thread():  # a subshell gets no signals
            yield
            return
        signal.signal(signal.SIGINT, self._on_sigint)
        self._in_cell = True
        try:
            yield
        finally:
            self._in_cell = False
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _on_sigint(self, _number: int, frame: FrameType | None) -> None:
        if not self._in_cell or (self.direct is not None and self.direct.defers_interrupt()):
            return
        if self._cell is not None and not _runs_in_cell(frame):
            # The cell awaits. From a signal handler the loop is only woken this way. A background task that keeps the loop
            # from it is interrupted the second time.
            loop = self.io_loop.asyncio_loop
            repeated, self.interrupted = self.interrupted, True
            loop.call_soon_threadsafe(self._cell.cancel)
            if not repeated or asyncio.current_task(loop) is None:
                return
        raise KeyboardInterrupt

    def _in_child(self) -> None:
        """A fork of the cell's is a plain program."""
        if self._in_cell:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _streams_home(self) -> None:
        if self.streams is not None:
            self.streams.put_right()
        else:
            sys.stdout, sys.stderr = self._home

    def _flush_c(self) -> None:
        """Write out what C code left in its own buffers."""
        for name in ("stdout", "stderr"):
            with contextlib.suppress(ValueError):
                self._libc.fflush(ctypes.c_void_p.in_dll(self._libc, name))


def _runs_in_cell(frame: FrameType | None) -> bool:
    """Whether ``frame`` is code of a cell with a top-level await: an exception raised in the task around it would be lost."""
    while frame is not None:
        if frame.f_code is InteractiveShell.run_cell_async.__code__:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set ``variables`` in here and put them back after, whatever the cell did to them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _directory(path: str | None) -> Iterator[None]:
    """Be in ``path`` in here; go back after, unless the cell went elsewhere itself."""
    if path is None:
        yield
        return
    before = os.getcwd()
    os.chdir(path)
    there = os.getcwd()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if os.getcwd() == there:
                os.chdir(before)
