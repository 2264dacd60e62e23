"""What can be spawned, and how a supervisor is told and tells about it.

One SEQPACKET socket joins sandboxd and one supervisor. sandboxd sends one request (a ``Program`` with its descriptors) and may
then send ``KILL``; the supervisor answers with reports. The end of the socket means that the other end is gone.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import msgspec

KILL = b"kill"
MAX_REQUEST = 2**17
"""Bytes: environments are at most 64 KiB and command lines are ours."""

MAX_DESCRIPTORS = 16

READY = b"r"
"""The supervisor exists: from now on it can be killed, should the tenant stop it. The first report."""
STARTED = b"s"
"""value: pid of the program."""
FAILED = b"f"
"""value: errno. The program could not be started; nothing is left."""
ENDED = b"e"
"""value: exit code, or minus a signal's number. Descendants are left; not said where there are none."""
CLEAN = b"c"
"""The program and all its descendants are ended and reaped. value: as of ENDED. The last report."""

_REPORT = struct.Struct("!cii")


class PythonRun(msgspec.Struct, frozen=True, tag=True):
    """A stateless Python program, forked. Its code is descriptor 3. env: complete."""

    env: dict[str, str]
    cwd: str


class ForkedKernel(msgspec.Struct, frozen=True, tag=True):
    """One of our kernels, forked. name: of its kernelspec. env: complete, with the secret of the marks."""

    name: str
    connection_file: str
    env: dict[str, str]
    cwd: str


class Command(msgspec.Struct, frozen=True, tag=True):
    """Any program. argv[0] is looked up in the PATH of ``env``, which is complete."""

    argv: list[str]
    env: dict[str, str]
    cwd: str


Program = PythonRun | ForkedKernel | Command


class Report(NamedTuple):
    """kind: one of the above. value: as said there, else 0. supervisor: pid of the one who says it."""

    kind: bytes
    value: int
    supervisor: int


_decoder: msgspec.msgpack.Decoder[Program] = msgspec.msgpack.Decoder(Program)


def encode(program: Program) -> bytes:
    """Return the request for ``program``."""
    return msgspec.msgpack.encode(program)


def decode(request: bytes) -> Program:
    """Return the program of a request that sandboxd made."""
    return _decoder.decode(request)


def pack(kind: bytes, value: int = 0) -> bytes:
    """Return a report of this process as bytes."""
    return _REPORT.pack(kind, value, os.getpid())


def unpack(data: bytes) -> Report:
    """Return the report in ``data``, which a supervisor sent."""
    return Report(*_REPORT.unpack(data))
