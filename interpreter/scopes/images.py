"""File systems in files: made, checked, mounted by a loop device, grown, shrunk.

ext4, since it is there wherever Linux is, bounds bytes and inodes, and grows while it is in use. Of its features only those are
used that kernels have had for ten years, whatever the tools' configuration says. What it is made for fills it through the kernel
alone: nobody but the service can write the file itself.

Promises: an image is never mounted by two loop devices, which would spoil it, also where one is in use that this mount namespace
does not show; nothing but a whole image has its final name; each tool has a limit of time.
Leaves to quota.py: whose they are, and one thread at a time for each. Blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

MIB = 2**20
LEAST_MIB = 16
NEW, PLACE = ".new", ".at"
"""Ends of names: of an image that is not whole yet, and of a directory to mount it at meanwhile."""
_BLOCK = 4096
_BYTES_PER_INODE = 8192
"""Half of what mkfs takes: trees of packages are small files. 3 % of the room are their inodes."""
_RESERVED_BYTES = MIB
"""For root alone: a new session finds room for its directory also where a tenant has left none."""
_FEATURES = (
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,"
    "dir_nlink,extra_isize,metadata_csum"
)
_OPTIONS = "nosuid,nodev,noatime,discard,errors=remount-ro,noinit_itable"
"""discard: what a tenant removes is free on the host again. noinit_itable: a sparse file has zeros where inodes will be."""
_TOOLS = {
    "mkfs.ext4": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "resize2fs": "e2fsprogs",
    "mount": "mount",
    "losetup": "mount",
}
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_TOOL_S, _CHECK_S = 60.0, 600.0
_FREE_S = 1.0
_LOOP = 7
_LOOP_GET_STATUS64, _LOOP_INFO64 = 0x4C05, 232
_TRIES = 10
_SUPERBLOCK = 1024
_UMOUNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_LITTLE_BYTES = 16 * MIB

_OCTAL = re.compile(r"\\([0-7]{3})")
"""How the kernel writes a space, a tab, a newline and a backslash in a path."""
_libc = ctypes.CDLL(None, use_errno=True)


class ImageError(Exception):
    """It could not be done. Text: the cause, as a part of a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes. used: what the file system itself needs is in it."""

    used: int
    limit: int


def make(image: Path, size: int, *, lock: int | None = None) -> None:
    """Make an empty file system of ``size`` bytes. lock: held for as long as a tool works, should the service be killed.

    Raises ImageError, OSError.
    """
    if not has_room(image.parent):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    handle = os.open(image, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(handle, size)
    finally:
        os.close(handle)
    journal = max(4, min(64, size // MIB // 64))
    layout = ["-b", str(_BLOCK), "-i", str(_BYTES_PER_INODE), "-I", "256", "-m", f"{100 * _RESERVED_BYTES / size:.6f}"]
    layout += ["-O", _FEATURES, "-J", f"size={journal}", "-e", "remount-ro"]
    lazily = "nodiscard,lazy_itable_init=1,lazy_journal_init=1"
    _run("mkfs.ext4", "-q", "-F", *layout, "-E", lazily, str(image), lock=lock)


def has_room(place: Path) -> bool:
    """Whether the disk that has the images can take more."""
    room = os.statvfs(place)
    return room.f_bavail * room.f_frsize >= _LITTLE_BYTES


def mount(image: Path, place: Path, *, lock: int | None = None) -> None:
    """Mount it at the directory ``place``, and make it as large as its file if nobody uses it. Raises ImageError, OSError."""
    for _ in range(_TRIES):
        if (device := loop_of(image, lock=lock)) is None:
            _mount_anew(image, place, lock)
            return
        with _held(device, image) as is_its:
            if is_its:
                _run("mount", "-t", "ext4", "-o", _OPTIONS, device, str(place), lock=lock)
                return
    raise ImageError("its loop device comes and goes")


def _mount_anew(image: Path, place: Path, lock: int | None) -> None:
    _check(image, lock=lock)
    if _blocks(image)[0] * _BLOCK < image.stat().st_size:
        _check(image, "-f", lock=lock)
        _run("resize2fs", str(image), lock=lock, within_s=_CHECK_S)
    _run("mount", "-t", "ext4", "-o", f"loop,{_OPTIONS}", str(image), str(place), lock=lock)


@contextlib.contextmanager
def _held(device: str, image: Path) -> Iterator[bool]:
    """Keep a loop device from going, and say whether it is that of ``image``.

    One that was found a moment ago goes with its last use, and its name is given to the next image, which may be another scope's.
    """
    try:
        holder = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _has(holder, image)
    finally:
        os.close(holder)


def _has(device: int, image: Path) -> bool:
    try:
        status = fcntl.ioctl(device, _LOOP_GET_STATUS64, bytes(_LOOP_INFO64))
    except OSError:
        return False  # it has nothing any more
    wanted = image.stat()
    return struct.unpack_from("<2Q", status) == (wanted.st_dev, wanted.st_ino)


def enlarge(image: Path, place: Path, size: int, *, lock: int | None = None) -> None:
    """Make one that is mounted at ``place`` ``size`` bytes, which is more than it has.

    Raises ImageError, OSError: then it is as it was. That needs CAP_SYS_RESOURCE, which containers have not.
    """
    before = image.stat().st_size
    os.truncate(image, size)
    try:
        _grow(place, lock)
    except ImageError:
        os.truncate(image, before)
        _run("losetup", "--set-capacity", _device(place), lock=lock)
        raise


def reduce(image: Path, size: int, *, lock: int | None = None) -> None:
    """Make it ``size`` bytes, which is less than it has; no loop device may have it. Raises ImageError, OSError."""
    _check(image, "-f", lock=lock)
    _run("resize2fs", str(image), f"{size // 1024}K", lock=lock, within_s=_CHECK_S)
    os.truncate(image, size)


def unmount(place: Path, *, at_once: bool = False) -> bool:
    """Unmount; False where something is open there. at_once: then too, and it ends with its last use. Raises OSError."""
    flags = _UMOUNT_NOFOLLOW | (_UMOUNT_DETACH if at_once else 0)
    if _libc.umount2(os.fsencode(place), flags):
        number = ctypes.get_errno()
        if number == errno.EBUSY:
            return False
        raise OSError(number, os.strerror(number), str(place))
    return True


def is_mounted(place: Path) -> bool:
    """Whether a loop device's file system is mounted at ``place``. Microseconds."""
    try:
        device = os.lstat(place).st_dev
    except FileNotFoundError:
        return False
    return os.major(device) == _LOOP and device != os.lstat(place.parent).st_dev


def loop_of(image: Path, *, lock: int | None = None) -> str | None:
    """Return the loop device that has ``image``, whoever uses it. Raises ImageError."""
    return _run("losetup", "-n", "-O", "NAME", "-j", str(image), lock=lock).strip().split("\n")[0] or None


def is_free(image: Path, *, lock: int | None = None) -> bool:
    """Whether no loop device has ``image``, soon after it was unmounted. Raises ImageError.

    A sandbox that is being started has a copy of all mounts for a moment, and nobody tells when it has gone.
    """
    until = time.monotonic() + _FREE_S
    while loop_of(image, lock=lock) is not None:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def usage(image: Path, place: Path) -> Usage:
    """Return how much of it is used. Raises OSError."""
    limit = image.stat().st_size
    if is_mounted(place):
        room = os.statvfs(place)
        return Usage(limit - room.f_bavail * room.f_frsize, limit)
    _, reserved, free = _blocks(image)
    return Usage(limit - max(0, free - reserved) * _BLOCK, limit)


def trouble(folder: Path, *, shared: bool = False) -> str | None:
    """Return why none can be had in ``folder``, and what to do, as a part of a sentence; None: one was made and mounted.

    shared: others than this process have to see what it mounts, as an engine outside of its container.
    """
    return _missing(folder, shared) or _tried(folder)


def discard(image: Path, place: Path) -> None:
    """Remove both, whatever is left of them."""
    with contextlib.suppress(OSError):
        if is_mounted(place):
            unmount(place, at_once=True)
    image.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        place.rmdir()


def _missing(folder: Path, shared: bool) -> str | None:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "mounting needs root on Linux: run the service as root"
    for tool, package in _TOOLS.items():
        if shutil.which(tool, path=_PATH) is None:
            return f"{tool} is missing: install the package {package}, or what has it here"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices: `modprobe loop`; in a container, docs/production.md says what it needs"
    if shared and not _is_shared(folder):
        return (
            "the engine would not see what is mounted in this container: mount the data root with shared propagation, as"
            " docs/production.md says"
        )
    return None


def _tried(folder: Path) -> str | None:
    trial = folder / f"trial-{secrets.token_hex(4)}"
    image, place = trial.with_suffix(NEW), trial.with_suffix(PLACE)
    try:
        place.mkdir(mode=0o700)
        make(image, LEAST_MIB * MIB)
        mount(image, place)
    except ImageError as error:
        return (
            f"none can be mounted here ({error}): it needs CAP_SYS_ADMIN and loop devices, as root of a host has them"
        )
    except OSError as error:
        return f"none can be made here: {error.strerror}"
    finally:
        discard(image, place)
    return None


def _is_shared(folder: Path) -> bool:
    """Whether what is mounted in ``folder`` is mounted outside of this mount namespace too."""
    best, is_shared = "", False
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").split("\n")[:-1]:
        fields = line.split()
        place = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
        if folder.is_relative_to(place) and len(place) >= len(best):
            best, is_shared = place, any(word.startswith("shared:") for word in fields[6 : fields.index("-")])
    return is_shared


def _check(image: Path, *options: str, lock: int | None) -> None:
    """Put right what a crash of the host has left. Raises ImageError."""
    _run("e2fsck", "-p", *options, str(image), lock=lock, within_s=_CHECK_S, good=(0, 1))


def _grow(place: Path, lock: int | None) -> None:
    _run("losetup", "--set-capacity", _device(place), lock=lock)
    _run("resize2fs", _device(place), lock=lock, within_s=_CHECK_S)


def _device(place: Path) -> str:
    number = os.stat(place).st_dev
    return f"/dev/{Path(os.readlink(f'/sys/dev/block/{os.major(number)}:{os.minor(number)}')).name}"


def _blocks(image: Path) -> tuple[int, int, int]:
    """Return how many blocks there are, are reserved and are free, as the superblock says."""
    with image.open("rb") as file:
        file.seek(_SUPERBLOCK)
        head = file.read(1024)
    low = struct.unpack_from("<3I", head, 4)
    high = struct.unpack_from("<3I", head, 0x150)
    total, reserved, free = (one | other << 32 for one, other in zip(low, high, strict=True))
    return total, reserved, free


def _run(
    tool: str, *words: str, lock: int | None = None, within_s: float | None = None, good: tuple[int, ...] = (0,)
) -> str:
    """Return what a tool says. Raises ImageError."""
    within_s = within_s or _TOOL_S
    program = shutil.which(tool, path=_PATH)
    if program is None:
        raise ImageError(f"{tool} is missing")
    process = subprocess.Popen(
        [program, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": _PATH, "LC_ALL": "C"},
        pass_fds=() if lock is None else (lock,),
        start_new_session=True,  # a Ctrl-C is the service's alone
    )
    try:
        said, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)  # it may hang in the kernel
        raise ImageError(f"{tool} did not end within {within_s:g} s") from None
    text = said.decode(errors="replace")
    if process.returncode not in good:
        log.error("a tool failed", extra={"tool": tool, "status": process.returncode, "said": ascii(text[-1000:])})
        last = (text.strip().splitlines() or ["it said nothing"])[-1]
        raise ImageError(f"{tool}: {last[-200:]}")
    return text
