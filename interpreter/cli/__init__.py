"""The command ``cellbox``: one module per command, imported only when it is called.

Exit codes: 0 done; 1 failed while running; 2 wrong usage or wrong settings; 3 cannot serve here (no backend, data root
or address taken).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import interpreter

OK, FAILED, WRONG, CANNOT = 0, 1, 2, 3

_EPILOG = """\
first steps:
  cellbox serve              start the service on http://127.0.0.1:8090; shows an API key and a line to try
  cellbox config             every SANDBOX_* variable: value, unit, default and what it does
  SANDBOX_LISTEN=:8090 SANDBOX_API_KEY=$(openssl rand -hex 32) cellbox serve
                             the same for other machines

exit codes:
  0 done   1 failed while running   2 wrong usage or settings   3 cannot serve here
"""

_COMMANDS = ("serve", "config", "stop")
_SERVER_PACKAGES = ("msgspec", "tornado")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (the process's own if None) and return its exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.command is None:
        _parser().print_help()
        return WRONG
    try:
        command = importlib.import_module(f"interpreter.cli.{arguments.command}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _SERVER_PACKAGES:
            raise
        print(
            f"`cellbox {arguments.command}` needs the service, which is not installed: pip install 'cellbox[server]'",
            file=sys.stderr,
        )
        return WRONG
    code: int = command.run(arguments)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cellbox",
        description="A stateful code interpreter for AI agents: Python, Node and Bash in a sandbox per conversation.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cellbox {interpreter.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="{serve,config,stop}")
    commands.add_parser(
        "serve",
        help="start the service",
        description="Start the service, set by SANDBOX_* variables (`cellbox config` lists them). SIGTERM lets running "
        "calls end first and leaves sandboxes to the next service; SIGINT (Ctrl-C) ends all at once.",
        allow_abbrev=False,
    )
    config = commands.add_parser(
        "config",
        help="show every setting",
        description="Show each SANDBOX_* variable: its value now, unit, default and what it does. Keys are masked.",
        allow_abbrev=False,
    )
    config.add_argument("--json", action="store_true", help="as JSON")
    stop = commands.add_parser(
        "stop",
        help="stop the service of this data root",
        description="Stop the service that uses SANDBOX_DATA_ROOT and wait until it has ended. Running calls end first; "
        "sandboxes are left to the next service on that data root, and end by themselves if none comes.",
        allow_abbrev=False,
    )
    stop.add_argument(
        "--all",
        action="store_true",
        help="at once, with all sandboxes; where no service runs, remove those that the last one left",
    )
    return parser
