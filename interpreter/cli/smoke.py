"""``cellbox smoke``: every route of a running service, called as a client does, with what has to come back.

Promises: a line for each step; what is made belongs to one scope, which is deleted at the end, whatever happened.
Leaves to smoke_steps.py: what is called; to the tests: that no route is missing there.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from interpreter import settings, wire
from interpreter.cli import FAILED, OK, WRONG, envfile
from interpreter.cli.smoke_steps import STEPS, Caller, StepFailed, clean, health
from interpreter.cli.target import Target, listening, made_key, reachable
from interpreter.settings import Settings

SCOPE = "cellbox-smoke"
ANSWER_S = 120.0
"""For an answer: the first call starts a sandbox, on a machine that may have much to do."""

Say = Callable[["Step"], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One step that was done. message: what failed; empty if nothing did."""

    name: str
    ok: bool
    ms: int
    message: str = ""


# --- the command ----------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> int:
    """Call the service and say how each step went. Exit code 1: a step failed."""
    try:
        found, target = _target(arguments)
        scope = arguments.scope or _only_scope(found)
    except settings.SettingsError as error:
        print(error, file=sys.stderr)
        return WRONG
    steps = smoke(target, scope=scope, say=_ignore if arguments.json else _say)
    failed = [step for step in steps if not step.ok]
    if arguments.json:
        print(json.dumps({"url": target.url, "ok": not failed, "steps": [asdict(step) for step in steps]}, indent=2))
    elif failed:
        print(f"{len(failed)} of {len(steps)} steps failed at {target.url}", file=sys.stderr)
    else:
        print(f"all {len(steps)} steps did well at {target.url}")
    return FAILED if failed else OK


def smoke(
    target: Target, *, scope: str | None = None, say: Say, covered: set[tuple[str, str]] | None = None
) -> list[Step]:
    """Do all steps and return how they went.

    scope: one that may have data of its own, which stays; None: one of ours. covered: gets the routes that were called.
    """
    disposable = SCOPE if scope is None else f"{SCOPE}-{secrets.token_hex(6)}"
    transport = httpx.HTTPTransport(uds=str(target.socket)) if target.socket else None
    with httpx.Client(base_url=target.url, timeout=ANSWER_S, transport=transport, trust_env=False) as client:
        caller = Caller(client, target.key, scope=scope or SCOPE, disposable=disposable)
        steps = [_did("health", functools.partial(health, caller), say)]
        if steps[0].ok:
            try:
                steps += [_did(name, functools.partial(work, caller), say) for name, work in STEPS]
            finally:
                steps.append(_did("nothing is left", functools.partial(clean, caller), say))
    if covered is not None:
        covered |= caller.covered
    return steps


def _did(name: str, work: Callable[[], None], say: Say) -> Step:
    since, message = time.monotonic(), ""
    try:
        work()
    except StepFailed as error:
        message = str(error)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        message = f"the answer is not of the form it has to have: {type(error).__name__}: {error}"
    step = Step(name, not message, round((time.monotonic() - since) * 1000), message)
    say(step)
    return step


def _say(step: Step) -> None:
    print(f"{'ok    ' if step.ok else 'FAILED'}  {step.name}  ({step.ms} ms)", flush=True)
    if step.message:
        print(f"        {step.message}", flush=True)


def _ignore(_step: Step) -> None:
    """Say nothing: all is said at the end."""


# --- where the service is ------------------------------------------------------------------------------------------


def _target(arguments: argparse.Namespace) -> tuple[Settings, Target]:
    """Return the settings of the service, and where it is. Raises SettingsError."""
    if arguments.scope is not None and not re.fullmatch(wire.NAME, arguments.scope):
        raise settings.SettingsError(f"--scope {wire.NAME_RULE}.")
    composed, url, key = False, arguments.url, None
    if arguments.dir is None:
        found = settings.load()
        port = ""
        url, key = url or os.environ.get("CELLBOX_URL"), os.environ.get("CELLBOX_API_KEY")
    else:
        folder = Path(arguments.dir)
        variables = envfile.read(folder / ".env")
        found = settings.load(variables)
        composed = (folder / "docker-compose.yml").exists()
        port = variables.get("CELLBOX_PORT", "")
    key = key or (found.keys[0] if found.keys else made_key(found.data_root))
    if url:
        return found, Target(url.rstrip("/"), key)
    if composed:
        return found, Target(f"http://{reachable(found.bind)}:{port or 8090}", key)
    return found, listening(found, key)


def _only_scope(found: Settings) -> str | None:
    """Return the scope that has claimed a service that keeps one only, since no other can be called there.

    Raises SettingsError: none has yet, and the claim would be ours for good.
    """
    root = found.data_root
    try:
        return (root / ".tenant").read_text().strip()
    except OSError:
        owner = root.stat().st_uid if root.exists() else 0
    if owner != 0 or found.runtime_backend == "process":
        raise settings.SettingsError(
            "This service keeps one scope only, the first that calls it: name the one that it is for with --scope."
        )
    return None
