"""The shell: one interactive bash without a terminal, and the way to talk to it.

It reads lines from a pipe on its descriptor 0. What it is to do is written to a file, which a line has it source: so nothing is
quoted, syntax errors have their lines, ``return`` works, and redirections are undone after a cell that changed them. Its being
interactive makes SIGINT, an unset variable and a syntax error end the cell and not the shell. Its own descriptors 1 and 2 are
/dev/null, where prompts vanish; a cell's are pipes with names, made for it alone and read until nobody writes there any more, so
what its background jobs say later is known to be of that cell.

No descriptor of ours is inherited by what a cell starts: answers go through named pipes too, opened for one line at a time.

Promises: ``run`` returns when the lines are done or the shell has ended; all output of the foreground has been handed on then.
What is ours takes ``_ANSWER_S`` at most. A shell that has read our lines and yet says nothing, since a cell took away what they
are made with, is put right or ended.
Leaves to ``kernel.py`` what is run, when it takes too long, and what to do about a shell that has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from cellbox_wire import Pump, processes, reading

from . import scripts

_PR_SET_PDEATHSIG = 1
_MOST_ANSWER = 64 * 2**20
_MOST_LINE = 8192
_MOST_DIGITS = 16

_ANSWER_S = 5.0
"""For lines of ours, which take milliseconds, unless a trap on DEBUG that they inherit takes its time."""

_LOOK_S = 0.5
_DEAF = 2
"""How many looks one after the other find all lines read and no answer, until something is done about it."""

_KILL_S = 0.3
"""From when the shell is hung up to its end; short, since the client's patience ends at some time too."""


_GONE_S = 1.0
"""For the end of a shell that has been killed, which takes milliseconds."""


class Ended(Exception):
    """The shell has ended. status: exit code, or minus the number of a signal. answer: what it had written by then."""

    def __init__(self, status: int, answer: bytes) -> None:
        super().__init__(f"the shell has ended with {status}")
        self.status = status
        self.answer = answer


class Shell:
    """A shell, again and again ``start``-ed, whose files are in ``folder``, which is ours.

    show: called when a cell wants a file shown: number of the cell, the copy that was made of it, its name. prompt: called when a
    ``read`` of a cell's input begins: process, text, whether what comes is a secret.
    """

    def __init__(
        self, folder: Path, show: Callable[[int, Path, str], None], prompt: Callable[[int, str, bool], None]
    ) -> None:
        self._folder = folder
        self._show = show
        self._prompt = prompt
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None)
        self._process: subprocess.Popen[bytes] | None = None
        self.ended: Ended | None = None
        """How the last shell has ended."""
        self.hung_up = False
        """Whether it was told to end while it did what it did last."""
        self.repaired = False
        """Whether it was put right; taken back by who has noticed."""
        self._run = 0
        self._done: asyncio.Future[int] | None = None
        self._began = 0
        self._end: asyncio.TimerHandle | None = None
        self._line = b""
        self._answer = bytearray()
        self._pumps: set[Pump] = set()
        for name, text in scripts.files(str(folder)).items():
            (folder / name).write_text(text)
        self._closed = False
        self._opened: dict[str, os.stat_result] = {}
        self._control = Pump(self._named("control"), self._hear, prompt=True)
        self._answers = Pump(self._named("answer"), self._gather)  # nobody waits for it: ``_lines`` reads the rest
        self._shown = self._named("shown")

    @property
    def alive(self) -> bool:
        """Whether there is a shell."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Of the shell, which leads a session and a process group of that number. 0: there is none."""
        return self._process.pid if self._process is not None else 0

    async def start(self, environment: Mapping[str, str]) -> None:
        """Have a new shell, ready. Raises OSError, or Ended if it does not stay."""
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        path = shutil.which("bash")
        if path is None:
            raise FileNotFoundError("there is no bash")
        self._process = subprocess.Popen(  # noqa: ASYNC220 - it forks, and waits for nothing
            [path, "--norc", "--noprofile", "--noediting", "-i"],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=self._in_child,  # noqa: PLW1509 - there are no threads
        )
        self.repaired = False
        await self.source("init")

    async def source(self, name: str, *arguments: str) -> tuple[int, bytes]:
        """Have the shell source a file of ours; return its status and what it wrote to stdout. Raises Ended."""
        words = " ".join([str(self._folder / name), *arguments])
        line = f"\\builtin . {words} </dev/null >{self._folder}/answer 2>/dev/null\n"
        return await self._lines(line, within_s=_ANSWER_S)

    async def ask(self, script: bytes | str) -> tuple[int, bytes]:
        """Have the shell source ``script``; as ``source``."""
        (self._folder / "ask").write_bytes(script.encode() if isinstance(script, str) else script)
        return await self.source("ask")

    async def run(
        self,
        number: int,
        script: bytes,
        write: Callable[[int, bytes], None],
        *,
        status: int = 0,
        stdin: bytes | Path | None = None,
    ) -> int:
        """Have the shell source ``script`` as the cell of that number; return its status.

        write: takes what it writes, stream 1 or 2 and bytes, also after its end. status: what it finds in ``$?``. stdin: what
        it can read, or a file to read. Raises Ended.
        """
        folder, cell = self._folder, self._folder / f"cell-{number}"
        source = [cell]
        if (grouped := scripts.grouped(script)) is not None:
            source += [check := folder / f"check-{number}", lines := folder / f"lines-{number}"]
            check.write_bytes(grouped.check)
            lines.write_bytes(script)
        cell.write_bytes(script if grouped is None else grouped.text)
        given = stdin if isinstance(stdin, Path) else Path(os.devnull)
        if isinstance(stdin, bytes):
            source.append(given := folder / f"in-{number}")
            given.write_bytes(stdin)
        pipes = [folder / f"out-{number}", folder / f"err-{number}"]
        pumps = []
        try:
            for stream, pipe in enumerate(pipes, 1):
                pumps.append(self._pump(pipe, partial(write, stream)))
            with contextlib.suppress(BlockingIOError):  # what nobody waited for
                os.read(self._shown, select.PIPE_BUF)
            before = f"\\builtin . {folder}/status {status} && :; "
            redirected = f"<{given} >{pipes[0]} 2>{pipes[1]}"
            line = f"{before if status else ''}\\builtin . {cell} {redirected}"
            if grouped is not None:
                checked = f"[[ $- != *v* ]] && \\builtin . {check} </dev/null >/dev/null 2>/dev/null"
                line_by_line = f"{before}\\builtin . {lines} {redirected}"
                line = f"if {checked}; then {before}\\builtin . {cell} {redirected}; else {line_by_line}; fi"
            ended, _ = await self._lines(line + "\n")
            return ended
        except OSError:  # no descriptor is left, for one; nobody will ever write there
            for pump in pumps:
                self._pumps.discard(pump)
                pump.close()
            raise
        finally:
            for pump in pumps:
                pump.drain()
            for path in (*source, *pipes):
                path.unlink(missing_ok=True)

    def interrupt(self) -> None:
        """SIGINT for what runs, and new chances to say that it is done: the first may have been interrupted too, or read."""
        self.signal(signal.SIGINT)
        self._send(2 * self._post())

    def drain(self) -> None:
        """Hand on what cells have written until now."""
        for pump in [*self._pumps]:
            pump.drain()

    def signal(self, number: int) -> None:
        """Send a signal to the shell and all of its process group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def kill_children(self) -> None:
        """SIGKILL what was started since it began what it does."""
        if self._process is not None:
            processes.kill_below(self._process.pid, self._began)

    def hang_up(self, within_s: float) -> None:
        """Unless it is done with what it does by then, have it save its state and end, or end it."""
        if self._done is None or self.hung_up:
            return
        if self._end is None or self._end.when() > self._loop.time() + within_s:
            self._end_later(within_s, self._hang_up)

    def close(self) -> None:
        """End it with its process group, see it gone, and let go of everything. May be called twice."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # in a call of the system that nothing ends
                self._process.wait(_GONE_S)
        for pump in [*self._pumps, self._control, self._answers]:
            pump.close()
        if not self._closed:
            self._closed = True
            os.close(self._shown)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _in_child(self) -> None:
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    async def _lines(self, lines: str, *, within_s: float | None = None) -> tuple[int, bytes]:
        if self._process is None:
            raise Ended(0, b"")
        self._look_at_pipes()
        self._run += 1
        self._answer.clear()
        self._done, self._began, self.hung_up = self._loop.create_future(), processes.ticks(), False
        if within_s is not None:
            self.hang_up(within_s)
        listening = self._loop.create_task(self._listen(), name="whether the shell hears")
        try:
            self._send(lines + self._post())
            status = await self._done
            self._answers.drain()
            return status, bytes(self._answer)
        finally:
            listening.cancel()
            self._end_later(None)
            self._done = None
            self._answer.clear()

    async def _listen(self) -> None:
        """Put the shell right if it does not answer, once; then hang it up."""
        for repair in (self._repair, self._hang_up):
            deaf = 0
            while deaf < _DEAF:
                await asyncio.sleep(_LOOK_S)
                deaf = deaf + 1 if self._is_idle() else 0
            repair()

    def _is_idle(self) -> bool:
        """Whether the shell has read all of our lines and waits for more, as far as the system tells."""
        if self._process is None or self._process.stdin is None:
            return False
        return reading.waits(self._process.pid, os.fstat(self._process.stdin.fileno()))

    def _repair(self) -> None:
        self.repaired = True
        self._send(scripts.REPAIR + self._post())

    def _hang_up(self) -> None:
        self.hung_up = True
        self.kill_children()
        self._answers.drain()
        self._answer.clear()  # its state comes now, whatever it was telling
        self._signal_alone(signal.SIGHUP)
        self._end_later(_KILL_S, self._signal_alone, signal.SIGKILL)

    def _signal_alone(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _end_later(self, delay_s: float | None, call: Callable[..., None] | None = None, *arguments: int) -> None:
        """Have that done then, and nothing that was to be done before. None: nothing."""
        if self._end is not None:
            self._end.cancel()
        self._end = None if delay_s is None or call is None else self._loop.call_later(delay_s, call, *arguments)

    def _look_at_pipes(self) -> None:
        """Raise OSError if the shell would answer elsewhere than where we hear: a cell can remove and replace the names."""
        for name, opened in self._opened.items():
            if not os.path.samestat(os.lstat(self._folder / name), opened):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), name)

    def _post(self) -> str:
        return f'\\builtin . {self._folder}/post "$?" {self._run}\n'

    def _send(self, lines: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                os.write(self._process.stdin.fileno(), lines.encode())

    def _pump(self, path: Path, receive: Callable[[bytes], None]) -> Pump:
        """Make a named pipe and read it to its end."""
        os.mkfifo(path, 0o600)
        pump = Pump(
            os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), receive, lambda: self._pumps.discard(pump)
        )
        self._pumps.add(pump)
        return pump

    def _named(self, name: str) -> int:
        """Make a named pipe that has no end; return its descriptor."""
        os.mkfifo(self._folder / name, 0o600)
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._opened[name] = os.fstat(descriptor)
        return descriptor

    def _gather(self, data: bytes) -> None:
        if len(self._answer) < _MOST_ANSWER:
            self._answer += data

    def _hear(self, data: bytes) -> None:
        """Take the lines that the shell's files write; others are nothing.

        They are ``done RUN STATUS``, ``show CELL COPY NAME`` and ``prompt PID SECRET TEXT``.
        """
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-_MOST_LINE:]
        for line in lines:
            match line.split(b" ", 3):
                case [b"done", run, status] if run.isdigit() and int(run) == self._run and status.isdigit():
                    if self._done is not None and not self._done.done():
                        self._done.set_result(int(status) & 0xFF)
                case [b"show", number, copy, name] if (
                    number.isdigit() and copy.startswith(b"show-") and b"/" not in copy
                ):
                    self.drain()  # what was written before it, while who shows it waits
                    self._show(int(number), self._folder / os.fsdecode(copy), name.decode("utf-8", "replace"))
                    with contextlib.suppress(BlockingIOError):  # full: nobody waits
                        os.write(self._shown, b".")
                case [b"prompt", pid, secret, text] if pid.isdigit() and len(pid) < _MOST_DIGITS:
                    self._prompt(int(pid), text.decode("utf-8", "replace"), secret == b"1")

    def _reap(self) -> None:
        if self._process is None or self._process.poll() is None:
            return
        status, process = self._process.returncode, self._process
        self._process = None
        if process.stdin is not None:
            process.stdin.close()
        self._answers.drain()
        self.ended = Ended(status, bytes(self._answer))
        self._answer.clear()
        if self._done is not None and not self._done.done():
            self._done.set_exception(self.ended)
