"""What code inside finds when it looks for a way out, in a real container: S1, S2, S4, S5, S7, S9, S11 of the requirements."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from interpreter.backends.base import BackendError, Limits
from tests import engines
from tests.backends.bubblewrap.conftest import Inside
from tests.contracts.conftest import House

pytestmark = engines.needed

TRY = """
def attempt(name, call):
    try: said[name] = repr(call())
    except OSError as error: said[name] = error.strerror
"""


async def test_files_made_inside_belong_to_the_scope_on_the_host(house: House, inside: Inside) -> None:
    spec = house.spec()
    await inside("open('/opt/workspace/mine', 'w').close(); os.chmod('/opt/workspace/mine', 0o6755)", spec=spec)
    made = (spec.workspace / "mine").stat()
    assert (made.st_uid, made.st_gid) == (house.uid, house.uid)


async def test_nothing_of_the_host_kernel_can_be_set(inside: Inside) -> None:
    said = await inside(
        TRY
        + """
for path in ("kernel/core_pattern", "vm/drop_caches", "user/max_user_namespaces"):
    attempt(path, lambda: open("/proc/sys/" + path, "w"))
for path in ("/usr/mine", "/etc/mine", "/run/cellbox/mine", "/dev/mine", "/mine", "/run/mine", "/etc/passwd",
             "/etc/hosts", "/etc/resolv.conf", "/proc/sysrq-trigger", "/sys/kernel/mine", "/sys/fs/cgroup/mine"):
    attempt(path, lambda: open(path, "w"))
attempt("device", lambda: os.mknod("/tmp/device", 0o60666, os.makedev(8, 0)))
"""
    )
    refused = {"Permission denied", "Read-only file system", "Operation not permitted", "No such file or directory"}
    assert set(said.values()) <= refused, said


async def test_neither_environment_nor_labels_nor_paths_of_the_service_are_seen(
    house: House, inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLBOX_PLANTED", "planted-secret-of-the-service")
    said = await inside(
        """
texts = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "maps", "status", "cgroup"):
        try: texts.append(open(f"/proc/{pid}/{name}", errors="replace").read())
        except OSError: pass
said["texts"] = texts
said["mine"] = sorted(os.environ)
said["descriptors"] = sorted(os.readlink(f"/proc/self/fd/{n}") for n in ("0", "1", "2"))
said["cgroup"] = open("/proc/self/cgroup").read()
"""
    )
    assert "planted" not in "\n".join(said["texts"])
    assert set(said["mine"]) <= {
        "HOME",
        "HOSTNAME",
        "LANG",
        "LC_CTYPE",
        "OPENBLAS_NUM_THREADS",
        "PATH",
        "PYTHONUSERBASE",
    }
    assert said["descriptors"][0] == "/dev/null"
    assert "docker" not in said["cgroup"], "a cgroup namespace of its own"


async def test_no_capability_no_privilege_and_the_engines_filter_is_on(house: House, inside: Inside) -> None:
    said = await inside(
        TRY
        + """
import ctypes
wanted = ("Cap", "NoNew", "Seccomp:")
said.update(line.rstrip().split(":\\t") for line in open("/proc/self/status") if line.startswith(wanted))
libc = ctypes.CDLL(None, use_errno=True)
said["unshare"] = libc.unshare(0x10000000)
said["mount"] = libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)
said["groups"] = os.getgroups()
said["pid"] = os.getpid()
said["ids"] = [os.getuid(), os.getgid()]
said["score"] = open("/proc/self/oom_score_adj").read().strip()
import pwd
said["who"] = list(pwd.getpwuid(os.getuid()))
said["masked"] = len(open("/proc/kcore", "rb").read(1)) if os.access("/proc/kcore", os.R_OK) else 0
"""
    )
    assert {said[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (said["NoNewPrivs"], said["Seccomp"]) == ("1", "2")
    assert said["score"] == "200"
    assert (said["unshare"], said["mount"]) == (-1, -1)
    assert (said["pid"], said["ids"], said["groups"]) == (1, [house.uid, house.uid], [house.uid])
    assert (said["who"][0], said["who"][5]) == ("sandbox", "/opt/user")
    assert said["masked"] == 0


async def test_every_writable_place_but_the_data_has_a_size(inside: Inside) -> None:
    said = await inside(
        """
for line in open("/proc/self/mountinfo"):
    left, _, right = line.partition(" - ")
    place, options = left.split()[4:6]
    kind = right.split()[0]
    room = os.statvfs(place)
    if "rw" in options.split(",") and kind != "proc" and os.path.isdir(place) and os.access(place, os.W_OK):
        said[place] = [kind, room.f_blocks * room.f_frsize, room.f_files]
"""
    )
    assert said.pop("/dev/mqueue")[0] == "mqueue"  # counted per uid, and per process by RLIMIT_MSGQUEUE
    assert {said.pop("/opt/user")[0], said.pop("/opt/workspace")[0]} & {"tmpfs", "overlay"} == set()
    assert said == {
        "/tmp": ["tmpfs", 8 * 2**20, 2048],
        "/dev/shm": ["tmpfs", 8 * 2**20, 2048],
        "/run/kernels": ["tmpfs", 16 * 2**20, 4096],
    }


async def test_resource_limits_hold_and_cannot_be_raised(inside: Inside) -> None:
    said = await inside(
        TRY
        + """
import resource
for name in ("CORE", "NOFILE", "NPROC", "FSIZE"):
    number = getattr(resource, f"RLIMIT_{name}")
    said[name] = resource.getrlimit(number)
    try: resource.setrlimit(number, (said[name][1] + 1, said[name][1] + 1))
    except (OSError, ValueError): continue
    said["raised"] = name
attempt("tmp", lambda: open("/tmp/file", "wb").write(bytes(9 * 2**20)))
attempt("files", lambda: [open(f"/dev/shm/{number}", "w").close() for number in range(10_000)])
"""
    )
    assert said == {
        "CORE": [0, 0],
        "NOFILE": [4096, 4096],
        "NPROC": [8192, 8192],
        "FSIZE": [2**34, 2**34],
        "tmp": "No space left on device",
        "files": "No space left on device",
    }


@pytest.mark.alone
async def test_there_is_no_network_but_loopback(inside: Inside) -> None:
    said = await inside(
        TRY
        + """
import socket, time
began = time.monotonic()
said["interfaces"] = [name for _, name in socket.if_nameindex()]
attempt("connect", lambda: socket.create_connection(("192.0.2.1", 80), timeout=5))
attempt("resolve", lambda: socket.getaddrinfo("example.org", 80))
said["host"] = socket.gethostname()
said["resolv"] = open("/etc/resolv.conf").read()
said["quick"] = time.monotonic() - began < 2
"""
    )
    assert said["interfaces"] == ["lo"]
    assert said["connect"] == "Network is unreachable"
    assert "sockaddr" not in said["resolve"]
    assert said["host"] == "sandbox" != os.uname().nodename
    assert said["resolv"].split() == ["nameserver", "127.0.0.1"], "nothing of the host's resolvers"
    assert said["quick"]


@pytest.mark.parametrize("part", ["workspace", "user", "link_dir"])
@pytest.mark.parametrize("parent", [False, True])
async def test_a_link_planted_at_a_source_stops_the_start(
    house: House, part: str, parent: bool, tmp_path: Path
) -> None:
    spec = house.spec()
    source: Path = getattr(spec, part)
    planted = source.parent if parent else source
    shutil.rmtree(planted)
    planted.symlink_to(tmp_path if parent else "/etc")
    for name in ("workspace", "user", "link"):
        (tmp_path / name).mkdir(exist_ok=True)
    with pytest.raises(BackendError, match="directories are not as the service has made them"):
        await house.backend.start(spec)
    house.nothing_left()


async def test_two_scopes_have_two_uids_and_do_not_see_each_other(house: House, inside: Inside) -> None:
    mine, other = house.spec(), replace(house.spec(), uid=house.uid + 50_000, gid=house.uid + 50_000)
    for place in (other.workspace, other.user):
        os.chown(place, house.uid + 50_000, house.uid + 50_000)
    (other.workspace / "secret").write_text("of another scope")
    said = await inside(
        """
said["table"] = open("/proc/self/mountinfo").read()
said["found"] = [os.path.join(d, f) for d, _, files in os.walk("/opt") for f in files if f == "secret"]
""",
        spec=mine,
    )
    assert other.workspace.parent.name not in said["table"]
    assert said["found"] == []


@pytest.mark.alone
async def test_a_scope_that_takes_all_it_can_leaves_the_other_its_own(house: House, inside: Inside) -> None:
    """S1: the kernel counts inotify instances, pipes and processes for each uid."""
    greedy = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
taken = 0
while taken < 4000 and libc.inotify_init() >= 0: taken += 1
pipes = 0
try:
    while True: os.pipe(); pipes += 1
except OSError: pass
for _ in range(1000):
    try:
        if os.fork() == 0: time.sleep(3600)
    except OSError: break
ready()
time.sleep(3600)
"""
    from tests.contracts import conftest as contracts

    contracts.PROGRAMS["greedy"] = greedy
    neighbour = await house.start("greedy")
    other = house.uid + 50_000
    spec = replace(house.spec(Limits(memory_mib=512, pids=64, tmp_mib=8)), uid=other, gid=other)
    for place in (spec.workspace, spec.user):
        os.chown(place, other, other)
    said = await inside(
        """
import ctypes, time
began = time.monotonic()
libc = ctypes.CDLL(None, use_errno=True)
said["inotify"] = libc.inotify_init() >= 0
said["pipes"] = len([os.pipe() for _ in range(100)])
pids = [os.fork() or os._exit(0) for _ in range(20)]
said["forks"] = len([os.waitpid(pid, 0) for pid in pids])
said["quick"] = time.monotonic() - began < 2
""",
        spec=spec,
    )
    assert said == {"inotify": True, "pipes": 100, "forks": 20, "quick": True}
    await neighbour.stop()


@pytest.mark.parametrize(("uid", "gid"), [(0, 0), (None, None), (5, 0), (0, 5)])
async def test_a_sandbox_never_gets_the_ids_of_root(house: House, uid: int | None, gid: int | None) -> None:
    with pytest.raises(BackendError):
        await house.backend.start(replace(house.spec(), uid=uid, gid=gid))


async def test_a_flood_on_its_own_output_is_kept_nowhere(house: House, inside: Inside) -> None:
    """S5: with the engine's default 100 MB would lie on its disk now."""
    sandbox = await house.start("idle")
    (container,) = house.containers()
    await inside("for _ in range(100): os.write(1, bytes(2**20))")
    import docker

    api = docker.APIClient(engines.ADDRESS, version="auto")
    try:
        about = api.inspect_container(container["Id"])
    finally:
        api.close()
    assert about["LogPath"] == ""
    assert about["HostConfig"]["LogConfig"]["Type"] == "none"
    await sandbox.stop()


def test_no_call_runs_something_in_a_container_or_copies(tmp_path: Path) -> None:
    """S14: none of the client's calls that do is named in our code."""
    source = (Path(__file__).parents[3] / "interpreter/backends/docker/engine.py").read_text()
    for word in ("exec_", "attach", "put_archive", "get_archive", "copy", "export", "commit", "logs("):
        assert f".{word}" not in source, word
