"""How a stateless program of each language is started: command, descriptors, environment.

Code never stands in a command line. It is a memfd: standard input where the interpreter reads programs from there and the
caller gave no text for it; descriptor 3 otherwise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .programs import Command, Program, PythonRun
from .protocol import Execute

NAMES = ("python", "node", "bash")

_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_TUNABLES")
"""Variables with these beginnings act on an interpreter while it starts, so a fork would be too late for them."""

_KNOWN_AT_START = {"PYTHONUNBUFFERED", "PYTHONUSERBASE", "LANG", "LC_ALL"}
"""Of these the environment of every sandbox has some, and forks honour them: the locale is UTF-8 in both."""

_PYTHON_WITH_STDIN = (
    "import sys, os; sys.argv[0] = '-'; f = os.fdopen(3, 'rb'); c = compile(f.read(), '<stdin>', 'exec'); f.close(); "
    "del sys, os, f; exec(globals().pop('c'))"
)
_NODE = ["node", "-r", str(Path(__file__).with_name("node_output.cjs"))]
_NODE_STDIN = ["-r", str(Path(__file__).with_name("node_stdin.cjs"))]


class Start(NamedTuple):
    """A program and what is to become its descriptors 0 and 3, 4, …; these are the caller's to close."""

    program: Program
    stdin: int
    extra: tuple[int, ...]


def installed(environment: Mapping[str, str]) -> list[str]:
    """Return the names whose interpreters the PATH of ``environment`` leads to."""
    return [name for name in NAMES if name == "python" or shutil.which(name, path=environment.get("PATH"))]


@contextlib.contextmanager
def start(message: Execute, environment: Mapping[str, str], cwd: str) -> Iterator[Start]:
    """Yield what ``message`` starts; its descriptors are closed at the end. Raises OSError."""
    env = {**environment, **message.env}
    with contextlib.ExitStack() as stack:
        code = _memory(stack, "code", message.code)
        given = None if message.stdin is None else _memory(stack, "stdin", message.stdin)
        if given is None:
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, nothing)
        stdin = nothing if given is None else given
        if message.language == "bash":
            yield Start(Command(["bash", "/dev/fd/3"], env, cwd), stdin, (code,))
        elif message.language == "node":
            if given is None:
                yield Start(Command([*_NODE, "-"], env, cwd), code, ())
            else:
                yield Start(Command([*_NODE, *_NODE_STDIN, "-"], env, cwd), stdin, (code,))
        elif not _needs_fresh(environment, message.env):
            yield Start(PythonRun(env, cwd), stdin, (code,))
        elif given is None:
            yield Start(Command([sys.executable, "-"], env, cwd), code, ())
        else:
            yield Start(Command([sys.executable, "-c", _PYTHON_WITH_STDIN], env, cwd), stdin, (code,))


def _needs_fresh(environment: Mapping[str, str], added: Mapping[str, str]) -> bool:
    """Whether Python must be started anew for these variables to act."""
    return any(
        name.startswith(_READ_AT_START) and not (name in _KNOWN_AT_START and added.get(name, value) == value)
        for name, value in {**environment, **added}.items()
    )


def _memory(stack: contextlib.ExitStack, name: str, text: str) -> int:
    """Return a descriptor, closed by ``stack``, from which ``text`` can be read."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    stack.callback(os.close, descriptor)
    left = memoryview(text.encode())
    while left:
        left = left[os.write(descriptor, left) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
