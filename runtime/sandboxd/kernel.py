"""One kernel: its process, its pipes and channels, and the execution that runs in it.

Promises: an execution ends when the kernel says so: one of ours with its reply, before which all that belongs to it was written
and sent; one of others with reply and idle, or ``REST_S`` after the last that came; or when the process ends; or with the ladder
of its timeout. Output that comes later goes to the execution it belongs to, while that is remembered, and never to the next one.
What is streamed of one of our kernels has the order in which the code printed and published it.
Leaves to ``kernels.py`` when kernels start and which one is meant.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

import zmq

from .execution import Running
from .kernelspecs import Kernelspec
from .ladder import climb, kill_started, ticks
from .line import Line
from .marks import Pipe
from .messages import Channel, Received
from .output import Capture
from .pipes import Pipes
from .processes import Command, Exited, ForkedKernel, Process, SpawnError, Zygote
from .protocol import BootConfig, Execute, Finished, FromSandbox, Input, Progress, Reason, StillWriting, StreamName

START_S = 20.0
"""For a kernel to say that it is there. Ours take a tenth of a second, some others several."""

REST_S = 1.0
"""After the reply, for what belongs to it; again as long as something comes, ``REST_MOST_S`` in all."""

REST_MOST_S = 10.0

SETTLE_S = 0.05
"""The same after reply and idle of a foreign kernel: some publish results, and even output, a moment later."""

GONE_S = 1.2
"""For all processes of a kernel to be gone; ``Process.gone`` answers within a second."""

OVER_S = 0.15
"""Past the grace, for the processes of a kernel that did not survive it: the service's own clock ends 0.2 s after it."""

DEAF_S = 0.5
"""From the end of the socket to a kernel of ours to the end of that kernel: it ends by itself, most often."""

_PROGRESS_S = 0.25
_SHOWN = ("display_data", "execute_result", "update_display_data", "clear_output")

_REMEMBERED = 8
"""Executions of a kernel whose late output is kept."""


class KernelStartError(Exception):
    """The kernel did not start. One sentence for the caller."""


class PortsTakenError(KernelStartError):
    """Somebody else took a port that was meant for it; with others it may start."""


class Kernel:
    """A kernel, from ``start`` to its end.

    gone: called in the loop with its reason and False, once, when it has ended by itself and nothing ran in it; with True when
    something of it could not be ended and no execution can say so. send: takes Progress, what is streamed, and StillWriting.
    full: while it says so what the kernel writes stays in its pipes.
    """

    def __init__(
        self,
        spec: Kernelspec,
        config: BootConfig,
        folder: Path,
        gone: Callable[[Reason, bool], None],
        send: Callable[[FromSandbox], None],
        *,
        full: Callable[[], bool],
    ) -> None:
        self.fresh = True
        """Whether nothing has been executed in it yet."""
        self._spec = spec
        self._config = config
        self._folder = folder
        self._gone = gone
        self._send = send
        self._number = 0
        self._heard = 0
        self._told_at = 0.0
        self._running: Running | None = None
        self._remembered: OrderedDict[int, Running] = OrderedDict()
        self._ending: Reason | None = None
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[Exited] = self._loop.create_future()
        self._clean: asyncio.Future[bool] = self._loop.create_future()
        self._watcher: asyncio.Task[None] | None = None
        self._process: Process
        self._line: Line
        self._pipes = Pipes(full)

    async def start(self, zygote: Zygote, context: Callable[[], zmq.Context[zmq.Socket[bytes]]]) -> None:
        """Start it; return once it answers. Raises KernelStartError; then, or cancelled, nothing of it is left."""
        try:
            self._folder.mkdir(mode=0o700)
            self._line = Line(self._spec, self._folder, context, self._hear, self._on_deaf)
            spawning = self._loop.create_task(self._spawn(zygote), name="spawn of a kernel")
            try:
                self._process = await asyncio.shield(spawning)
            except asyncio.CancelledError:
                await self._undone(spawning)
                raise
        except (OSError, SpawnError, zmq.ZMQError) as error:
            self._free()
            cause = error if isinstance(error, SpawnError) else error.strerror  # without the path
            raise KernelStartError(f"the {self._spec.name} kernel could not be started: {cause}") from error
        except BaseException:
            self._free()
            raise
        self._watcher = self._loop.create_task(self._watch(), name=f"kernel {self._process.pid}")
        try:
            async with asyncio.timeout(START_S):
                await self._unless_exited(self._line.ready())
        except TimeoutError:
            await self.stop("killed")
            raise KernelStartError(f"the {self._spec.name} kernel did not answer within {START_S:.0f} s") from None
        except BaseException:
            await self.stop("killed")
            raise
        if self._exited.done():
            await self.stop("killed")
            if self._line.taken:
                raise PortsTakenError(f"the {self._spec.name} kernel found its ports taken")
            raise KernelStartError(f"the {self._spec.name} kernel ended while it was starting")

    async def execute(self, message: Execute) -> Finished:
        """Run ``message`` to its end. Not to be called while another runs. Cancelled: the kernel is killed."""
        kernel: Literal["new", "kept"] = "new" if self.fresh else "kept"
        self.fresh = False
        self._pipes.drain()  # what is there by now is not of this execution
        self._number += 1
        if message.stream and self._spec.marks:
            self._pipes.ordered()
        running = self._running = Running(message, self._number, marks=self._spec.marks, send=self._send)
        self._remembered[self._number] = running
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        progress = self._loop.call_later(_PROGRESS_S, self._progress, running)
        since = ticks()
        try:
            if self._exited.done():
                running.over.set_result(None)
            else:
                self._request(running)
            survived = await self._until_over(running, since)
            self._pipes.drain()
            clean = True if survived else await self._cleaned(running)
            status = self._exited.result() if self._exited.done() else Exited(None)
        except BaseException:
            self._process.kill()
            raise
        finally:
            for timer in (progress, running.timer, running.rest):
                if timer is not None:
                    timer.cancel()
            self._running = None
        outcome = running.outcome(kernel if survived else "lost", status, stopped=self._ending)
        running.keep_late()
        return Finished(message.id, outcome, sandbox_unsafe=not clean)

    def interrupt(self, execution: str) -> bool:
        """Begin the ladder for ``execution``; False if it does not run here now."""
        if self._running is None or self._running.message.id != execution:
            return False
        self._running.stop("interrupted")
        return True

    def input(self, message: Input) -> None:
        """Hand on what the execution of ``message`` reads, if it runs here and has asked."""
        running = self._running
        if running is not None and running.message.id == message.id and running.asks:
            running.asks = False
            self._line.give(message.text)

    def rewind(self) -> None:
        """Tell the progress of what runs anew, from the start."""
        if self._running is not None:
            self._running.stdout.rewind()
            self._running.stderr.rewind()
            self._running.stream.stop()

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left."""
        return self._watcher is None or self._watcher.done()

    async def stop(self, reason: Reason) -> bool:
        """End the kernel and what runs in it; return whether its processes are gone, once that is known. Repeatable."""
        self._ending = self._ending or reason
        self._process.kill()
        if self._watcher is not None:
            await asyncio.wait([self._watcher], timeout=2 * GONE_S)
        return self._clean.done() and self._clean.result()

    async def _spawn(self, zygote: Zygote) -> Process:
        file = str(self._folder / "c.json")
        secret = secrets.token_hex(16)
        environment = self._config.environment | self._spec.env
        if self._spec.marks:
            environment["CELLBOX_MARKS"] = secret
        else:  # as every Jupyter front end says; 1: no need to watch a parent, and no advice for terminals
            environment |= {"JPY_PARENT_PID": "1", "NO_COLOR": "1"}
        workspace = self._config.workspace
        program: ForkedKernel | Command
        if self._spec.forked:
            program = ForkedKernel(self._spec.name, file, environment, workspace)
        else:
            program = Command(self._spec.command(file), environment, workspace)
        ends: list[int] = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
        try:
            pipes: tuple[Pipe, Pipe] = (1, 2)
            ends.extend(self._pipes.add(secret, pipe, self) for pipe in pipes)
            return await zygote.spawn(program, stdin=ends[0], stdout=ends[1], stderr=ends[2], extra=self._line.given)
        finally:
            self._line.handed_over()
            for end in ends:
                os.close(end)

    async def _undone(self, spawning: asyncio.Task[Process]) -> None:
        """End a process whose start is no longer wanted; return once it is gone."""
        await asyncio.wait([spawning])
        if spawning.exception() is None:
            spawning.result().kill()
            await spawning.result().gone()

    async def _watch(self) -> None:
        """Notice the end of the process and clean up after it."""
        self._exited.set_result(await self._process.wait())
        heard_out = self._line.drain()
        self._pipes.drain()
        why, running = reason(self._exited.result()), self._running
        if running is not None:
            if not heard_out:
                await self._hear_out(running)
            running.end()
        elif self._ending is None:
            self._gone(why, False)
        self._clean.set_result(await self._process.gone())
        if not self._clean.result() and running is None:
            self._gone(why, True)
        self._pipes.drain()
        self._free()

    async def _hear_out(self, running: Running) -> None:
        """Take what the process published last: it has been sent, but a thread of the library reads it, perhaps later."""
        heard, until = -1, self._loop.time() + REST_MOST_S
        while self._heard != heard and running.why is None and not running.over.done() and self._loop.time() < until:
            heard = self._heard
            await asyncio.wait([running.over, running.stopped], timeout=SETTLE_S, return_when=asyncio.FIRST_COMPLETED)

    def _free(self) -> None:
        self._pipes.close()
        if hasattr(self, "_line"):
            self._line.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _unless_exited(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work``, but not beyond the end of the process."""
        task = self._loop.create_task(work, name="kernel start")
        try:
            waited: list[asyncio.Future[Any]] = [task, self._exited]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _request(self, running: Running) -> None:
        message = running.message
        content = {
            "code": message.code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": message.allow_input and "input" in self._spec.fields,
            "stop_on_error": False,
        }
        cwd = None if message.cwd is None else str(Path(self._config.workspace) / message.cwd)
        fields = {"env": message.env, "cwd": cwd, "stdin": message.stdin}
        honoured = {name: value for name, value in fields.items() if name in self._spec.fields}
        metadata = {"cellbox": {"execution": running.number, "ordered": message.stream, **honoured}}
        running.request = self._line.execute(content, metadata)
        running.begun = time.monotonic()
        running.timer = self._loop.call_later(message.timeout_s, running.stop, "timeout")

    async def _until_over(self, running: Running, since: int) -> bool:
        """Wait for the end, by the ladder if it must be; return whether the kernel survived."""
        await running.woken
        grace_s = running.message.grace_s
        if self._spec.marks and not running.over.done():
            await self._line.begun(running.over, within_s=grace_s / 4)
            grace_s = max(running.left_s(), 0)
        if not running.over.done() and not await climb(
            self._process,
            running.over,
            self._interrupt,
            since=since,
            grace_s=grace_s,
            in_child=self._spec.child,
        ):
            return False
        if running.why is not None and not self._exited.done():
            self._loop.call_later(grace_s / 2, self._kill_started, since, ticks())
        return not self._exited.done() and self._ending is None

    def _interrupt(self) -> None:
        """Ask for the end of what runs."""
        if self._spec.interrupted_by_message:
            self._line.interrupt()
        else:
            self._process.signal_group(signal.SIGINT)

    def _kill_started(self, since: int, until: int) -> None:
        """End the children of an execution that was interrupted, if they would not hear."""
        if not self._exited.done():
            kill_started(self._process, since, until, in_child=self._spec.child)

    async def _cleaned(self, running: Running) -> bool:
        """Wait until nothing of the kernel is left; return whether that is so."""
        limit = GONE_S
        if running.why is not None:  # the answer is due with the grace
            limit = running.left_s() + OVER_S
        self._process.kill()
        await asyncio.wait([self._clean], timeout=max(limit, 0.05))
        return self._clean.done() and self._clean.result()

    def _progress(self, running: Running) -> None:
        if self._running is not running:
            return
        self._loop.call_later(_PROGRESS_S, self._progress, running)
        streams: tuple[tuple[StreamName, Capture], ...] = (("stdout", running.stdout), ("stderr", running.stderr))
        for name, capture in streams:
            text = capture.progress()
            if text:
                self._send(Progress(running.message.id, name, text))

    # --- what the kernel says ---------------------------------------------------------------------------------------

    def _hear(self, channel: Channel, message: Received) -> None:
        match channel:
            case "shell":
                self._on_shell(message)
            case "iopub":
                self._on_iopub(message)
            case "stdin":
                self._on_stdin(message)

    def _on_deaf(self) -> None:
        """A kernel of ours can be told nothing any more: it is ending, or the code in it has closed what it hears with."""
        self._loop.call_later(DEAF_S, self._end_deaf)

    def _end_deaf(self) -> None:
        if not self._exited.done():
            self._process.kill()

    def _on_shell(self, message: Received) -> None:
        running = self._running
        if running is not None and message.parent == running.request:
            running.on_shell(message)
            if running.reply is not None and not self._spec.marks:
                self._wait_for_rest(running, self._loop.time() + REST_MOST_S)

    def _on_stdin(self, message: Received) -> None:
        running = self._running
        if running is not None and message.parent == running.request:
            self._pipes.take()  # what was printed before it asked
            running.on_stdin(message)

    def _wait_for_rest(self, running: Running, until: float) -> None:
        wait_s = SETTLE_S if running.complete else REST_S
        if running.rest is not None:
            running.rest.cancel()
        running.rest = self._loop.call_later(wait_s, self._rest, running, self._heard, until)

    def _rest(self, running: Running, heard: int, until: float) -> None:
        """End ``running`` when nothing has come since ``heard``, at the latest at ``until``; at once if it is to end anyway."""
        if heard == self._heard or running.why is not None or self._loop.time() > until:
            running.end()
        elif not running.over.done():
            self._wait_for_rest(running, until)

    def _on_iopub(self, message: Received) -> None:
        self._heard += 1
        running = self._running
        if message.place:
            self._pipes.come(message.place - 1)
        if running is not None:
            self._tell(running, message)
        if message.place:
            self._pipes.come(message.place)
            self._pipes.take()

    def _tell(self, running: Running, message: Received) -> None:
        if message.parent == running.request:
            if running.message.stream and message.type in _SHOWN:
                self._pipes.take()  # what was printed before it
            running.on_iopub(message)
            if message.type == "status" and running.complete:
                self._wait_for_rest(running, self._loop.time() + REST_MOST_S)

    def text(self, execution: int, stream: Pipe, data: bytes) -> None:
        """Marked text: see ``marks.Heard``."""
        self._capture(execution, stream, data)

    def raw(self, pipe: Pipe, data: bytes) -> None:
        """Bytes of nobody in particular: see ``marks.Heard``."""
        self._capture(self._number, pipe, data)

    def _capture(self, execution: int, stream: Pipe, data: bytes) -> None:
        running = self._remembered.get(execution)
        if running is not None:
            running.capture(stream).feed(data)
        if self._running is None and self._loop.time() - self._told_at > _PROGRESS_S:
            self._told_at = self._loop.time()
            self._send(StillWriting())


def reason(exited: Exited) -> Reason:
    """Return why a kernel that nobody ended has ended."""
    if exited.status is None:
        return "killed"
    return "exit" if exited.status >= 0 else "crash"
