"""``/v1/files``: what is done with the files of a session over HTTP."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

from interpreter import wire, wire_files
from interpreter.errors import InvalidRequest, ServiceError
from interpreter.files.errors import NoSuchFile
from interpreter.files.incoming import Incoming
from interpreter.files.names import parts_of, parts_of_text, shown
from interpreter.files.service import OpenFile
from interpreter.files.tree import Entry, Parts, Tree
from interpreter.files.walking import matcher
from interpreter.http import conditions, files_reading
from interpreter.http.base import ApiHandler
from interpreter.http.conditions import Version
from interpreter.http.multipart import Multipart
from interpreter.http.operations import Route
from interpreter.http.requests import read_query
from interpreter.keys import Key

MAX_FILES = 100
"""Of one upload."""
ARRIVES_S = 24 * 3600.0
"""For a whole upload that goes on. One of which nothing comes for ``body_timeout_s`` ends before."""


class FileHandler(ApiHandler):
    """One file or directory of a session."""

    def initialize(self, route: Route | None = None) -> None:
        """Take the route and start empty."""
        super().initialize(route)
        self._incoming: Incoming | None = None
        self._arrived_at = 0.0

    def decode_argument(self, value: bytes, name: str | None = None) -> str:  # noqa: ARG002 - the signature is Tornado's
        """Take bytes that are not UTF-8 too: names of files are bytes."""
        return value.decode(errors="surrogateescape")

    async def on_get(self, scope: str, _path: str, query: wire_files.ListingQuery, _body: wire.NoBody) -> None:
        """Send a file, or list a directory."""
        given = self._given_path()
        parts = parts_of(given, directory=True)
        key = Key.of(scope, query.session)
        if query.archive is not None:
            await files_reading.send_archive(self, key, parts, query.archive)
            return

        def look(tree: Tree) -> OpenFile | bytes:
            if not tree.stat(parts).is_dir:
                if given.endswith("/"):
                    raise NoSuchFile("A part of the path is no directory.")
                return _opened(tree, parts)
            return listing(tree, parts, query)

        found = await self.api.service.files.read(key, look)
        if isinstance(found, bytes):
            self.send(found)
        else:
            await files_reading.send(self, found, limit=self.api.limits.max_download_bytes)

    async def on_put(self, _scope: str, _path: str, _query: wire_files.FileQuery, _body: wire.NoBody) -> None:
        """Make what has arrived a file."""
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            return  # the caller left, and the upload with it
        headers = self.request.headers

        def check(state: os.stat_result | None) -> None:
            conditions.check_change(headers, None if state is None else Version.of(state))

        try:
            stored = await incoming.commit(check=check if conditions.has_conditions(headers) else None)
        finally:
            incoming.discard()
        path = shown(b"/".join(parts_of(self._given_path())))[0]
        self.send({"path": path, "size": stored.size, "sha256": stored.sha256}, 201 if stored.new else 200)

    async def on_delete(self, scope: str, _path: str, query: wire_files.FileQuery, _body: wire.NoBody) -> None:
        """Remove an entry."""
        parts = parts_of(self._given_path(), directory=True)
        await self.api.service.files.remove(Key.of(scope, query.session), parts)
        self.send({"removed": 1})

    async def on_post(self, scope: str, _path: str, query: wire_files.ChangeQuery, _body: wire.NoBody) -> None:
        """Make a directory, or move, copy or change an entry."""
        files, key, parts = (
            self.api.service.files,
            Key.of(scope, query.session),
            parts_of(self._given_path(), directory=True),
        )
        wanted = {"move": ("to", "overwrite"), "copy": ("to", "overwrite"), "chmod": ("mode",)}.get(query.op, ())
        for name, value in (("to", query.to), ("mode", query.mode), ("overwrite", query.overwrite or None)):
            if value is not None and name not in wanted:
                raise InvalidRequest(f"{name} does not go with `{query.op}`.")
        to = parts if query.to is None else parts_of_text(query.to)
        if query.op == "mkdir":
            await files.write(key, lambda tree: tree.mkdir(parts))
        elif query.op == "chmod":
            mode = int(_needed("mode", query.mode), 8)
            await files.read(key, lambda tree: tree.chmod(parts, mode))
        elif query.op == "move":
            _needed("to", query.to)
            await files.read(key, lambda tree: tree.move(parts, to, overwrite=query.overwrite))
        else:
            _needed("to", query.to)
            limit = self.api.limits.max_upload_bytes
            await files.read(key, lambda tree: tree.copy(parts, to, limit=limit, overwrite=query.overwrite))
        self.send({"path": shown(b"/".join(to))[0]})

    # --- the body of an upload --------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Decide on the head alone whether the call may go on; where a file is going to come, have a place for it."""
        super().prepare()
        if self._refusal is not None or self.operation is None or self.operation.takes is None:
            return
        self._stop_timers()
        connection: Any = self.request.connection
        connection.set_body_timeout(ARRIVES_S)
        try:
            query = read_query(wire_files.FileQuery, self.request.query)
            incoming = await self._expect(Key.of(self.path_args[0], query.session))
        except ServiceError as error:
            self._refuse(error)
            return
        if connection.stream.closed():
            incoming.discard()
            return
        self._incoming = incoming
        self._arrived_at = asyncio.get_running_loop().time()
        self._look_for_a_pause()

    async def data_received(self, chunk: bytes) -> None:
        """Take a piece of the file; what is refused already is dropped."""
        if self._incoming is None:
            super().data_received(chunk)
            return
        self._arrived_at = asyncio.get_running_loop().time()
        try:
            await self._take(self._incoming, chunk)
        except (ServiceError, OSError) as error:
            self._drop()
            if not isinstance(error, ServiceError):
                raise
            self._refuse_early(error)

    async def _expect(self, key: Key) -> Incoming:
        """Have a place for what will come. Raises ServiceError."""
        parts = parts_of(self._given_path())
        if not parts:
            raise InvalidRequest("The root is no file.")
        incoming = await self.api.service.files.upload(key, limit=self.api.limits.max_upload_bytes)
        try:
            await incoming.start(parts)
        except BaseException:
            incoming.discard()
            raise
        return incoming

    async def _take(self, incoming: Incoming, chunk: bytes) -> None:
        await incoming.add(chunk)

    def on_connection_close(self) -> None:
        """Keep nothing of an upload whose caller has left."""
        super().on_connection_close()
        self._drop()

    def on_finish(self) -> None:
        """Keep nothing of an upload that was answered without being stored."""
        super().on_finish()
        self._drop()

    def _look_for_a_pause(self) -> None:
        if self._incoming is None:
            return
        late_s = asyncio.get_running_loop().time() - self._arrived_at - self.api.connections.body_timeout_s
        if late_s < 0:
            self._later(-late_s, self._look_for_a_pause)
        else:
            self._drop()
            self._body_is_late()

    def _drop(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.discard()

    def _given_path(self) -> str:
        """The path as it was sent, percent-encoded: Tornado would have decoded it before it is split."""
        sent = self.request.path.split("/", 4)[4]
        return "".join(char if char < "\x80" else f"%{ord(char):02X}" for char in sent)


class FilesHandler(FileHandler):
    """All files of a session."""

    def initialize(self, route: Route | None = None) -> None:
        """Take the route and start empty."""
        super().initialize(route)
        self._multipart: Multipart | None = None
        self._paths: list[Parts] = []

    async def on_post(self, _scope: str, _query: wire_files.FileQuery, _body: wire.NoBody) -> None:  # type: ignore[override]  # its route has no path
        """Make what has arrived files, all of them or none."""
        incoming, self._incoming = self._incoming, None
        if incoming is None or self._multipart is None:
            return  # the caller left, and the upload with it
        try:
            self._multipart.close()
            stored = await incoming.commit_all()
        finally:
            incoming.discard()
        files = [
            {"path": shown(b"/".join(parts))[0], "size": each.size, "sha256": each.sha256}
            for parts, each in zip(self._paths, stored, strict=True)
        ]
        self.send({"files": files})

    async def _expect(self, key: Key) -> Incoming:
        self._multipart = Multipart(self.request.headers.get("Content-Type", ""))
        return await self.api.service.files.upload(key, limit=self.api.limits.max_upload_bytes)

    async def _take(self, incoming: Incoming, chunk: bytes) -> None:
        for piece in self._multipart.feed(chunk) if self._multipart is not None else ():
            if isinstance(piece, bytes):
                await incoming.add(piece)
                continue
            parts = parts_of_text(piece)
            if parts in self._paths:
                raise InvalidRequest("Two files have the same path.")
            if len(self._paths) == MAX_FILES:
                raise InvalidRequest(f"More than {MAX_FILES} files come at once.")
            self._paths.append(parts)
            await incoming.start(parts)


def listing(tree: Tree, parts: Parts, query: wire_files.ListingQuery) -> bytes:
    """Return the JSON of a listing. Blocks."""
    after = unquote_to_bytes(query.after or "")
    if query.recursive or query.glob is not None:
        entries, following = tree.find(parts, limit=query.limit, after=after, meant=matcher(query.glob or "**"))
    else:
        entries, following = tree.entries(parts, limit=query.limit, after=after)
    answer = {
        "path": shown(b"/".join(parts))[0],
        "entries": [_described(entry) for entry in entries],
        "truncated": following is not None,
        "next": None if following is None else quote_from_bytes(following),
    }
    return msgspec.json.encode(answer)


def _described(entry: Entry) -> dict[str, Any]:
    name, raw = shown(entry.name)
    described: dict[str, Any] = {
        "name": name,
        "is_dir": entry.is_dir,
        "size": entry.size,
        "mod_time": _shown_time(entry.modified_ns // 1_000_000_000),
    }
    return described if raw is None else {**described, "raw": raw}


@functools.lru_cache(maxsize=4096)
def _shown_time(seconds: int) -> str:
    """The time of a file in RFC 3339; files of one directory often have the same, and formatting is what a listing costs."""
    return conditions.moment(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def _needed(name: str, value: str | None) -> str:
    if value is None:
        raise InvalidRequest(f"{name} is required.")
    return value


def _opened(tree: Tree, parts: Parts) -> OpenFile:
    with tree.reading(parts) as (descriptor, state):
        return OpenFile(parts[-1], os.dup(descriptor), state)
