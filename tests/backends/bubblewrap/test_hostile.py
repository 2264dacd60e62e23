"""What code inside finds when it looks for a way out, on a real sandbox: B1-B3, S3, S7, S9, S11 of the requirements."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from interpreter.backends.base import BackendError
from interpreter.backends.environment import default_venv
from tests.backends.bubblewrap.conftest import Inside
from tests.contracts.conftest import BUBBLEWRAP, House

pytestmark = list(BUBBLEWRAP.marks)

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
    assert house.uid not in (0, 1000)


async def test_nothing_of_the_host_kernel_can_be_set(inside: Inside) -> None:
    said = await inside(
        TRY
        + """
for path in ("kernel/core_pattern", "vm/drop_caches", "user/max_user_namespaces"):
    attempt(path, lambda: open("/proc/sys/" + path, "w"))
for path in ("/usr/mine", "/etc/mine", "/opt/cellbox/mine", "/run/cellbox/mine", "/dev/mine", "/mine", "/run/mine"):
    attempt(path, lambda: open(path, "w"))
attempt("remount", lambda: os.chmod("/", 0o777))
"""
    )
    assert set(said.values()) <= {"Permission denied", "Read-only file system"}, said


async def test_neither_environment_nor_descriptors_of_the_service_are_seen(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CELLBOX_PLANTED", "planted-secret-of-the-service")
    planted = os.open(tmp_path / "planted", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(planted, True)
    try:
        said = await inside(
            """
texts = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "maps", "status", "mountinfo"):
        try: texts.append(open(f"/proc/{pid}/{name}", errors="replace").read())
        except OSError: pass
    for number in os.listdir(f"/proc/{pid}/fd"):
        try: texts.append(os.readlink(f"/proc/{pid}/fd/{number}"))
        except FileNotFoundError: pass
said["texts"] = texts
said["mine"] = sorted(os.environ)
said["descriptors"] = sorted(os.readlink(f"/proc/self/fd/{n}") for n in ("0", "1", "2"))
"""
        )
    finally:
        os.close(planted)
    everything = "\n".join(said["texts"])
    assert "planted" not in everything
    assert set(said["mine"]) <= {"HOME", "LANG", "OPENBLAS_NUM_THREADS", "PATH", "PWD", "PYTHONUSERBASE", "LC_CTYPE"}
    assert said["descriptors"][0] == "/dev/null"
    assert all(entry.startswith("pipe:") for entry in said["descriptors"][1:])


async def test_no_capability_no_privilege_and_the_filter_is_on(inside: Inside) -> None:
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
"""
    )
    assert {said[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (said["NoNewPrivs"], said["Seccomp"]) == ("1", "2")
    assert said["score"] == "200"
    assert (said["unshare"], said["mount"]) == (-1, -1)
    assert (said["pid"], said["ids"], said["groups"]) == (1, [1000, 1000], [])


async def test_every_writable_place_but_the_data_has_a_size(inside: Inside) -> None:
    said = await inside(
        """
for line in open("/proc/self/mountinfo"):
    left, _, right = line.partition(" - ")
    place, options = left.split()[4:6]
    kind = right.split()[0]
    if "rw" in options.split(","):
        room = os.statvfs(place)
        said[place] = [kind, room.f_blocks * room.f_frsize]
"""
    )
    for harmless in ("null", "zero", "full", "random", "urandom", "tty", "pts"):
        said.pop(f"/dev/{harmless}")
    assert said.pop("/proc")[0] == "proc"
    data = {said.pop("/opt/user")[0], said.pop("/opt/workspace")[0]}
    assert "tmpfs" not in data
    assert said == {
        "/tmp": ["tmpfs", 8 * 2**20],
        "/dev/shm": ["tmpfs", 8 * 2**20],
        "/run/kernels": ["tmpfs", 16 * 2**20],
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


async def test_there_is_no_network_but_loopback(inside: Inside) -> None:
    said = await inside(
        TRY
        + """
import socket
said["interfaces"] = [name for _, name in socket.if_nameindex()]
attempt("connect", lambda: socket.create_connection(("192.0.2.1", 80), timeout=5))
attempt("resolve", lambda: socket.getaddrinfo("example.org", 80))
said["host"] = socket.gethostname()
"""
    )
    assert said["interfaces"] == ["lo"]
    assert said["connect"] == "Network is unreachable"
    assert "sockaddr" not in said["resolve"]
    assert said["host"] == "sandbox" != os.uname().nodename


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
    (tmp_path / source.name).mkdir(exist_ok=True)
    with pytest.raises(BackendError):
        await house.backend.start(spec)
    house.nothing_left()


async def test_two_scopes_have_two_uids_and_do_not_see_each_other(house: House, inside: Inside) -> None:
    mine, other = house.spec(), replace(house.spec(), uid=house.uid + 50_000, gid=house.uid + 50_000)
    for place in (other.workspace, other.user):
        os.chown(place, house.uid + 50_000, house.uid + 50_000)
    (other.workspace / "secret").write_text("of another scope")
    other.workspace.chmod(0o700)
    said = await inside(
        """
said["table"] = open("/proc/self/mountinfo").read()
said["found"] = [os.path.join(d, f) for d, _, files in os.walk("/opt") for f in files if f == "secret"]
""",
        spec=mine,
    )
    assert str(mine.workspace.parent.name) in said["table"]
    assert other.workspace.parent.name not in said["table"]
    assert said["found"] == []
    await inside("open('/opt/workspace/mine', 'w').close()", spec=other)
    assert (other.workspace / "mine").stat().st_uid == house.uid + 50_000


@pytest.mark.parametrize(("uid", "gid"), [(0, 0), (None, None), (5, 0), (0, 5)])
async def test_a_sandbox_never_gets_the_ids_of_root(house: House, uid: int | None, gid: int | None) -> None:
    with pytest.raises(BackendError):
        await house.backend.start(replace(house.spec(), uid=uid, gid=gid))


async def test_no_path_of_the_checkout_and_no_secret_file_is_inside(inside: Inside) -> None:
    checkout = str(default_venv().parent)
    said = await inside(
        f"""
import subprocess
said["named"] = [os.path.join(d, n) for d, dirs, files in os.walk("/") if not d.startswith("/proc")
                 for n in dirs + files if n in (".git", ".env", ".venv", ".ssh", ".aws", "id_rsa", ".netrc")]
# Forms for -O are made by whoever runs the environment's Python so on the host; nobody else reads them.
grep = ["grep", "-rlF", "--include=*.py*", "--include=*.cfg", "--include=RECORD", "--include=*.json", "--include=*.pth"]
grep += ["--exclude=*.opt-?.pyc"]
said["in packages"] = subprocess.run([*grep, {checkout!r}, "/opt/cellbox/venv/lib"], capture_output=True, text=True).stdout
rest = [f"/opt/cellbox/{{name}}" for name in ("venv/bin", "venv/pyvenv.cfg", "lib", "kernels")] + ["/etc"]
said["elsewhere"] = subprocess.run(["grep", "-rlF", {checkout!r}, *rest], capture_output=True, text=True).stdout
hosts = open("/etc/hosts").read().split()
said["host name"] = "".join(word for word in hosts if word == {os.uname().nodename!r})
"""
    )
    assert said == {"named": [], "in packages": "", "elsewhere": "", "host name": ""}


async def test_the_tenants_tools_work(house: House, inside: Inside) -> None:
    said = await inside(
        """
import subprocess
environment = config["environment"]
def run(*command):
    done = subprocess.run(command, env=environment, cwd="/opt/workspace", capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()
said["executable"] = run("python3", "-c", "import sys; print(sys.executable, sys.prefix)")
said["packages"] = run("python3", "-c", "import numpy, pandas, ssl; print(numpy.arange(3).sum())")
said["pip"] = run("pip", "--version")
said["user"] = run("python3", "-m", "site", "--user-site")
user_site = run("python3", "-m", "site", "--user-site")
os.makedirs(user_site)
said["path"] = run("python3", "-c", "import sys; print(*sys.path[1:], sep=chr(10))").splitlines()
said["node"] = run("node", "-e", "console.log(process.version)")
said["npm"] = run("npm", "--version")
said["npx"] = run("npx", "--version")
said["who"] = run("id", "-un")
said["bash"] = run("bash", "-c", "date +%Z; echo $HOME; ls -d $TMPDIR")
"""
    )
    assert said["executable"].startswith("/opt/cellbox/venv/bin/python3 /opt/cellbox/venv")
    assert said["packages"] == "3"
    assert "from /opt/cellbox/venv/lib" in said["pip"]
    assert said["user"].startswith("/opt/user/.local/lib/python3")
    library, packages = said["path"].index(said["user"]), [name for name in said["path"] if "site-packages" in name]
    assert library == 3, "after the standard library"
    assert packages[0] == said["user"], "what the user installs wins"
    assert said["node"].startswith("v22.")
    assert said["npm"][0].isdigit()
    assert said["npx"] == said["npm"]
    assert said["who"] == "sandbox"
    assert said["bash"].split() == ["UTC", "/opt/user", "/tmp"]


async def test_a_state_file_is_not_for_tenants(house: House) -> None:
    sandbox = await house.start("idle")
    state = house.root / ".run" / f"{sandbox.id}.sandbox"
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    await sandbox.stop()
