"""The system call filter: its decisions read from the program for both architectures, then met in a real process."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from sandboxd import seccomp

RUNTIME = Path(__file__).parents[2] / "runtime"
SANDBOX_BIN = Path(__file__).parents[2] / ".venv-sandbox" / "bin"
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM = 0x40000003, 0x40000028
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT, EPROTONOSUPPORT = (
    0x50000 | e for e in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
)
HIGH = 0xDEAD_BEEF_0000_0000

here = pytest.mark.skipif(
    sys.platform != "linux" or seccomp.architecture() != "x86_64", reason="the numbers below are those of x86_64"
)


def decide(arch: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """Run the filter as the kernel would and return its verdict."""
    arguments += (0,) * (6 - len(arguments))
    data = struct.pack("<iIQ6Q", number - (number >> 31 << 32), audit or AUDIT[arch], 0, *arguments)
    code = [struct.unpack_from("<HBBI", seccomp.program(arch), i) for i in range(0, len(seccomp.program(arch)), 8)]
    accumulator, at = 0, 0
    while True:
        kind, if_true, if_false, k = code[at]
        at += 1
        match kind:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x54:
                accumulator &= k
            case 0x06:
                return k
            case 0x15:
                at += if_true if accumulator == k else if_false
            case 0x35:
                at += if_true if accumulator >= k else if_false
            case 0x45:
                at += if_true if accumulator & k else if_false
            case _:
                raise AssertionError(f"unexpected instruction {kind:#x}")


# name, number on x86_64, number on aarch64, arguments, verdict
HOSTILE = [
    ("clone3 hides its flags", 435, 435, (), ENOSYS),
    ("file_setattr is FS_IOC_FSSETXATTR by another name", 469, 469, (), ENOSYS),
    ("a call nobody has thought of yet", 1000, 1000, (), ENOSYS),
    *(
        (f"clone({bit:#x})", 56, 220, (bit | signal.SIGCHLD,), EPERM)
        for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
    ),
    ("clone, high bits set as well", 56, 220, (HIGH | 0x10000000,), EPERM),
    ("socket(vsock)", 41, 198, (40,), EAFNOSUPPORT),
    ("socket(alg)", 41, 198, (38,), EAFNOSUPPORT),
    ("socket(packet)", 41, 198, (17,), EAFNOSUPPORT),
    ("socket(vsock), high bits", 41, 198, (HIGH | 40,), EAFNOSUPPORT),
    ("socketpair(tipc)", 53, 199, (30,), EAFNOSUPPORT),
    ("socket(packet, no protocol)", 41, 198, (17, 3, 0), EAFNOSUPPORT),
    ("socket(inet, stream, mptcp)", 41, 198, (2, 1, 262), EPROTONOSUPPORT),
    ("socket(inet, seqpacket, sctp)", 41, 198, (2, 5, 132), EPROTONOSUPPORT),
    ("socket(inet6, dccp), high bits", 41, 198, (10, 6, HIGH | 33), EPROTONOSUPPORT),
    ("socket(netlink, netfilter)", 41, 198, (16, 3, 12), EPROTONOSUPPORT),
    ("socket(netlink, crypto)", 41, 198, (16, 3, 21), EPROTONOSUPPORT),
    ("ioctl(TIOCSTI)", 16, 29, (0, 0x5412), EPERM),
    ("ioctl(TIOCSTI), high bits", 16, 29, (0, HIGH | 0x5412), EPERM),
    ("ioctl(TIOCLINUX)", 16, 29, (0, 0x541C), EPERM),
    ("ioctl(FS_IOC_FSSETXATTR)", 16, 29, (0, 0x401C5820), EPERM),
    ("ioctl(FS_IOC_SETFLAGS)", 16, 29, (0, 0x40086602), EPERM),
    ("fcntl(F_SETLEASE)", 72, 25, (0, 1024), EPERM),
    ("fcntl(F_SETLEASE), high bits", 72, 25, (0, HIGH | 1024), EPERM),
    ("fcntl(F_NOTIFY)", 72, 25, (0, 1026), EPERM),
    ("mknodat(character device)", 259, 33, (0, 0, 0o20666), EPERM),
    ("mknodat(block device)", 259, 33, (0, 0, 0o60666), EPERM),
]
ORDINARY = [
    ("read", 0, 63, ()),
    ("clone of a thread", 56, 220, (0x3D0F00,)),
    ("clone of fork", 56, 220, (0x1200011,)),
    *((f"socket({family})", 41, 198, (family,)) for family in (1, 2, 10, 16)),
    *(
        (f"socket({family}, protocol {protocol})", 41, 198, (family, 1, protocol))
        for family, protocol in ((2, 6), (2, 17), (10, 6), (10, 58), (16, 0), (16, 4), (1, 0))
    ),
    ("socketpair(unix)", 53, 199, (1,)),
    ("ioctl(FIONREAD)", 16, 29, (0, 0x541B)),
    ("fcntl(F_DUPFD_CLOEXEC)", 72, 25, (0, 1030)),
    ("mknodat(FIFO)", 259, 33, (0, 0, 0o10644)),
    ("mknodat(file)", 259, 33, (0, 0, 0o644)),
    ("pidfd_open", 434, 434, ()),
    ("openat2", 437, 437, ()),
]


@pytest.mark.parametrize(("number", "verdict"), [(0, KILL), (59, KILL), (41, KILL)])
@pytest.mark.parametrize(("arch", "audit"), [("x86_64", I386), ("aarch64", ARM)])
def test_a_call_of_another_abi_kills(arch: str, audit: int, number: int, verdict: int) -> None:
    assert decide(arch, number, audit=audit) == verdict


@pytest.mark.parametrize("number", [0x40000000, 0x40000000 + 59, 0xFFFFFFFF])
def test_an_x32_call_kills(number: int) -> None:
    assert decide("x86_64", number) == KILL


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("row", HOSTILE, ids=lambda row: row[0])
def test_hostile_calls_are_refused(arch: str, row: tuple) -> None:
    number = row[1] if arch == "x86_64" else row[2]
    assert decide(arch, number, *row[3]) == row[4]


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_every_call_of_the_table_is_refused(arch: str) -> None:
    verdicts = {name: decide(arch, number) for name, number in seccomp.REFUSED[arch].items()}
    assert verdicts == {name: ENOSYS if name == "clone3" else EPERM for name in seccomp.REFUSED[arch]}


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("row", ORDINARY, ids=lambda row: row[0])
def test_ordinary_calls_are_allowed(arch: str, row: tuple) -> None:
    number = row[1] if arch == "x86_64" else row[2]
    assert decide(arch, number, *row[3]) == ALLOW


@pytest.mark.parametrize(
    ("arch", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_numbers_are_those_of_the_kernel_headers(arch: str, header: str) -> None:
    if not Path(header).exists():
        pytest.skip("no kernel headers here")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text()))
    wrong = {name: number for name, number in seccomp.REFUSED[arch].items() if int(known.get(name, number)) != number}
    assert wrong == {}


def run_filtered(code: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter that has put itself under the filter first."""
    start = f"import sys; sys.path.insert(0, {str(RUNTIME)!r}); from sandboxd import seccomp; seccomp.install()\n"
    return subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
    )


def checked(code: str, *arguments: str, cwd: Path | None = None) -> str:
    """Return what filtered ``code`` printed; it must have ended well."""
    done = run_filtered(code, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


PROBE = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
answers = {}
for name, number, arguments in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(a) for a in arguments))
    answers[name] = ctypes.get_errno()
print(json.dumps(answers))
"""


@here
def test_the_kernel_refuses_every_call_of_the_table() -> None:
    # All arguments are -1, so that a call that got through would still do nothing, and fail in another way.
    calls = [(name, number, [2**64 - 1] * 6) for name, number in seccomp.REFUSED["x86_64"].items()]
    answers = json.loads(checked(PROBE, json.dumps(calls)))
    assert answers == {name: errno.ENOSYS if name == "clone3" else errno.EPERM for name, _, _ in calls}


@here
def test_the_kernel_refuses_hostile_arguments() -> None:
    calls = [(name, number, list(arguments)) for name, number, _, arguments, _ in HOSTILE]
    answers = json.loads(checked(PROBE, json.dumps(calls)))
    assert answers == {name: verdict & 0xFFFF for name, _, _, _, verdict in HOSTILE}


def test_socket_families() -> None:
    answer = checked("""
        import socket
        opened, refused = [], []
        for family in range(1, 46):
            try:
                socket.socket(family, socket.SOCK_DGRAM).close()
                opened.append(family)
            except OSError:
                refused.append(family)
        print(opened, len(refused))
    """)
    assert answer == "[1, 2, 10, 16] 41"


def test_leases_and_devices_are_refused_and_fifos_are_not(tmp_path: Path) -> None:
    answer = checked(
        """
        import fcntl, os, stat
        def attempt(call, *arguments):
            try:
                call(*arguments)
                return "done"
            except PermissionError:
                return "refused"
        file = os.open("file", os.O_CREAT | os.O_RDONLY)
        print(
            attempt(fcntl.fcntl, file, 1024, fcntl.F_RDLCK),
            attempt(fcntl.fcntl, os.open(".", os.O_RDONLY), 1026, 1),
            attempt(os.mknod, "null", stat.S_IFCHR | 0o666, os.makedev(1, 3)),
            attempt(os.mkfifo, "fifo"),
            attempt(os.mknod, "plain"),
        )
        """,
        cwd=tmp_path,
    )
    assert answer == "refused refused refused done done"


@pytest.mark.parametrize("flag", ["--user", "--mount", "--net", "--pid"])
def test_no_namespace_can_be_made(flag: str) -> None:
    answer = checked(
        "import subprocess; print(subprocess.run(['unshare', sys.argv[1], 'true'], stderr=-3).returncode)", flag
    )
    assert answer != "0"


def int80_program() -> bytes:
    """An ELF program of one page: ``mov eax, 20; int 0x80`` (getpid of the 32-bit ABI), then exit(7) as 64-bit."""
    text = bytes.fromhex("b814000000 cd80 b83c000000 bf07000000 0f05")
    base, head = 0x400000, 64 + 56
    elf = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 0, 0, 2, 62, 1, base + head, 64, 0, 0, 64, 56, 1, 64, 0, 0),
    )
    return elf + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, head + len(text), head + len(text), 4096) + text


@here
def test_an_int_0x80_program_dies(tmp_path: Path) -> None:
    program = tmp_path / "int80"
    program.write_bytes(int80_program())
    program.chmod(0o755)
    code = "import subprocess; print(subprocess.run([sys.argv[1]]).returncode)"
    free = subprocess.run([program], check=False).returncode
    assert free in (7, -signal.SIGSEGV)  # the latter where the kernel has no 32-bit emulation at all
    assert checked(code, str(program)) == str(-signal.SIGSYS if free == 7 else -signal.SIGSEGV)


@here
def test_an_x32_call_dies() -> None:
    assert run_filtered("import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)").returncode == -signal.SIGSYS


def test_no_new_privileges_and_filter_are_inherited() -> None:
    answer = checked("""
        import subprocess
        status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
        print([line.split()[1] for line in status.splitlines() if line.startswith(("NoNewPrivs", "Seccomp:"))])
    """)
    assert answer == "['1', '2']"


def test_threads_multiprocessing_and_subprocesses_work() -> None:
    answer = checked("""
        import asyncio, concurrent.futures, subprocess
        def double(n):
            return 2 * n
        async def child():
            process = await asyncio.create_subprocess_exec("echo", "five", stdout=-1)
            return (await process.communicate())[0].decode().strip()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            one = list(pool.map(double, [1]))
        with concurrent.futures.ProcessPoolExecutor(2) as pool:
            two = list(pool.map(double, [2]))
        three = subprocess.run(["echo", "three"], capture_output=True, text=True).stdout.strip()
        print(one, two, three, asyncio.run(child()))
    """)
    assert answer == "[2] [4] three five"


def test_bash_works() -> None:
    script = "trap 'echo end' EXIT; x=$(printf a | tr a b); sleep 0.01 & wait; cat <<< $x; read y < <(echo c); echo $y"
    assert checked("import subprocess; subprocess.run(['bash', '-c', sys.argv[1]], check=True)", script) == "b\nc\nend"


def test_node_works() -> None:
    node = shutil.which("node", path=SANDBOX_BIN) or shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    script = """
        const {Worker} = require('worker_threads'), {execSync} = require('child_process'), fs = require('fs/promises');
        new Worker("require('worker_threads').parentPort.postMessage(1)", {eval: true}).on('message', async (one) => {
          const text = await fs.readFile('/proc/self/comm', 'utf8');
          console.log(one, execSync('echo two').toString().trim(), text.length > 0);
        });
    """
    code = "import subprocess; subprocess.run([*sys.argv[1:]], check=True)"
    assert checked(code, node, "-e", script) == "1 two true"


def test_emit_writes_the_same_program() -> None:
    emitted = subprocess.run(
        [sys.executable, RUNTIME / "sandboxd" / "seccomp.py", "--emit"], capture_output=True, check=True
    )
    assert emitted.stdout == seccomp.program(seccomp.architecture())


def test_a_machine_without_a_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unknown:
        machine = "sparc64"

    monkeypatch.setattr(seccomp.os, "uname", Unknown)
    with pytest.raises(seccomp.SeccompError, match="sparc64"):
        seccomp.architecture()
