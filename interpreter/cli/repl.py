"""``cellbox repl``: code that is typed, and what it gives."""

from __future__ import annotations

import argparse
import codeop
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from interpreter import languages
from interpreter.cli import OK, completing
from interpreter.cli.calling import called, session
from interpreter.cli.printer import Printer
from interpreter.client import CellboxError, Client, InvalidRequest, Session
from interpreter.client.errors import Refused

_HISTORY = 5000
_INDENT = "    "
_COMMANDS = ("python", "node", "bash", "restart", "kernels", "help", "quit")
_HELP = """\
:python  :node  :bash   go on in this language; each has its own variables
:restart                a fresh kernel of this language
:kernels                what runs in this session
:help                   this
:quit                   the end, as Ctrl-D; the session stays

Tab completes names and files as the kernel knows them.
A line that does not stand alone is continued: Python as in its own prompt, others where it ends with a backslash.
Ctrl-C interrupts what runs, or forgets what was typed.
"""


def run(arguments: argparse.Namespace) -> int:
    """Read, run and show until the end of the input."""
    return called(arguments, lambda client: _repl(client, arguments))


def _repl(client: Client, arguments: argparse.Namespace) -> int:
    language = languages.canonical(arguments.language)
    if language is None:
        raise InvalidRequest(f"There is no language {arguments.language!r}.", code="unknown_language")
    where = session(client, arguments)
    talk = Conversation(
        where, language, Printer(pictures=arguments.pictures, as_json=arguments.json, asks=sys.stdin.isatty())
    )
    if sys.stdin.isatty() and not arguments.json:
        name = where.scope + (f"/{where.name}" if where.name else "")
        print(f"cellbox {client.health().version}, session {name}; :help, :quit")
    with _typing(talk):
        while True:
            try:
                if not talk.take(input(talk.prompt if sys.stdin.isatty() else "")):
                    return OK
            except EOFError:
                talk.finish()
                return OK
            except KeyboardInterrupt:
                print()
                talk.forget()
            except Refused as error:
                print(f"{error.code}: {error}", file=sys.stderr)


class Conversation:
    """What was typed and not yet run, and where it is run. Every method that runs code raises CellboxError."""

    def __init__(self, where: Session, language: str, printer: Printer) -> None:
        self._where = where
        self._printer = printer
        self._asks = sys.stdin.isatty()
        self._lines: list[str] = []
        self.language = language

    @property
    def prompt(self) -> str:
        """What stands before the next line."""
        return f"{self.language}> " if not self._lines else "." * len(self.language) + "> "

    def take(self, line: str) -> bool:
        """Take one line; run what it completes. False where it ends the conversation."""
        if not self._lines and line.startswith(":") and line[1:2].isalpha():
            return self._command(line[1:].strip())
        self._lines.append(line)
        if not is_whole(self.language, self._lines):
            return True
        self.finish()
        return True

    def finish(self) -> None:
        """Run what was typed."""
        code, self._lines = _code(self.language, self._lines), []
        if code.strip():
            asks = self._asks and self.language == "python"
            with self._where.stream(code, self.language, allow_input=asks) as stream:
                self._printer.follow(stream)

    def complete(self, line: str, word: str) -> list[str]:
        """Return what can stand in the place of ``word``, with which ``line`` ends."""
        if not line.strip():
            return [_INDENT]
        if not self._lines and line == f":{word}":
            return [name for name in _COMMANDS if name.startswith(word)]
        return completing.matches(self._where, self.language, "\n".join([*self._lines, line]), word)

    def forget(self) -> None:
        """Drop what was typed."""
        self._lines = []

    def _command(self, word: str) -> bool:
        if word in ("quit", "q", "exit"):
            return False
        if word == "restart":
            try:
                self._where.restart(self.language)
            except CellboxError as error:
                if error.code != "kernel_not_found":
                    raise
        elif word == "kernels":
            print(json.dumps([kernel.model_dump() for kernel in self._where.kernels()], indent=2))
        elif (language := languages.canonical(word)) in languages.LANGUAGES:
            self.language = language or self.language
        else:
            print(_HELP, end="")
        return True


def is_whole(language: str, lines: list[str]) -> bool:
    """Whether ``lines`` are to be run now, or go on."""
    if language != "python":
        return not lines[-1].endswith("\\")
    try:
        return codeop.compile_command("\n".join(lines)) is not None
    except (SyntaxError, ValueError, OverflowError):
        return True  # a magic of IPython, or an error that the kernel says better


def _code(language: str, lines: list[str]) -> str:
    """A backslash at the end of a line is a sign for us, but in Bash and Python one for the language too."""
    return "\n".join(line.removesuffix("\\") if language == "node" else line for line in lines)


@contextlib.contextmanager
def _typing(talk: Conversation) -> Iterator[None]:
    """Complete what is typed, have the lines that were typed before, and keep those of now, where there is a terminal."""
    try:
        import readline  # noqa: PLC0415 - not everywhere
    except ImportError:
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(home) / "cellbox" / "history"
    readline.set_history_length(_HISTORY)
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    readline.set_completer_delims(completing.DELIMITERS)
    found: list[str] = []

    def complete(word: str, number: int) -> str | None:
        """Return one match after the other, as readline asks for them."""
        if number == 0:
            found[:] = talk.complete(readline.get_line_buffer()[: readline.get_endidx()], word)
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(0o600)
            readline.write_history_file(file)
