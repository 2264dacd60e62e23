"""The system call filter: what no program in a sandbox may ask of the kernel that the host shares with it.

Owns the table of refused calls per architecture and the BPF program made from it. ``install`` is the first act of the
boot process; everything in the sandbox is its child and can only tighten the filter. ``python seccomp.py --emit``
writes the program to stdout for launchers that take one by descriptor (``bwrap --seccomp``).

Promises: calls of another ABI (32-bit, x32) kill the process; a call that is newer than the table does not exist
(ENOSYS); arguments are compared by their low 32 bits, as the kernel reads them.
Leaves to the backends: capabilities, namespaces, limits. Standard library only, no import of the package: it runs
before anything else and as a program of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from dataclasses import dataclass
from typing import Literal

Architecture = Literal["x86_64", "aarch64"]

_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

_EPERM = _ERRNO | errno.EPERM
_ENOSYS = _ERRNO | errno.ENOSYS
_EAFNOSUPPORT = _ERRNO | errno.EAFNOSUPPORT
_EPROTONOSUPPORT = _ERRNO | errno.EPROTONOSUPPORT

_AUDIT_ARCHITECTURE: dict[Architecture, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_NEWEST_CALL = 462
"""mseal. From 424 on numbers are the same everywhere. Later ones include file_setattr, which does what
FS_IOC_FSSETXATTR does; programs meet ENOSYS on older kernels all the time, so newer calls are simply absent."""

_CLONE_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. NEWTIME exists in clone3 and unshare only."""

_SOCKET_FAMILIES = (1, 2, 10, 16)
"""unix, inet, inet6, netlink."""

_SOCKET_PROTOCOLS = (0, 1, 4, 6, 17, 58)
"""None given (and route, of netlink), icmp, the diagnosis of sockets (netlink), tcp, udp, icmpv6. Others are code of the kernel
that nobody here needs, and asking for one, as sctp or dccp, may load it as a module."""

_FILE_TYPE_MASK = 0xF000
_PLAIN_FILE_TYPES = (0, 0x8000, 0x1000, 0xC000)
"""None given (a regular file), regular, FIFO, socket: mkfifo works, devices do not."""

_REFUSED_IOCTLS = (
    0x5412,  # TIOCSTI types into a terminal
    0x541C,  # TIOCLINUX pastes into a console
    0x401C5820,  # FS_IOC_FSSETXATTR moves a file out of its project quota
    0x40086602,  # FS_IOC_SETFLAGS makes files immutable
    0x40046602,  # FS_IOC32_SETFLAGS, its 32-bit form
)
_REFUSED_FCNTLS = (
    1024,  # F_SETLEASE blocks whoever opens the file, up to 45 s
    1026,  # F_NOTIFY
)


@dataclass(frozen=True, slots=True)
class _Rule:
    """What becomes of a call by one of its arguments: ``listed`` if, masked, it is among ``values``, else ``other``.

    bits: match any common bit with ``values[0]`` instead of equality.
    """

    argument: int
    values: tuple[int, ...]
    listed: int
    other: int
    mask: int = 0xFFFFFFFF
    bits: bool = False


_FAMILY = _Rule(0, _SOCKET_FAMILIES, listed=_ALLOW, other=_EAFNOSUPPORT)
_PROTOCOL = _Rule(2, _SOCKET_PROTOCOLS, listed=_ALLOW, other=_EPROTONOSUPPORT)
_CLONE = _Rule(0, (_CLONE_NAMESPACES,), listed=_EPERM, other=_ALLOW, bits=True)
_IOCTL = _Rule(1, _REFUSED_IOCTLS, listed=_EPERM, other=_ALLOW)
_FCNTL = _Rule(1, _REFUSED_FCNTLS, listed=_EPERM, other=_ALLOW)
_MKNOD = _Rule(1, _PLAIN_FILE_TYPES, listed=_ALLOW, other=_EPERM, mask=_FILE_TYPE_MASK)
_MKNODAT = _Rule(2, _PLAIN_FILE_TYPES, listed=_ALLOW, other=_EPERM, mask=_FILE_TYPE_MASK)

_BY_ARGUMENT: dict[Architecture, dict[int, tuple[_Rule, ...]]] = {
    "x86_64": {
        16: (_IOCTL,),
        72: (_FCNTL,),
        41: (_FAMILY, _PROTOCOL),
        53: (_FAMILY,),
        56: (_CLONE,),
        133: (_MKNOD,),
        259: (_MKNODAT,),
    },
    "aarch64": {
        29: (_IOCTL,),
        25: (_FCNTL,),
        198: (_FAMILY, _PROTOCOL),
        199: (_FAMILY,),
        220: (_CLONE,),
        33: (_MKNODAT,),
    },
}
"""Number -> rules: the last one decides of what is listed in all before it."""

_SAME_NUMBER_EVERYWHERE = {
    # glibc and Node fall back to clone, whose flags the filter can read; clone3 has them behind a pointer.
    "clone3": 435,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "statmount": 457,
    "listmount": 458,
}

REFUSED: dict[Architecture, dict[str, int]] = {
    "x86_64": _SAME_NUMBER_EVERYWHERE
    | {
        # What these make belongs to no process and would outlive its run: memory, of all things.
        "shmget": 29,
        "semget": 64,
        "msgget": 68,
        "mq_open": 240,
        # The machine has so many events for it, 65,536 by default, and one process may take them all.
        "io_setup": 206,
        "ptrace": 101,
        "syslog": 103,
        "uselib": 134,
        "ustat": 136,
        "sysfs": 139,
        "vhangup": 153,
        "modify_ldt": 154,
        "pivot_root": 155,
        "_sysctl": 156,
        "adjtimex": 159,
        "chroot": 161,
        "acct": 163,
        "settimeofday": 164,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "sethostname": 170,
        "setdomainname": 171,
        "iopl": 172,
        "ioperm": 173,
        "create_module": 174,
        "init_module": 175,
        "delete_module": 176,
        "get_kernel_syms": 177,
        "query_module": 178,
        "quotactl": 179,
        "nfsservctl": 180,
        "lookup_dcookie": 212,
        "clock_settime": 227,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "migrate_pages": 256,
        "unshare": 272,
        "vmsplice": 278,
        "move_pages": 279,
        "perf_event_open": 298,
        "fanotify_init": 300,
        "name_to_handle_at": 303,
        "open_by_handle_at": 304,
        "clock_adjtime": 305,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "finit_module": 313,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": _SAME_NUMBER_EVERYWHERE
    | {
        "shmget": 194,
        "semget": 190,
        "msgget": 186,
        "mq_open": 180,
        "io_setup": 0,
        "lookup_dcookie": 18,
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "nfsservctl": 42,
        "chroot": 51,
        "vhangup": 58,
        "quotactl": 60,
        "vmsplice": 75,
        "acct": 89,
        "unshare": 97,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "clock_settime": 112,
        "syslog": 116,
        "ptrace": 117,
        "reboot": 142,
        "sethostname": 161,
        "setdomainname": 162,
        "settimeofday": 170,
        "adjtimex": 171,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "swapon": 224,
        "swapoff": 225,
        "migrate_pages": 238,
        "move_pages": 239,
        "perf_event_open": 241,
        "fanotify_init": 262,
        "name_to_handle_at": 264,
        "open_by_handle_at": 265,
        "clock_adjtime": 266,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "finit_module": 273,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}
"""Calls that are refused whatever their arguments, by name."""


class SeccompError(Exception):
    """The filter could not be made or installed. Nothing of a tenant may be started."""


def architecture() -> Architecture:
    """Return what this process runs on. Raises SeccompError where there is no table for it."""
    machine = os.uname().machine
    if sys.maxsize > 2**32 and sys.byteorder == "little":
        if machine == "x86_64":
            return "x86_64"
        if machine in ("aarch64", "arm64"):
            return "aarch64"
    raise SeccompError(f"no system call table for {machine} ({8 * struct.calcsize('P')} bits)")


def program(arch: Architecture) -> bytes:
    """Return the filter as the kernel's ``struct sock_filter`` array, little-endian."""
    code = [_load(4), _jump(_JEQ, _AUDIT_ARCHITECTURE[arch], 1, 0), _return(_KILL_PROCESS), _load(0)]
    if arch == "x86_64":
        code += [_jump(_JGE, _X32_BIT, 0, 1), _return(_KILL_PROCESS)]
    code += [_jump(_JGE, _NEWEST_CALL + 1, 0, 1), _return(_ENOSYS)]
    for number, (*before, last) in _BY_ARGUMENT[arch].items():
        body = [instruction for rule in before for instruction in _unless_listed(rule)] + _by_argument(last)
        code += [_jump(_JEQ, number, 0, len(body)), *body]
    clone3 = REFUSED[arch]["clone3"]
    code += [_jump(_JEQ, clone3, 0, 1), _return(_ENOSYS)]
    code += _any_of(tuple(n for n in REFUSED[arch].values() if n != clone3), _EPERM)
    code.append(_return(_ALLOW))
    return b"".join(code)


def install() -> None:
    """Give up new privileges and put this process, which has one thread, and all its children under the filter.

    Raises SeccompError: the kernel refused.
    """
    code = program(architecture())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    buffer = ctypes.create_string_buffer(code, len(code))
    instructions = _Program(len(code) // _INSTRUCTION.size, ctypes.addressof(buffer))
    pr_set_no_new_privs, pr_set_seccomp, mode_filter = 38, 22, 2
    if libc.prctl(pr_set_no_new_privs, 1, 0, 0, 0) != 0:
        raise SeccompError(f"PR_SET_NO_NEW_PRIVS: {os.strerror(ctypes.get_errno())}")
    if libc.prctl(pr_set_seccomp, mode_filter, ctypes.addressof(instructions), 0, 0) != 0:
        raise SeccompError(f"PR_SET_SECCOMP: {os.strerror(ctypes.get_errno())}")


# --- a very small assembler -----------------------------------------------------------------------------------------

_INSTRUCTION = struct.Struct("<HBBI")
_LD_W_ABS, _JEQ, _JGE, _JSET, _AND, _RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06


class _Program(ctypes.Structure):
    """The kernel's ``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _load(offset: int) -> bytes:
    return _INSTRUCTION.pack(_LD_W_ABS, 0, 0, offset)


def _jump(kind: int, value: int, if_true: int, if_false: int) -> bytes:
    """Compare the loaded word with ``value`` and skip that many instructions."""
    return _INSTRUCTION.pack(kind, if_true, if_false, value)


def _return(action: int) -> bytes:
    return _INSTRUCTION.pack(_RET, 0, 0, action)


def _any_of(numbers: tuple[int, ...], action: int, kind: int = _JEQ) -> list[bytes]:
    """Return ``action`` for each of ``numbers``; else go on. At most 255, since jumps are one byte."""
    last = len(numbers) - 1
    code = [_jump(kind, number, last - i, 0) for i, number in enumerate(numbers[:-1])]
    return [*code, _jump(kind, numbers[-1], 0, 1), _return(action)]


def _by_argument(rule: _Rule) -> list[bytes]:
    code = [_load(16 + 8 * rule.argument)]
    if rule.mask != 0xFFFFFFFF:
        code.append(_INSTRUCTION.pack(_AND, 0, 0, rule.mask))
    return [*code, *_any_of(rule.values, rule.listed, _JSET if rule.bits else _JEQ), _return(rule.other)]


def _unless_listed(rule: _Rule) -> list[bytes]:
    """Return ``other`` for what is not listed; else go on."""
    count = len(rule.values)
    listed = [_jump(_JEQ, value, count - i, 0) for i, value in enumerate(rule.values)]
    return [_load(16 + 8 * rule.argument), *listed, _return(rule.other)]


if __name__ == "__main__":
    if sys.argv[1:] != ["--emit"]:
        sys.exit("usage: seccomp.py --emit > FILE")
    sys.stdout.buffer.write(program(architecture()))
