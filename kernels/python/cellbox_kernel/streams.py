"""Standard output and error of a kernel whose descriptors 1 and 2 are pipes, read by the one who gave ``CELLBOX_MARKS``.

What Python code prints goes through descriptor 1 for both streams, so their order is kept, in **marks**:

    ESC ] cellbox ; SECRET ; t ; EXECUTION ; STREAM ; BYTES BEL  and that many bytes of its text; STREAM is 1 or 2
    ESC ] cellbox ; SECRET ; d ; PLACE BEL                       here belongs the message with the frame ``place:PLACE``

Each is one write of at most PIPE_BUF bytes, so writers never mix. Bytes between marks were written by C code or children:
they belong to the execution that runs, or else to the last one.

Text belongs to the execution whose cell, thread or task wrote it; a forked process writes plainly. Threads know theirs
because ``carry`` hands context variables on to them; tasks copy their context anyway.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import select
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

_LONGEST = min(select.PIPE_BUF, 4096) - 96
"""Bytes of text that are written at once. With its mark, of at most 72 bytes, that is atomic."""

_SIZES = [b"%d\a" % size for size in range(_LONGEST + 1)]
"""Ends of marks, made ahead: much is printed in small pieces."""

_SURROGATES = re.compile("[\ud800-\udfff]")
_UNSET = object()

owner: ContextVar[int] = ContextVar("cellbox_execution")
"""The execution that the running code belongs to; unset in threads that nobody here started."""


def sanitized(text: str) -> str:
    """Return ``text`` with lone surrogates replaced, so that it can be encoded."""
    return _SURROGATES.sub("\ufffd", text)


class Streams:
    """Both streams of this process, installed as ``sys.stdout`` and ``sys.stderr``."""

    def __init__(self, secret: str) -> None:
        self._prefix = b"\x1b]cellbox;" + secret.encode() + b";"
        self._private = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 100) for descriptor in (1, 2)]
        self._forked = False
        self._heads = self._heads_of(0)  # of the owner that wrote last
        self._ordered = False
        self._places = 0
        self.running = 0
        """The execution that runs or ran last."""
        self.stdout = Stream(self, 1)
        self.stderr = Stream(self, 2)
        os.register_at_fork(after_in_child=self._in_child)

    def put_right(self) -> None:
        """Make descriptors and ``sys`` as they should be, whatever a cell did to them."""
        for descriptor, private in zip((1, 2), self._private, strict=True):
            with contextlib.suppress(OSError):
                os.dup2(private, descriptor)
                os.set_blocking(descriptor, True)
        for name, ours in (("stdout", self.stdout), ("stderr", self.stderr)):
            current: Any = getattr(sys, name, None)
            if current is not ours:
                with contextlib.suppress(Exception):
                    current.flush()
                setattr(sys, name, ours)
                setattr(sys, f"__{name}__", ours)
        try:
            os.fstat(0)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # the lowest free descriptor is 0
        if sys.stdin is None or sys.stdin.closed:
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it stays open

    def begin(self, execution: int, *, ordered: bool) -> None:
        """From here on output belongs to ``execution``. ordered: somebody wants to know its order with what is published."""
        self.running = execution
        self._ordered = ordered
        owner.set(execution)

    def place(self) -> int:
        """Mark the place of a message that is about to be sent; return its number; 0: nobody wants to know."""
        if not self._ordered:
            return 0
        self._places += 1
        _write(self._private[0], b"%sd;%d\a" % (self._prefix, self._places))
        return self._places

    def write(self, stream: int, data: bytes) -> None:
        """Write text of the current owner to ``stream`` 1 or 2."""
        if self._forked:
            _write(stream, data)
            return
        execution = owner.get(self.running)
        heads = self._heads
        if heads[0] != execution:
            heads = self._heads = self._heads_of(execution)
        head = heads[1][stream - 1]
        if len(data) > _LONGEST:
            for piece in _pieces(data, _LONGEST):
                _write(self._private[0], head + _SIZES[len(piece)] + piece)
            return
        whole = head + _SIZES[len(data)] + data
        try:
            os.write(self._private[0], whole)  # all or nothing, as it is so short
        except OSError:
            _write(self._private[0], whole)

    def _heads_of(self, execution: int) -> tuple[int, list[bytes]]:
        """Return the execution and how marks of its text on streams 1 and 2 begin. One value, for any thread to replace."""
        return execution, [b"%st;%d;%d;" % (self._prefix, execution, stream) for stream in (1, 2)]

    def _in_child(self) -> None:
        self._forked = True


class Stream(io.TextIOBase):
    """One text stream. Written through, never closed, of any thread."""

    encoding = "utf-8"
    errors = "replace"
    newlines = None
    mode = "w"
    line_buffering = False
    write_through = True

    def __init__(self, streams: Streams, descriptor: int) -> None:
        super().__init__()
        self._streams = streams
        self._descriptor = descriptor
        self.name = ("<stdin>", "<stdout>", "<stderr>")[descriptor]
        self.buffer = Bytes(streams, descriptor)

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            try:
                data = text.encode()
            except UnicodeEncodeError:
                data = sanitized(text).encode()
            self._streams.write(self._descriptor, data)
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._descriptor

    def reconfigure(self, **_options: object) -> None:
        """Accepted and without effect: the encoding is what the reader expects."""

    def close(self) -> None:
        """Without effect: the next cell prints too."""


class Bytes(io.RawIOBase):
    """The ``buffer`` of a stream."""

    mode = "wb"

    def __init__(self, streams: Streams, descriptor: int) -> None:
        super().__init__()
        self._streams = streams
        self._descriptor = descriptor
        self.name = descriptor

    def write(self, data: Any, /) -> int:
        written = memoryview(data).tobytes()
        if written:
            self._streams.write(self._descriptor, written)
        return len(written)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Without effect: the next cell writes too."""


def carry(variables: Sequence[ContextVar[Any]]) -> None:
    """From now on threads, and calls handed to thread pools, have the ``variables`` of the code that started them."""
    start, bootstrap, submit = threading.Thread.start, threading.Thread._bootstrap_inner, ThreadPoolExecutor.submit

    def values() -> list[tuple[ContextVar[Any], Any]]:
        pairs = ((variable, variable.get(_UNSET)) for variable in variables)
        return [(variable, value) for variable, value in pairs if value is not _UNSET]

    def new_start(self: threading.Thread) -> None:
        self._cellbox_values = values()
        start(self)

    def new_bootstrap(self: threading.Thread) -> None:
        for variable, value in getattr(self, "_cellbox_values", ()):
            variable.set(value)
        bootstrap(self)

    def new_submit(self: ThreadPoolExecutor, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        here = values()

        def call(*args: Any, **kwargs: Any) -> Any:
            for variable, value in here:
                variable.set(value)
            return function(*args, **kwargs)

        return submit(self, call, *args, **kwargs)

    threading.Thread.start = new_start
    threading.Thread._bootstrap_inner = new_bootstrap
    ThreadPoolExecutor.submit = new_submit


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Cut ``data`` into pieces of at most ``size`` bytes, between characters where it is UTF-8."""
    start = 0
    while start < len(data):
        end = start + size
        if end < len(data):
            cut = end
            while cut > end - 4 and data[cut] & 0xC0 == 0x80:
                cut -= 1
            end = cut if data[cut] & 0xC0 != 0x80 else end
        yield data[start:end]
        start = end


def _write(descriptor: int, data: bytes) -> None:
    """Write all, also to a pipe that a child made non-blocking; a reader that is gone is no error of the cell."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
        except (BrokenPipeError, OSError):
            return
