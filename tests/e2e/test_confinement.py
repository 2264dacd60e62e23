"""What a tenant's program finds when it looks around in a real sandbox of the running service."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import CONFINED, Cellbox

RUNTIMES = CONFINED

LOOK = """
import json, os, signal
def attempt(action):
    try: return repr(action())
    except BaseException as error: return type(error).__name__
others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (os.getpid(), os.getppid())]
sandboxd = sorted(others)[1]
found = {}
for name, pid in (("boot", 1), ("sandboxd", sandboxd), ("supervisor", os.getppid())):
    for what in ("environ", "mem", "maps"):
        found[f"{name} {what}"] = attempt(lambda: open(f"/proc/{pid}/{what}", "rb").read(1))
    found[f"{name} fd"] = attempt(lambda: os.listdir(f"/proc/{pid}/fd"))
    found[f"{name} cwd"] = attempt(lambda: os.listdir(f"/proc/{pid}/cwd/"))
    found[f"{name} score"] = attempt(lambda: open(f"/proc/{pid}/oom_score_adj", "w").write("1000"))
print(json.dumps(found))
"""

CALLS = """
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(result): return ctypes.get_errno() if result == -1 else 0
def opened(path, flags=os.O_RDONLY):
    try: os.close(os.open(path, flags)); return 0
    except OSError as error: return error.errno
def family(number):
    try: socket.socket(number, socket.SOCK_RAW if number == 17 else socket.SOCK_STREAM).close(); return 0
    except OSError as error: return error.errno
print(json.dumps({
    "unshare user": errno_of(libc.unshare(0x10000000)), "unshare mount": errno_of(libc.unshare(0x20000)),
    "mount": errno_of(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
    "ptrace": errno_of(libc.ptrace(16, 1, 0, 0)), "setuid": errno_of(libc.setuid(0)),
    "chroot": errno_of(libc.chroot(b"/tmp")), "pivot": errno_of(libc.syscall(155, b"/tmp", b"/tmp")),
    "write /": opened("/x", os.O_CREAT | os.O_WRONLY), "write /usr": opened("/usr/x", os.O_CREAT | os.O_WRONLY),
    "write /opt/cellbox": opened("/opt/cellbox/lib/x", os.O_CREAT | os.O_WRONLY),
    "write link": opened("/run/cellbox/x", os.O_CREAT | os.O_WRONLY),
    "core_pattern": opened("/proc/sys/kernel/core_pattern", os.O_WRONLY), "sysrq": opened("/proc/sysrq-trigger", os.O_WRONLY),
    "packet": family(17), "vsock": family(40), "alg": family(38),
}))
"""


def test_our_own_processes_cannot_be_looked_into(cellbox: Cellbox, scope: str) -> None:
    """S3: not dumpable, so not even the same user may read their memory, descriptors or environment."""
    answer = cellbox.exec(LOOK, scope=scope, session="s")
    found = json.loads(answer["stdout"])
    assert set(found.values()) == {"PermissionError"}, found


def test_what_leads_out_of_a_sandbox_is_refused(cellbox: Cellbox, scope: str) -> None:
    for stateful in (False, True):
        refused: dict[str, int] = json.loads(cellbox.exec(CALLS, scope=scope, session="s", stateful=stateful)["stdout"])
        assert all(refused.values()), refused


@pytest.mark.alone
def test_there_is_no_network_but_loopback(cellbox: Cellbox, scope: str) -> None:
    """S9: connecting and resolving fail at once."""
    code = """
import socket, time
began = time.monotonic()
print(sorted(name for _, name in socket.if_nameindex()))
for attempt in (lambda: socket.create_connection(("192.0.2.1", 80), 5), lambda: socket.getaddrinfo("example.com", 80)):
    try: print("reached", attempt())
    except OSError as error: print(type(error).__name__)
print(time.monotonic() - began < 2)
"""
    lines = cellbox.exec(code, scope=scope, session="s")["stdout"].splitlines()
    assert lines == ["['lo']", "OSError", "gaierror", "True"]


@pytest.mark.parametrize("place", ["/opt/user/.local/lib/python{version}/site-packages", "/opt/workspace", "/opt/user"])
def test_what_a_tenant_plants_is_not_run_by_our_processes(cellbox: Cellbox, scope: str, place: str) -> None:
    """Modules that shadow ours, start-up hooks and path files: the next sandbox starts, and they ran in no process of ours."""
    plant = f"""
import os, sys
place = "{place}".format(version="%d.%d" % sys.version_info[:2])
os.makedirs(place, exist_ok=True)
evil = "import os\\nif os.getppid() in (0, 1): open('/opt/user/reached', 'w').close()\\n"
for name in ("msgspec", "asyncio", "sandboxd", "zmq", "json", "ipykernel", "sitecustomize", "usercustomize", "tornado"):
    open(f"{{place}}/{{name}}.py", "w").write(evil)
open(f"{{place}}/evil.pth", "w").write("import os; open('/opt/user/reached', 'w').close() if os.getppid() in (0, 1) else None")
"""
    cellbox.exec(plant, scope=scope, session="s")
    cellbox.client.delete(f"/v1/scopes/{scope}?force=true").raise_for_status()
    assert cellbox.exec("echo works", language="bash", scope=scope, session="t")["stdout"] == "works\n"
    answer: dict[str, Any] = cellbox.cell("1 + 1", scope=scope, session="t")
    assert answer["results"][0]["data"]["text/plain"] == "2", answer
    assert not (cellbox.root / scope / "workspace" / "reached").exists()
