"""What a host must have, and what is said where it lacks it (B4). Each refusal tells what to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interpreter.backends.base import BackendUnavailable
from interpreter.backends.bubblewrap import backend as module
from interpreter.backends.bubblewrap import cgroups
from interpreter.backends.bubblewrap.backend import BubblewrapBackend
from tests.contracts.conftest import BUBBLEWRAP, PROBE_UID

(needs_bubblewrap,) = BUBBLEWRAP.marks
Make = Callable[..., BubblewrapBackend]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def build(*, probe_uid: int | None = PROBE_UID) -> BubblewrapBackend:
        return BubblewrapBackend(root=tmp_path / "data", lock=tmp_path / "lock", idle_s=60, probe_uid=probe_uid)

    return build


@pytest.fixture
def bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put another program in the place of bwrap."""

    def replace(text: str) -> Path:
        program = tmp_path / "bwrap"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setattr(module.shutil, "which", lambda *_args, **_named: str(program))
        return program

    return replace


async def test_without_bubblewrap(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda *_args, **_named: None)
    with pytest.raises(BackendUnavailable, match="install the package `bubblewrap`"):
        await make().check()


async def test_on_another_system(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with pytest.raises(BackendUnavailable, match="needs Linux: use Docker"):
        await make().check()


@pytest.mark.parametrize("version", ["bubblewrap 0.7.0", "bubblewrap 0.4", "what?"])
async def test_with_an_old_bubblewrap(make: Make, bwrap: Callable[[str], Path], version: str) -> None:
    bwrap(f"echo '{version}'")
    with pytest.raises(BackendUnavailable, match=r"too old .* 0.8.0 or newer"):
        await make().check()


async def test_with_a_setuid_bubblewrap(make: Make, bwrap: Callable[[str], Path]) -> None:
    program = bwrap("echo bubblewrap 0.11.0")
    program.chmod(0o755 | stat.S_ISUID)
    with pytest.raises(BackendUnavailable, match=r"setuid root.*chmod u-s"):
        await make().check()


@needs_bubblewrap
async def test_root_without_ids_for_the_scopes(make: Make) -> None:
    with pytest.raises(BackendUnavailable, match="SANDBOX_UID_BASE"):
        await make(probe_uid=None).check()


@needs_bubblewrap
async def test_root_without_cgroups(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "detect", lambda: None)
    with pytest.raises(BackendUnavailable, match=r"no cgroups .*Delegate=yes"):
        await make().check()


@needs_bubblewrap
async def test_limits_that_were_there_are_not_done_without_later(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make()
    await backend.check()
    kept = backend._cgroups
    monkeypatch.setattr(backend, "_is_root", False)
    monkeypatch.setattr(cgroups, "detect", lambda: None)
    with pytest.raises(BackendUnavailable, match="no cgroups"):
        await backend.check()
    assert backend._cgroups is kept is not None
    await backend.aclose()


@needs_bubblewrap
async def test_a_host_without_descriptors(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No supervisor is left without an owner: the fixtures of every test look for processes and cgroups."""
    backend = make()
    await backend.check()

    def full(_pid: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", full)
        with pytest.raises(BackendUnavailable):
            await backend.check()
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", full)
        with pytest.raises(BackendUnavailable):
            await backend.check()
    assert backend.groups_left() == []
    assert list((tmp_path / "data" / ".run").iterdir()) == []
    await backend.aclose()


@needs_bubblewrap
async def test_without_user_namespaces(make: Make, bwrap: Callable[[str], Path], tmp_path: Path) -> None:
    bwrap("[ $1 = --version ] && echo bubblewrap 0.8.0 || exit 1")
    with pytest.raises(BackendUnavailable, match="unprivileged user namespaces are probably switched off"):
        await make().check()
    assert list((tmp_path / "data" / ".run").iterdir()) == []


@needs_bubblewrap
async def test_without_a_filter_for_this_machine(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "seccomp.py"
    other.write_text("raise SystemExit(1)")
    monkeypatch.setattr(module, "_SECCOMP", other)
    with pytest.raises(BackendUnavailable, match="no system call filter for this machine"):
        await make().check()


@needs_bubblewrap
async def test_all_there_as_root(make: Make) -> None:
    backend = make()
    assert await backend.check() == []
    assert not backend.single_tenant
    await backend.aclose()


NOBODY = 65_534
_AS_NOBODY = '''
    import asyncio, json, os, sys
    from pathlib import Path
    from interpreter.backends.base import Limits, SandboxId, SandboxSpec
    from interpreter.backends.bubblewrap.backend import BubblewrapBackend

    PROGRAM = """
        cd /opt/workspace
        id -u >said
        ulimit -u >>said
        /opt/cellbox/venv/bin/python -c 'import sys; print(sys.prefix); print(*sys.path[1:], sep=",")' >>said
        ls /usr/lib/python3/dist-packages | wc -l >>said
    """

    async def main(root):
        backend = BubblewrapBackend(root=root / "data", lock=root / "lock", idle_s=60, probe_uid=None, venv=root / "venv",
            boot=lambda config: ["/bin/bash", "-c", PROGRAM])
        warnings = await backend.check()
        places = [root / "data" / name for name in ("workspace", "user", "link")]
        for place in places: place.mkdir()
        sandbox = await backend.start(SandboxSpec(SandboxId("0" * 16), None, None, *places))
        end = await asyncio.wait_for(sandbox.wait(), 20)
        await backend.aclose()
        print(json.dumps([warnings, backend.single_tenant, end.status, (places[0] / "said").read_text().split()]))

    asyncio.run(main(Path(sys.argv[1])))
'''


_ADOPT_AS_NOBODY = """
    import asyncio, json, os, signal, sys
    from pathlib import Path
    from interpreter.backends.base import SandboxId, SandboxSpec
    from interpreter.backends.bubblewrap.backend import BubblewrapBackend

    BOOT = ["/bin/bash", "-c", "sleep 600 & echo up >/opt/workspace/said; wait"]

    async def main(root):
        backend = BubblewrapBackend(root=root / "data", lock=root / "lock", idle_s=60, probe_uid=None, venv=root / "venv",
            boot=lambda config: BOOT)
        await backend.check()
        places = [root / "data" / name for name in ("workspace", "user", "link")]
        if not places[0].exists():
            for place in places: place.mkdir()
            for number in "01": await backend.start(SandboxSpec(SandboxId(number * 16), None, None, *places))
            while not (places[0] / "said").exists(): await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        found = {sandbox.id: sandbox for sandbox in await backend.adoptable()}
        removed = await backend.remove_leftovers(frozenset(["0" * 16]))
        ends = [(await asyncio.wait_for(found["1" * 16].wait(), 20)).status]
        await found["0" * 16].stop()
        ends.append((await found["0" * 16].wait()).status)
        await backend.aclose()
        left = [entry.name for entry in (root / "data" / ".run").iterdir()]
        print(json.dumps([sorted(found), removed, ends, left, (await backend.adoptable()) == []]))

    asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
def as_nobody() -> Iterator[Callable[[str], subprocess.CompletedProcess[str]]]:
    """Run a program as a user without rights, with a place and an environment of its own."""
    system = "/usr/bin/python3"
    if not os.access(system, os.X_OK):
        pytest.skip("needs a Python that everybody may run")
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    version = subprocess.run([system, "--version"], capture_output=True, text=True, check=True)
    if not version.stdout.startswith(f"Python {ours}."):
        pytest.skip(f"/usr/bin/python3 is not Python {ours}, whose packages are here")
    root = Path(tempfile.mkdtemp(prefix="cellbox-test-"))  # not tmp_path, whose parents others may not enter
    subprocess.run([system, "-m", "venv", "--without-pip", root / "venv"], check=True)
    for place in [root, *root.rglob("*")]:
        os.chown(place, NOBODY, NOBODY, follow_symlinks=False)
    path = ":".join([entry for entry in sys.path if entry.endswith("site-packages")] + [os.getcwd(), "runtime"])

    def run(program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [system, "-B", "-c", textwrap.dedent(program), root],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    yield run
    shutil.rmtree(root)


AsNobody = Callable[[str], subprocess.CompletedProcess[str]]


@needs_bubblewrap
def test_without_root_one_tenant_and_warnings_that_say_so(as_nobody: AsNobody) -> None:
    done = as_nobody(_AS_NOBODY)
    assert done.returncode == 0, done.stderr
    warnings, single, status, (inside, processes, prefix, path, packages) = json.loads(done.stdout)
    assert single
    assert status == 0
    assert inside == "1000"
    assert int(processes) < 1000
    assert prefix == "/opt/cellbox/venv"
    assert "/opt/cellbox/venv/lib/" in path
    assert packages == "0", "the host's own packages are not there"
    assert "one scope only" in warnings[0]
    assert "not limited" in warnings[1]


@needs_bubblewrap
def test_without_root_and_cgroups_sandboxes_are_adopted_too(as_nobody: AsNobody) -> None:
    assert as_nobody(_ADOPT_AS_NOBODY).returncode == -signal.SIGKILL
    done = as_nobody(_ADOPT_AS_NOBODY)
    assert done.returncode == 0, done.stderr
    found, removed, ends, left, nothing = json.loads(done.stdout)
    assert found == ["0" * 16, "1" * 16]
    assert removed == 1
    assert ends == [None, 137]
    assert left == []
    assert nothing
