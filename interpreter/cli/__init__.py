"""The command ``cellbox``: one module per command, imported only when it is called.

Exit codes: 0 done; 1 failed while running; 2 wrong usage or wrong settings; 3 cannot serve here (no backend, data root
or address taken).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import interpreter
from interpreter.cli.arguments import add_commands

OK, FAILED, WRONG, CANNOT = 0, 1, 2, 3

_EPILOG = """\
first steps:
  cellbox serve              start the service on http://127.0.0.1:8090; shows an API key and a line to try
  cellbox exec -c '6 * 7'    run code in it; repl, run, files and ps call it too, as CELLBOX_URL and CELLBOX_API_KEY say
  cellbox config             every SANDBOX_* variable: value, unit, default and what it does
  SANDBOX_LISTEN=:8090 SANDBOX_API_KEY=$(openssl rand -hex 32) cellbox serve
                             the same for other machines

exit codes:
  0 done   1 failed while running   2 wrong usage or settings   3 cannot serve here
  `cellbox exec` has the exit code of the code, or 125 where it could not be run to an end
"""

COMMANDS = ("serve", "config", "stop", "doctor", "smoke", "image", "exec", "repl", "run", "files", "ps", "completion")
_SERVER_PACKAGES = ("docker", "msgspec", "tornado")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (the process's own if None) and return its exit code."""
    arguments = parser().parse_args(argv)
    if arguments.command is None:
        parser().print_help()
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
    try:
        code: int = command.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `cellbox config | head`: who reads has had enough
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())  # or it is said once more when Python ends
        return FAILED
    return code


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(
        prog="cellbox",
        description="A stateful code interpreter for AI agents: Python, Node and Bash in a sandbox per conversation.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"cellbox {interpreter.__version__}")
    commands = made.add_subparsers(dest="command", metavar=f"{{{','.join(COMMANDS)}}}")
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
    doctor = commands.add_parser(
        "doctor",
        help="say what is wrong on this machine, and what to type",
        description="Look at all that a service with the settings of now needs: container engine, image, runtime, cgroups, "
        "namespaces, bubblewrap, clock, disk, data root, descriptors. Changes nothing. Exit code 1: something is wrong.",
        allow_abbrev=False,
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    smoke = commands.add_parser(
        "smoke",
        help="call every route of the running service",
        description="Call every route of the running service as a client does, in a scope of its own that is deleted at the end. "
        "One at a time. Exit code 1: a step failed.",
        allow_abbrev=False,
    )
    smoke.add_argument("dir", nargs="?", help="where the service's `.env` is; without it the environment tells")
    smoke.add_argument("--url", help="where the service is: CELLBOX_URL, else what its settings say")
    smoke.add_argument("--scope", help="a scope that has data, where the service keeps one only; its data stays")
    smoke.add_argument("--json", action="store_true", help="as JSON")
    image = commands.add_parser(
        "image",
        help="make, save or load the image of the sandboxes (docker backend)",
        description="The image SANDBOX_IMAGE of the container engine at DOCKER_HOST.",
        allow_abbrev=False,
    )
    actions = image.add_subparsers(dest="action", metavar="{build,inputs,save,load}", required=True)
    build = actions.add_parser(
        "build",
        help="make it, if it is not there as this version makes it",
        description="Make the image; minutes the first time, nothing if it was made from the same inputs. The base image is "
        "pulled; where there is no registry and this is root on a Debian or Ubuntu it is made from Debian's packages.",
        allow_abbrev=False,
    )
    build.add_argument("--fresh", action="store_true", help="in any case, with base and packages of today")
    actions.add_parser("inputs", help="print the hash of what it is made from", allow_abbrev=False)
    save = actions.add_parser("save", help="write it into a file, to be carried elsewhere", allow_abbrev=False)
    save.add_argument("file", help="where; a name that ends in .gz is compressed")
    load = actions.add_parser("load", help="take it from a file", allow_abbrev=False)
    load.add_argument("file", help="that `cellbox image save` or `docker save` has written")
    add_commands(commands)
    return made
