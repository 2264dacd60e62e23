"""Runs cells in the shell, interrupts them, and has a new shell with the state of the old one whenever that ends.

``exit``, a failing ``set -e`` and the like save the shell's state on the way out, so they end the cell only. A shell that is
replaced (``exec program``) or killed goes on with the state that it had before the cell; what is lost then, or cannot be
saved at all, is said on the cell's stderr. ``set -e`` is of its cell: it would end the shell at each later failing command
else. All other options stay.

An interrupt is SIGINT. After a second one, or when nobody else takes care of it, children that ignore it are killed; a shell that
still does not come back, or ignores SIGINT itself, is hung up, upon which it saves its state if it can, and killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shlex
import signal
import stat
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from cellbox_wire import Ask, AskedInput, Cell, Ending, Error, Kernel, Language, processes, reading

from . import scripts, shown
from .shell import Ended, Shell

_INSIST_S = 1.0
"""From an interrupt to the next one and the end of children that ignore it, where the client sends but one."""

_HANG_UP_S = 0.25
"""From the second interrupt until the shell is hung up, and from the first where it does what is ours, not the cell."""

_BYE_S = 1.0
_CHECK_S = 5.0
_MOST_MATCHES = 1000
_FOR_PROGRAMS = {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat"}
_LONGEST_NAME = 1000
_WORD = re.compile(r"[^\s;|&()<>\"'`=]*$")
_COMMAND_BEFORE = re.compile(r"(?:^|[\n;|&(`!{]|\b(?:then|do|else|elif|if|while|until|time))$")
_NAME_END = re.compile(r"[^\s;|&()<>\"'`=${}]*$")
_NAME = re.compile(r"[^\s;|&()<>\"'`=${}]*")
_INCOMPLETE = re.compile(r"unexpected end of file|unexpected EOF|delimited by end-of-file")

_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT}
"""What the next cell may be spared. After any other error of ours only a new kernel, with files of its own, goes on."""

_REPAIRED = "the shell did not answer, so functions named builtin or enable are gone, and builtins are enabled"
_INTERRUPTED = Ending(130, Error("KeyboardInterrupt", ""))


class Bash(Language):
    """Bash, as ``Language`` says."""

    information = {  # noqa: RUF012 - as the base class has it
        "implementation": "cellbox_bash",
        "implementation_version": "1",
        "banner": "Bash",
        "language_info": {
            "name": "bash",
            "version": "",
            "mimetype": "text/x-sh",
            "file_extension": ".sh",
            "codemirror_mode": "shell",
            "pygments_lexer": "bash",
        },
    }

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._loop = asyncio.get_running_loop()
        folder = kernel.connection_file.parent / "bash" if kernel.marks else Path(tempfile.mkdtemp(prefix="bash-"))
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._shell = Shell(folder, self._show, self._note_prompt)
        self._prompt = (0, "", False)  # of the last ``read`` that began: its process, text, whether it is a secret
        self._saved: scripts.State | None = None
        self._leaving = b""
        """What is to be run after the last cell, as ``scripts.leaving`` says."""
        self._status = 0
        self._number = 0
        self._settling: asyncio.Task[None] | None = None
        self._executing = self._in_cell = self._closed = False
        self._interrupts = 0
        self._insisting: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        await self._shell.start(os.environ | _FOR_PROGRAMS)
        await self._save()

    async def execute(self, cell: Cell) -> Ending:
        self._executing, self._interrupts, self._number = True, 0, cell.number
        try:
            await self._settle()
            return await self._execute(cell)
        except OSError as error:
            if self._kernel.marks and error.errno not in _PASSING:
                self._say(f"the kernel's own files are not as they were, so it ends: {error.strerror}")
                self._kernel.end_as(1)
            return Ending(1, Error("KernelError", f"the kernel cannot run it: {error.strerror}"))
        except Ended as ended:
            return _INTERRUPTED if self._interrupts else Ending(1, Error("KernelError", f"not run, since {ended}"))
        finally:
            self._executing = False
            self._settling = self._loop.create_task(self._settle_later(), name="after a cell")

    def interrupt(self) -> None:
        if not self._executing:
            return
        self._interrupts += 1
        if not self._in_cell:
            self._shell.hang_up(_HANG_UP_S)
            return
        self._shell.interrupt()
        if self._interrupts > 1:
            self._shell.hang_up(_HANG_UP_S)
        elif processes.ignores(self._shell.pid, signal.SIGINT):  # no second one will help
            self._shell.kill_children()
            self._shell.hang_up(_HANG_UP_S)
        elif not self._kernel.marks:
            self._insisting = self._loop.call_later(_INSIST_S, self._insist)

    async def complete(self, code: str, cursor: int) -> tuple[list[str], int, int]:
        before = code[max(cursor - _LONGEST_NAME, 0) : cursor]
        match = _WORD.search(before)
        word = match[0] if match is not None else ""
        prefix = ""
        if word.startswith("$"):
            prefix = "${" if word.startswith("${") else "$"
            kind = "-v"
        else:
            starts = _COMMAND_BEFORE.search(before[: len(before) - len(word)].rstrip(" \t")) is not None
            kind = "-c" if starts and "/" not in word else "-f"
        await self._settle()
        _, answer = await self._shell.ask(
            f"\\builtin compgen {kind} -- {shlex.quote(word.removeprefix(prefix))} || :\n"
        )
        found = sorted(set(answer.decode("utf-8", "replace").splitlines()))[:_MOST_MATCHES]
        return [prefix + match for match in found], cursor - len(word), cursor

    async def inspect(self, code: str, cursor: int) -> dict[str, Any] | None:
        first, rest = _NAME_END.search(code[max(cursor - _LONGEST_NAME, 0) : cursor]), _NAME.match(code, cursor)
        name = (first[0] if first is not None else "") + (rest[0] if rest is not None else "")
        if not name:
            return None
        name = shlex.quote(name)
        await self._settle()
        script = "".join(f"\\builtin {tell} -- {name} || :\n" for tell in ("declare -p", "type", "help"))
        _, answer = await self._shell.ask(script)
        text = answer.decode("utf-8", "replace")
        return {"text/plain": text} if text else None

    async def is_complete(self, code: str) -> str:
        checking = await asyncio.create_subprocess_exec(
            *("bash", "-O", "extglob", "-n"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"LC_ALL": "C"},
        )
        try:
            async with asyncio.timeout(_CHECK_S):
                _, said = await checking.communicate(_source(code))
        except TimeoutError:
            checking.kill()
            await checking.wait()
            return "unknown"
        if _INCOMPLETE.search(said.decode("utf-8", "replace")):
            return "incomplete"
        return "invalid" if checking.returncode else "complete"

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._settling is not None:
            await asyncio.wait([self._settling], timeout=_BYE_S)
        if self._shell.alive and not self._executing:
            with contextlib.suppress(TimeoutError, Ended, OSError):
                async with asyncio.timeout(_BYE_S):
                    await self._shell.run(self._number, scripts.BYE, self._write(self._number))
        self._shell.close()

    # --- a cell -----------------------------------------------------------------------------------------------------

    async def _execute(self, cell: Cell) -> Ending:
        source = _source(cell.code)
        ask = reading.asking(cell)
        if ask is None and self._kernel.marks and cell.ask is not None and cell.stdin is None:
            return Ending(1, reading.CANNOT_TELL)
        problem = await self._enter(cell, guarded=scripts.is_guarded(source), asks=ask is not None)
        if problem is not None:
            return Ending(1, problem)
        if self._interrupts:
            return _INTERRUPTED
        self._in_cell = True
        try:
            async with self._input(cell, ask) as stdin:
                status = await self._shell.run(
                    cell.number, source, self._write(cell.number), status=self._status, stdin=stdin
                )
        except Ended as ended:
            status = ended.status if ended.status >= 0 else 128 - ended.status
        finally:
            self._in_cell = False
            if self._insisting is not None:
                self._insisting.cancel()
        self._status = status
        if not self._shell.alive:
            self._note_end()
        elif self._shell.repaired:
            self._shell.repaired = False
            self._say(_REPAIRED)
        if self._interrupts and (status or self._shell.hung_up):
            self._status = 128 + signal.SIGINT
            return _INTERRUPTED
        return Ending(status, Error("ExitStatus", str(status))) if status else Ending()

    async def _enter(self, cell: Cell, *, guarded: bool, asks: bool) -> Error | None:
        """Have the shell as ``cell`` wants it, and note what is to be put back; return why that cannot be."""
        if not (cell.env or cell.cwd is not None or guarded or asks):
            return None
        try:
            script = scripts.entering(cell.env, cell.cwd, guarded=guarded, asks=asks, folder=str(self._folder))
        except ValueError as error:
            return Error("ValueError", str(error))
        status, before = await self._shell.ask(script)
        if status:
            return Error("NotADirectoryError", f"cwd: {cell.cwd} cannot be entered")
        self._leaving = scripts.leaving(cell.env, cell.cwd, before, guarded=guarded, asks=asks)
        return None

    @contextlib.asynccontextmanager
    async def _input(self, cell: Cell, ask: Ask | None) -> AsyncIterator[bytes | Path | None]:
        """Yield what the cell can read in here."""
        if ask is None:
            yield None if cell.stdin is None else cell.stdin.encode("utf-8", "replace")
            return
        path = self._folder / f"in-{cell.number}"
        async with contextlib.aclosing(AskedInput(path, lambda: self._shell.pid, partial(self._ask, ask))):
            yield path

    async def _ask(self, ask: Ask, pid: int) -> str:
        self._shell.drain()
        (known, prompt, secret), self._prompt = self._prompt, (0, "", False)
        return await ask(prompt, secret) if pid == known else await ask("", False)

    def _note_prompt(self, pid: int, text: str, secret: bool) -> None:
        self._prompt = (pid, text, secret)

    def _write(self, number: int) -> Any:
        return lambda stream, data: self._kernel.output.write(number, stream, data)

    def _say(self, text: str) -> None:
        self._kernel.output.write(self._number, 2, f"bash: {text}\n".encode())

    def _insist(self) -> None:
        self._shell.kill_children()
        self.interrupt()

    def _show(self, number: int, file: Path, name: str) -> None:
        try:
            data = _content(file)
        except OSError:
            return
        if len(data) > scripts.PIECE_MAX:
            problem = f"more than {scripts.PIECE_MAX} bytes"
        elif (bundle := shown.bundle(name, data)) is None:
            problem = "of no kind that can be shown"
        else:
            content = {"data": bundle, "metadata": {}, "transient": {}}
            self._kernel.publish(number, "display_data", content)
            return
        self._kernel.output.write(number, 2, f"display: {name}: {problem}\n".encode())

    # --- between cells ----------------------------------------------------------------------------------------------

    async def _settle_later(self) -> None:
        try:
            await self._put_right()
        except (Ended, OSError):
            self._settling = None  # whoever wants to run something next tries again, and is told

    async def _settle(self) -> None:
        """Return when what was to be done after the last cell is done. Raises OSError or Ended: there is no shell."""
        if self._settling is not None:
            await asyncio.wait([self._settling])
        if self._settling is None or not self._shell.alive or self._leaving:
            try:
                await self._put_right()
            except Ended:  # it did not answer; the next one may
                await self._put_right()

    async def _put_right(self) -> None:
        if not self._shell.alive:
            self._note_end()
            if self._closed:
                return
            await self._revive()
        if self._leaving:
            await self._shell.ask(self._leaving)
            self._leaving = b""
        await self._save()

    async def _save(self) -> None:
        """Note the shell's state, from which a next one is made if need be."""
        _, answer = await self._shell.source("save")
        saved = scripts.state(answer)
        if (
            saved is None
        ):  # too large, or somebody broke what it is made with: the last one is still true for most of it
            return
        self._saved = saved
        if not scripts.is_armed(str(self._folder), saved.exit_trap):
            await self._shell.ask(scripts.rearm(str(self._folder), saved.exit_trap))

    def _note_end(self) -> None:
        """Take over the state of a shell that has ended, and say what is lost."""
        ended, self._shell.ended = self._shell.ended, None
        if ended is None:
            return
        saved = scripts.state(ended.answer)
        hung_up = self._shell.hung_up
        if saved is not None:
            self._saved = saved
            lost = "the shell did not answer and was replaced by one with its state" if hung_up else ""
        else:
            how = "did not answer and was ended" if hung_up else "was replaced or killed"
            lost = f"the shell {how}, and goes on with the state it had before that"
        jobs = self._saved.jobs if self._saved is not None else 0
        if jobs:
            lost = f"{lost or 'the shell has ended and was replaced'}; its background jobs go on, but `jobs` no longer knows them"
        if lost:
            self._say(lost)

    async def _revive(self) -> None:
        """Start a shell with the state of the last one."""
        saved, forced = self._saved, self._shell.hung_up
        await self._shell.start(os.environ | _FOR_PROGRAMS if saved is None else {})
        if saved is None:
            return
        try:
            await self._shell.ask(scripts.revived(saved.script, forced=forced))
            await self._shell.source("arm")
        except Ended as ended:
            self._saved = self._shell.ended = None
            if self._kernel.marks:
                self._kernel.end_as(ended.status)
            self._say("the state of the shell that has ended cannot be made again")
            await self._shell.start(os.environ | _FOR_PROGRAMS)


def _source(code: str) -> bytes:
    """Return ``code`` as a file of Unix."""
    return code.encode("utf-8", "replace").replace(b"\r\n", b"\n")


def _content(file: Path) -> bytes:
    """Return the bytes of a regular file, which is removed."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        file.unlink()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        with open(descriptor, "rb", closefd=False) as opened:
            return opened.read(scripts.PIECE_MAX + 1)
    finally:
        os.close(descriptor)
