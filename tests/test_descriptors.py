"""The table of all that holds a descriptor: what fits is allowed, what does not is said, and each takes what is counted."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interpreter import app, descriptors
from interpreter.backends.docker import engine
from interpreter.descriptors import CONNECTION, SANDBOX, TooFewDescriptors, holders, needed, shares
from interpreter.files import archive
from interpreter.files.service import Files
from interpreter.files.tree import Tree
from interpreter.files.walking import matcher
from interpreter.http.server import FEWEST_CONNECTIONS
from interpreter.keys import Key
from interpreter.scopes.root import DataRoot, Ids
from tests.files.conftest import *  # noqa: F403 - its fixtures

FIXED = needed(sandboxes=0, connections=0, backend="bubblewrap")


@pytest.mark.parametrize("backend", ["bubblewrap", "docker", "process"])
@pytest.mark.parametrize("sandboxes", [1, 100, 20_000])
def test_what_is_allowed_never_takes_more_than_may_be_open(sandboxes: int, backend: str) -> None:
    everything = needed(sandboxes=sandboxes, connections=4096, backend=backend)
    for allowed in (700, 1024, 4096, 20_000, 65_536, everything - 1, everything, everything + 1):
        try:
            share = shares(allowed, sandboxes=sandboxes, backend=backend)
        except TooFewDescriptors:
            assert allowed < needed(sandboxes=1, connections=FEWEST_CONNECTIONS, backend=backend)
            continue
        assert 1 <= share.sandboxes <= sandboxes
        assert FEWEST_CONNECTIONS <= share.connections <= 4096
        taken = needed(sandboxes=share.sandboxes, connections=share.connections, backend=backend)
        assert taken <= allowed
        whole = (share.sandboxes, share.connections) == (sandboxes, 4096)
        assert whole or taken > allowed - max(SANDBOX, CONNECTION), "nothing is left that could be used"
        assert whole is (allowed >= everything)
        assert bool(share.reduced) is not whole
        assert share.needed == everything


def test_connections_go_first_and_then_sandboxes_and_it_is_said_which() -> None:
    connections = shares(FIXED + SANDBOX * 100 + CONNECTION * 500, sandboxes=100, backend="bubblewrap")
    assert (connections.sandboxes, connections.connections) == (100, 500)
    assert "500 connections instead of 4096" in connections.reduced
    assert "sandboxes" not in connections.reduced
    sandboxes = shares(FIXED + SANDBOX * 10 + CONNECTION * FEWEST_CONNECTIONS, sandboxes=100, backend="bubblewrap")
    assert (sandboxes.sandboxes, sandboxes.connections) == (10, FEWEST_CONNECTIONS)
    assert "10 sandboxes instead of SANDBOX_MAX_SESSIONS=100 and 16 connections instead of 4096" in sandboxes.reduced
    for said in (connections.reduced, sandboxes.reduced):
        assert f"Allow {connections.needed}" in said
    assert connections.limits().max_per_address == 500
    assert shares(10**6, sandboxes=100, backend="docker").limits().max_per_address == 1024


def test_where_not_even_one_sandbox_fits_the_start_is_refused_with_the_number() -> None:
    least = needed(sandboxes=1, connections=FEWEST_CONNECTIONS, backend="bubblewrap")
    assert shares(least, sandboxes=100, backend="bubblewrap").sandboxes == 1
    with pytest.raises(
        TooFewDescriptors, match=f"Only {least - 1} files may be open here, and the least .* is {least}"
    ):
        shares(least - 1, sandboxes=100, backend="bubblewrap")


def test_the_engine_has_as_many_calls_as_are_counted() -> None:
    assert descriptors._ENGINE_CALLS == engine._CALLS_AT_ONCE + engine._ENDS_AT_ONCE
    of_docker = needed(sandboxes=1, connections=1, backend="docker")
    assert of_docker - needed(sandboxes=1, connections=1, backend="bubblewrap") > descriptors._ENGINE_CALLS


SCRIPT = """
import os, resource, sys
from interpreter import descriptors
inherited, hard, wanted = map(int, sys.argv[1:])
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(inherited)]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
print(descriptors.allow(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def allowed(inherited: int, hard: int, wanted: int) -> tuple[int, int]:
    """What a process may use and what its soft limit is then. Its own: a hard limit cannot be raised again."""
    script = [sys.executable, "-c", SCRIPT, str(inherited), str(hard), str(wanted)]
    ours, soft = subprocess.run(script, check=True, capture_output=True, text=True).stdout.split()
    return int(ours), int(soft)


def test_the_soft_limit_becomes_the_hard_one_and_what_was_inherited_is_not_counted_as_ours() -> None:
    assert allowed(0, 1024, 9000) == (1024, 1024)
    ours, soft = allowed(100, 1024, 9000)
    assert soft == 1024
    assert 1024 - 100 <= ours < 1024 - 90


def test_no_more_is_asked_for_than_is_of_use() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 100_000:
        pytest.skip("the host does not allow so many")
    assert allowed(0, 100_000, 9000) == (descriptors.OPEN_FILES, descriptors.OPEN_FILES)
    assert allowed(0, 100_000, 80_000) == (80_000, 80_000)


def test_a_start_with_too_few_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "allow", lambda _wanted: 100)
    with pytest.raises(app.StartError, match="Only 100 files may be open here"):
        app._shares(10, "bubblewrap")


# --- what each takes ----------------------------------------------------------------------------------------------------


def each(words: str) -> int:
    """What the table says of whoever it names so."""
    (found,) = [h.each for h in holders(sandboxes=1, connections=1, backend="bubblewrap") if words in h.who]
    return found


class Most:
    """How many descriptors there were at most beyond those at first, whenever something was opened."""

    def __init__(self) -> None:
        self.first = self._now()
        self.most = 0
        self.on = True

    def look(self) -> None:
        self.most = max(self.most, self._now() - self.first + 1)  # it is told before it is opened

    def _now(self) -> int:
        return len(os.listdir("/proc/self/fd"))


_watching: list[Most] = []


def _hear(event: str, _arguments: object) -> None:
    if _watching and event in ("open", "os.scandir", "os.listdir"):
        most = _watching.pop()  # looking opens something itself
        try:
            most.look()
        finally:
            _watching.append(most)


@contextmanager
def watched() -> Iterator[Most]:
    if not hasattr(sys, "_cellbox_audited"):
        sys.addaudithook(_hear)
        sys._cellbox_audited = True  # type: ignore[attr-defined]  # a hook stays for ever
    most = Most()
    _watching.append(most)
    try:
        yield most
    finally:
        _watching.clear()


def deep(workspace: Path) -> None:
    """As deep as can be named, with a file in each."""
    here = workspace / "d"
    for _ in range(60):
        here.mkdir()
        (here / "f").write_text("x")
        here /= "d"


def find(tree: Tree) -> None:
    assert len(tree.find([], limit=1000, meant=matcher("**"))[0]) == 120


def copy(tree: Tree) -> None:
    tree.copy([b"d"], [b"e"], limit=10_000)


def remove(tree: Tree) -> None:
    assert tree.dispose(tree.take_away([b"d"]))


def pack(tree: Tree) -> None:
    for kind in ("zip", "tar.gz"):
        assert sum(map(len, archive.blocks(tree, [b"d"], kind, limit=10_000))) > 100


@pytest.mark.parametrize(
    ("work", "who"),
    [(find, "files of tenants"), (copy, "files of tenants"), (remove, "files of tenants"), (pack, "archives")],
)
def test_work_on_a_deep_tree_takes_as_many_as_are_counted(
    tree: Tree, workspace: Path, work: Callable[[Tree], None], who: str
) -> None:
    deep(workspace)
    with watched() as most:
        work(tree)
    of_tree = 2
    assert 0 < most.most + of_tree <= each(who)


def test_a_form_of_many_files_has_one_of_them_open(tmp_path: Path) -> None:
    async def stored() -> int:
        data = DataRoot(tmp_path / "data", Ids(own=True, uid=None, gid=None, base=1))
        data.open()

        async def warm(_key: Key) -> None: ...

        files = Files(data, warm)
        before = len(os.listdir("/proc/self/fd"))
        incoming = await files.upload(Key("u", None), limit=10_000)
        most = 0
        for number in range(50):
            await incoming.start([b"d", str(number).encode()])
            await incoming.add(b"x")
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
        await incoming.commit_all()
        incoming.discard()
        await files.aclose()
        data.close()
        return most

    assert asyncio.run(stored()) <= each("uploads")
    assert len(list((tmp_path / "data/u/workspace/d").iterdir())) == 50


def test_the_table_is_read_as_sentences() -> None:
    lines = [f"{h.each} x {h.most} {h.who}" for h in holders(sandboxes=100, connections=4096, backend="docker")]
    assert len({line.split(" ", 3)[3] for line in lines}) == len(lines)
    assert all(h.each > 0 and h.most > 0 for h in holders(sandboxes=100, connections=4096, backend="docker"))
