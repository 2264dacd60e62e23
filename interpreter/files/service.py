"""The files of all sessions, for the event loop: which directory is meant, and a bounded number of threads.

Promises: nothing here blocks the loop, and no work on files takes the threads that start and end sandboxes; a directory is made
for what is stored there and for nothing else; a host without room is said as ``storage_failed``.
Leaves to tree.py: all that is done with files; to http: requests and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from interpreter import shortage
from interpreter.errors import RuntimeUnavailable, ShuttingDown, StorageFailed
from interpreter.files import together
from interpreter.files.disposing import Disposals
from interpreter.files.errors import NoSuchFile, TooManyArchives, TooManyUploads
from interpreter.files.incoming import Incoming
from interpreter.files.names import parts_of_text
from interpreter.files.tree import Parts, Tree
from interpreter.keys import Key
from interpreter.scopes.root import DataRoot

THREADS = 8
MAX_UPLOADS = 24
"""At once: each has two blocks in memory."""
MAX_ARCHIVES = 24
"""At once: each has a few descriptors for as long as its reader takes."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A plain file that is open for reading, and its state when it was opened. Its owner closes ``descriptor``."""

    name: bytes
    descriptor: int
    state: os.stat_result


class Files:
    """The files of one service. warm: told that the sandbox of a session will be used, before its directory is made."""

    def __init__(self, data: DataRoot, warm: Callable[[Key], Awaitable[None]]) -> None:
        self._data = data
        self._warm = warm
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files")
        self.disposals = Disposals(self._tree)
        self._uploads = self._archives = 0
        self._closed = False

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns in a thread. Raises ServiceError, OSError."""
        return await self._begin(work)

    async def read(self, key: Key, work: Callable[[Tree], _T]) -> _T:
        """Return what ``work`` returns for the directory of ``key``. Raises NoSuchFile where there is none."""

        def opened() -> _T:
            with contextlib.closing(self._tree(key)) as tree:
                return work(tree)

        return await self._begin(opened, key)

    async def write(self, key: Key, work: Callable[[Tree], _T]) -> _T:
        """Return what ``work`` returns for the directory of ``key``, which is made at need. Raises SingleTenant."""
        await self._make(key)
        return await self.read(key, work)

    async def store(self, key: Key, contents: Mapping[str, bytes]) -> None:
        """Store contents under their paths, all of them or none. Raises ServiceError that names the file, NoSuchFile where there
        is no directory of ``key``."""

        def stored(tree: Tree) -> None:
            with contextlib.ExitStack() as kept:
                uploads = []
                for path, content in contents.items():
                    parts = parts_of_text(path)
                    with together.naming(parts):
                        upload = kept.enter_context(tree.upload(parts, limit=len(content)))
                        upload.write(content)
                        upload.complete()
                    uploads.append(upload)
                together.commit(uploads)

        await self.read(key, stored)

    async def stream(self, key: Key, work: Callable[[Tree], Iterator[bytes]]) -> AsyncGenerator[bytes, None]:
        """Yield the blocks that ``work`` yields for the directory of ``key``, each made in a thread. To be closed.

        Raises TooManyArchives before the first.
        """

        def opened() -> Generator[bytes, None, None]:
            with contextlib.closing(self._tree(key)) as tree:
                yield from work(tree)

        if self._archives >= MAX_ARCHIVES:
            raise TooManyArchives(f"{MAX_ARCHIVES} archives are being sent, which is the limit.", retry_after_s=1.0)
        self._archives += 1
        blocks = opened()
        try:
            while (block := await self._begin(lambda: next(blocks, None))) is not None:
                yield block
        finally:
            try:
                await self._begin(blocks.close)
            finally:
                self._archives -= 1

    async def upload(self, key: Key, *, limit: int) -> Incoming:
        """Begin to store files of at most ``limit`` bytes; the caller discards it in any case. Raises TooManyUploads."""
        if self._uploads >= MAX_UPLOADS:
            raise TooManyUploads(f"{MAX_UPLOADS} uploads are arriving, which is the limit.", retry_after_s=1.0)
        self._uploads += 1
        try:
            await self._make(key)
            return await self._begin(lambda: self._incoming(key, limit), key)
        except BaseException:
            self._uploads -= 1
            raise

    async def remove(self, key: Key, parts: Parts) -> None:
        """Remove an entry, a directory with all that is in it: it is out of sight on return, and its data soon after."""

        def taken() -> bytes:
            with contextlib.closing(self._tree(key)) as tree:
                return tree.take_away(parts)

        await self.disposals.add(key.scope, await self._begin(taken, key))

    async def aclose(self) -> None:
        """Wait for what is done in threads. Nothing can be asked for afterwards. May be called twice."""
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown)
        await self.disposals.aclose()

    def _incoming(self, key: Key, limit: int) -> Incoming:
        with contextlib.ExitStack() as stack:
            tree = stack.enter_context(contextlib.closing(self._tree(key)))
            kept = stack.pop_all()
        return Incoming(
            lambda work: self._begin(work, key),
            lambda parts: kept.enter_context(tree.upload(parts, limit=limit)),
            lambda: self._end(kept),
            limit,
        )

    def _end(self, resources: contextlib.ExitStack) -> None:
        self._uploads -= 1
        try:
            self._threads.submit(resources.close)
        except RuntimeError:  # the threads have ended
            resources.close()

    def _begin(self, work: Callable[[], _T], key: Key | None = None) -> asyncio.Future[_T]:
        """Begin ``work`` in a thread. key: whose quota it may fill."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ShuttingDown("The service is stopping.", retry_after_s=5.0)
        try:
            return loop.run_in_executor(self._threads, self._told, work, key)
        except RuntimeError as error:
            raise RuntimeUnavailable(f"Not now: {shortage.PROCESSES}.", retry_after_s=5.0) from error

    async def _make(self, key: Key) -> None:
        if key.session is not None:
            await self._warm(key)
        await self._begin(lambda: self._data.prepare(key))

    def _told(self, work: Callable[[], _T], key: Key | None) -> _T:
        """Do ``work``; a full quota or disk is told as what it is."""
        try:
            return work()
        except OSError as error:
            if key is not None and (full := self._data.volumes.full(key.scope, error)) is not None:
                raise full from error
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFailed(f"Nothing was stored: {shortage.told(error.errno)}.") from error
            raise

    def _tree(self, key: Key) -> Tree:
        try:
            return Tree(*self._data.open_directories(key))
        except FileNotFoundError as error:
            raise NoSuchFile("There is no such scope, or session in it, that has files.") from error
