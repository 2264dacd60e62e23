"""What the commands that call a service have in common: a client, a session, and what is said when it does not go well."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

from interpreter.cli import FAILED, WRONG, target
from interpreter.client import CellboxError, Client, InvalidRequest, Session
from interpreter.client.errors import NotReachable
from interpreter.settings import SettingsError

UNSERVED: Final = 125
"""Exit code of `cellbox exec` where the code has not run to an end; any other one is the code's."""


def called(arguments: argparse.Namespace, work: Callable[[Client], int], *, failed: int = FAILED) -> int:
    """Do ``work`` with a client and return its exit code; say in a sentence what went wrong.

    failed: the exit code where the service could not do it.
    """
    try:
        with target.connect(arguments) as client:
            return work(client)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return WRONG
    except NotReachable as error:
        print(
            f"{error}\nIs it running? `cellbox serve` starts one; CELLBOX_URL or --url says where it is.",
            file=sys.stderr,
        )
        return failed
    except CellboxError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return WRONG if isinstance(error, InvalidRequest) and failed == FAILED else failed


def session(client: Client, arguments: argparse.Namespace) -> Session:
    """Return the session that ``-s`` names. Raises InvalidRequest."""
    scope, slash, name = arguments.session.partition("/")
    if slash and not name:
        raise InvalidRequest("-s is SCOPE or SCOPE/SESSION.", code="invalid_request")
    return client.session(scope, name or None)
