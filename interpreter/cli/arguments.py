"""What the commands that call a service take. Light to import: every command parses it.

Leaves to one module per command: doing it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any


def add_commands(commands: Any) -> None:
    """Add the parsers of these commands."""
    _add_exec(commands)
    _add_repl(commands)
    _add_run(commands)
    _add_files(commands)
    ps = _command(
        commands,
        "ps",
        "list sandboxes and what runs in them",
        "List the sandboxes of all scopes, or of one, with their kernels.",
        "cellbox ps\ncellbox ps ada --json",
    )
    ps.add_argument("scope", nargs="?", help="of this scope only")
    completion = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description="Print a script for a shell. In ~/.bashrc: source <(cellbox completion bash)",
        allow_abbrev=False,
    )
    completion.add_argument("shell", choices=["bash"], help="which")


def _add_exec(commands: Any) -> None:
    parser = _command(
        commands,
        "exec",
        "run code and show its output as it comes",
        "Run code in a session, which remembers it, and end with its exit code (125: it could not be run to an end). Ctrl-C "
        "interrupts the code. Where this is a terminal, input() of Python is answered here.",
        "cellbox exec -c 'print(6 * 7)'\ncellbox exec -s ada/chat1 analysis.py\n"
        "echo 'echo $((6 * 7))' | cellbox exec --language bash -",
    )
    _add_session(parser)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("-c", dest="code", metavar="CODE", help="the code itself")
    given.add_argument("file", nargs="?", help="a file of code; - reads standard input")
    parser.add_argument("--language", help="python, node or bash; without it the file's name tells, else python")
    parser.add_argument("--fresh", action="store_true", help="a fresh interpreter that leaves nothing but files")
    parser.add_argument("--context", help="another kernel of this language in the session")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds the code may run")
    parser.add_argument("--cwd", help="directory, relative to /opt/workspace")
    parser.add_argument(
        "-e", "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable; may be given several times"
    )
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        dest="files",
        metavar="FILE[=PATH]",
        help="a file of this machine that is put into the workspace first; may be given several times",
    )
    parser.add_argument(
        "--pictures", type=Path, metavar="DIR", help="where pictures are saved; without it they are not"
    )


def _add_repl(commands: Any) -> None:
    parser = _command(
        commands,
        "repl",
        "type code and see what it gives",
        "Type code into a session, which remembers it. Lines that do not stand alone are continued; :help lists what else can be "
        "typed. History is kept in the user's state directory. Pictures are saved and named.",
        "cellbox repl\ncellbox repl -s ada/chat1 --language node",
    )
    _add_session(parser)
    parser.add_argument("--language", default="python", help="python, node or bash")
    parser.add_argument(
        "--pictures", type=Path, metavar="DIR", default=Path("pictures"), help="where pictures are saved: pictures"
    )


def _add_run(commands: Any) -> None:
    parser = _command(
        commands,
        "run",
        "run a notebook and write it with its outputs",
        "Run the cells of a notebook in order and write it with their outputs. Without -s in a session of its own, which is "
        "deleted at the end. Ends at the first cell that fails (exit code 1); what came until then is written too.",
        "cellbox run analysis.ipynb -o done.ipynb\ncellbox run analysis.ipynb --html",
    )
    _add_session(parser, default=None)
    parser.add_argument("notebook", type=Path, help="a file of Jupyter's format, version 4")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where it is written; without it in its place"
    )
    parser.add_argument("--html", action="store_true", help="also as a page beside it (pip install 'cellbox[html]')")
    parser.add_argument("--keep-going", action="store_true", help="run the other cells after one that fails")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds each cell may run")


def _add_files(commands: Any) -> None:
    parser = commands.add_parser(
        "files",
        help="list, get, put and remove files",
        description="The files of a session: /opt/workspace inside. With -s SCOPE alone, those of the scope.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="{ls,get,put,rm}", required=True)
    ls = _command(actions, "ls", "list a directory", "List a directory.", "cellbox files ls -s ada/chat1")
    ls.add_argument("path", nargs="?", default="", help="the directory; without it the topmost one")
    get = _command(actions, "get", "copy one here", "Copy a file here.", "cellbox files get -s ada/chat1 plot.png")
    get.add_argument("path", help="of there")
    get.add_argument("to", nargs="?", help="of here; without it the same name, - for standard output")
    put = _command(actions, "put", "copy one there", "Copy a file there.", "cellbox files put -s ada/chat1 data.csv")
    put.add_argument("file", help="of here; - for standard input")
    put.add_argument("path", nargs="?", help="of there; without it the same name")
    rm = _command(
        actions, "rm", "remove one", "Remove a file, or a directory with all in it.", "cellbox files rm -s ada tmp"
    )
    rm.add_argument("path", help="of there")
    for each in (ls, get, put, rm):
        _add_session(each)


def _command(commands: Any, name: str, summary: str, description: str, examples: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog="examples:\n" + "".join(f"  {line}\n" for line in examples.splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--url", help="where the service is: CELLBOX_URL, else the one of this machine")
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _add_session(parser: argparse.ArgumentParser, default: str | None = "cli") -> None:
    parser.add_argument(
        "-s",
        "--session",
        metavar="SCOPE[/SESSION]",
        default=os.environ.get("CELLBOX_SESSION") or default,
        help="whose sandbox: CELLBOX_SESSION" + (f", else {default}" if default else ""),
    )
