"""What an earlier service left on a data root: the state files of its supervisors, and what they lead to. Blocking.

``<id>.sandbox`` says which processes and cgroups a sandbox has, from before there are any until none is left;
``<id>.ended`` how it ended, for whoever was not there to be told (supervisor.py writes both).

Promises: a file that is not what a supervisor of this data root wrote since the host booted leads to nothing: no process is
signalled and no group touched for it. A sandbox is adoptable once its start is complete and while its supervisor lives.
Leaves to backend.py: that only one service does this, the holder of the data root's lock.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import select
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interpreter.backends.base import SandboxExit, SandboxId

from . import ending

log = logging.getLogger(__name__)

STATE, ENDED = ".sandbox", ".ended"

_ID = re.compile(r"[0-9a-f]{16}")
_FILE_BYTES = 2**16
_KILLED_S = 2.0
_NOT_PARSED = (ValueError, SyntaxError, TypeError, KeyError, AttributeError, MemoryError, RecursionError)


class NotOurs(Exception):
    """The file is not what a supervisor of this data root wrote since the host booted."""


@dataclass(frozen=True, slots=True)
class State:
    """A state file. supervisor, first (of the namespace): pid and start time; no first: the start was not complete."""

    id: SandboxId
    supervisor: tuple[int, int]
    first: tuple[int, int] | None
    groups: list[str]


def read_state(file: Path, prefix: str) -> State:
    """Return what ``file`` says. prefix: of the names of this data root's cgroups. Raises NotOurs, OSError."""
    try:
        said = _literal(file)
        ident = SandboxId(said["id"])
        supervisor = int(said["pid"]), int(said["start"])
        first = None if said["first"] is None else (int(said["first"]), int(said["first_start"]))
        groups = [str(group) for group in said["groups"]]
        written_at = said["state"], said["boot"]
    except _NOT_PARSED as error:
        raise NotOurs("it cannot be read") from error
    if written_at != (str(file), ending.boot_id()) or file.name != ident + STATE:
        raise NotOurs("it was written for another data root, or before the host booted")
    if any(Path(group).name != prefix + ident for group in groups):
        raise NotOurs("it names groups that are not those of its sandbox")
    return State(ident, supervisor, first, groups)


@dataclass(frozen=True, slots=True)
class End:
    """What a supervisor tells at the end. oom_kills: since the start."""

    status: int | None
    oom_kills: int
    said: str = ""

    @property
    def exit(self) -> SandboxExit:
        """The same as the contract of backends has it."""
        return SandboxExit(self.status, oom=self.oom_kills > 0, said=self.said)


def read_end(file: Path) -> End:
    """Return how the sandbox of ``file`` ended. Raises NotOurs, OSError."""
    try:
        return end_of(_literal(file))
    except _NOT_PARSED as error:
        raise NotOurs("it cannot be read") from error


def end_of(said: Mapping[str, Any]) -> End:
    """Return the end that a supervisor told."""
    return End(int(said["ended"]), int(said["oom_kills"]), said["said"].decode(errors="replace"))


def adoptable(run: Path, prefix: str) -> Iterator[tuple[State, int]]:
    """Yield the sandboxes that can be adopted, each with a pidfd of its supervisor, which the caller closes."""
    for file in sorted(run.glob(f"*{STATE}")):
        try:
            state = read_state(file, prefix)
        except (NotOurs, FileNotFoundError):
            continue  # remove() says so
        if state.first is not None and (pidfd := _alive(*state.supervisor)) is not None:
            yield state, pidfd


def ended(run: Path, alive: Set[str]) -> Iterator[tuple[SandboxId, End]]:
    """Yield the sandboxes that are gone and whose end was noted. alive: what was so a moment ago."""
    for file in sorted(run.glob(f"*{ENDED}")):
        if not _ID.fullmatch(file.stem) or file.stem in alive or file.with_suffix(STATE).exists():
            continue  # not ours; told to its handle; not all of it is gone
        try:
            yield SandboxId(file.stem), read_end(file)
        except (NotOurs, FileNotFoundError):
            continue  # remove() says so


def remove(
    run: Path, prefix: str, groups: Mapping[str, Sequence[str]], keep: frozenset[SandboxId], *, within_s: float
) -> int:
    """End and remove all but ``keep``; return how many sandboxes that were.

    groups: the cgroups there are of this data root, directories by name. within_s: for the processes of each.
    """
    found: set[str] = set()
    for file in run.glob(f"*{STATE}"):
        if file.stem not in keep:
            found.add(file.stem)
            _remove(file, prefix, within_s)
    for name, paths in groups.items():
        if (ident := name.removeprefix(prefix)) not in keep:
            found.add(ident)
            ending.end_groups(paths, within_s=within_s)
    for pattern in (f"*{STATE}.new", f"*{ENDED}", f"*{ENDED}.new"):
        for file in run.glob(pattern):
            if file.name.partition(".")[0] not in keep:
                file.unlink(missing_ok=True)
    return len(found)


def _remove(file: Path, prefix: str, within_s: float) -> None:
    gone = True
    try:
        state = read_state(file, prefix)
        _end(*state.supervisor)
        # Again: now that it is dead nobody writes it any more, and its start may have come further meanwhile.
        state = read_state(file, prefix)
        if state.first is not None:
            _end(*state.first)
        gone = ending.end_groups(state.groups, within_s=within_s)
    except FileNotFoundError:
        pass  # it removed itself
    except NotOurs as error:
        log.warning("a state file is none of this data root's: %s", error, extra={"file": file.name[:80]})
    except OSError as error:
        # Of the service, as where it is out of descriptors: the file is what a later start finds the sandbox by.
        gone = False
        log.error(
            "a sandbox could not be removed; a later start tries again", extra={"file": file.name}, exc_info=error
        )
    if gone:
        file.unlink(missing_ok=True)


def _end(pid: int, started: int) -> None:
    """Kill the process that started then, and wait until it is dead: of a namespace's first one, all in it are dead by then."""
    pidfd = _alive(pid, started)
    if pidfd is None:
        return
    try:
        ending.kill(pidfd)
        _has_ended(pidfd, within_s=_KILLED_S)
    finally:
        os.close(pidfd)


def _alive(pid: int, started: int) -> int | None:
    """Return a pidfd of the process that started then, if it is there and has not ended. Raises OSError: none is left."""
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError):
        return None
    if ending.start_time(pid) == started and not _has_ended(pidfd, within_s=0):
        return pidfd
    os.close(pidfd)
    return None


def _has_ended(pidfd: int, *, within_s: float) -> bool:
    """Whether the process has ended in time; one that its parent has not reaped yet has."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def _literal(file: Path) -> dict[str, Any]:
    with file.open("rb") as handle:
        said = ast.literal_eval(handle.read(_FILE_BYTES).decode())
    if not isinstance(said, dict):
        raise TypeError("not a dict")
    return said
