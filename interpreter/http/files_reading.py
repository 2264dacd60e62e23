"""Sending a file, or a directory as an archive: as an attachment, at the pace of its reader; a file whole or in ranges.

Promises: never more than the size at opening; a file that shrinks meanwhile ends the connection, so that a part is never
taken for the whole; nothing of it is in memory, and what is read blocks a thread, not the loop; the descriptor is closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from tornado.iostream import StreamClosedError

from interpreter.errors import BodyTooLarge, ServiceError
from interpreter.files import archive
from interpreter.files.archive import Kind, Shrunk
from interpreter.files.names import shown
from interpreter.files.service import OpenFile
from interpreter.files.tree import Parts
from interpreter.http import conditions
from interpreter.http.base import ApiHandler
from interpreter.http.conditions import Version
from interpreter.keys import Key

log = logging.getLogger("cellbox.http")

PASSIVE = {
    "aac": "audio/aac", "flac": "audio/flac", "m4a": "audio/mp4", "mp3": "audio/mpeg", "oga": "audio/ogg",
    "ogg": "audio/ogg", "opus": "audio/ogg", "wav": "audio/wav", "weba": "audio/webm",
    "avi": "video/x-msvideo", "m4v": "video/mp4", "mkv": "video/x-matroska", "mov": "video/quicktime",
    "mp4": "video/mp4", "mpeg": "video/mpeg", "mpg": "video/mpeg", "ogv": "video/ogg", "webm": "video/webm",
    "avif": "image/avif", "bmp": "image/bmp", "gif": "image/gif", "ico": "image/x-icon", "jpeg": "image/jpeg",
    "jpg": "image/jpeg", "png": "image/png", "tif": "image/tiff", "tiff": "image/tiff", "webp": "image/webp",
}  # fmt: skip
"""Types, by the end of the name, of what no browser runs. All else, HTML and SVG first, is octet-stream."""


async def send(handler: ApiHandler, file: OpenFile, *, limit: int) -> None:
    """Answer with ``file``, or with what of it is asked for, and close it. limit: of its bytes.

    Raises BodyTooLarge, PreconditionFailed, RangeNotSatisfiable.
    """
    try:
        await _send(handler, file, limit)
    finally:
        os.close(file.descriptor)


async def send_archive(handler: ApiHandler, key: Key, parts: Parts, kind: Kind) -> None:
    """Answer with a directory as an archive, of as many bytes as one download may have. Raises ServiceError."""
    limit = handler.api.limits.max_download_bytes
    made = handler.api.service.files.stream(key, lambda tree: archive.blocks(tree, parts, kind, limit=limit))
    async with contextlib.aclosing(made):
        first = await anext(made)
        handler.set_header("Content-Type", archive.MEDIA[kind])
        _attach(handler, f"{shown(parts[-1])[0] if parts else key.session or key.scope}.{kind}")
        if handler.request.method == "HEAD":
            await handler.finish()
            return
        try:
            handler.write(first)
            await handler.flush()
            async for block in made:
                handler.write(block)
                await handler.flush()
            await handler.finish()
        except (Shrunk, ServiceError, OSError) as error:
            # Also a reader that has left: the stream is closed then, and this does nothing.
            log.info("an archive was broken off", extra={"error": type(error).__name__})
            handler.break_off()


async def _send(handler: ApiHandler, file: OpenFile, limit: int) -> None:
    headers, size, version = handler.request.headers, file.state.st_size, Version.of(file.state)
    if size > limit:
        raise BodyTooLarge(f"The file is over {limit} bytes.")
    unchanged = conditions.is_unchanged(headers, version)
    handler.set_header("ETag", version.tag)
    handler.set_header("Last-Modified", version.last_modified)
    handler.set_header("Cache-Control", "private, no-cache")
    if unchanged:
        handler.set_status(304)
        await handler.finish()
        return
    _attach(handler, shown(file.name)[0])
    handler.set_header("Accept-Ranges", "bytes")
    wanted = conditions.ranges(headers, version, size) if handler.request.method == "GET" else []
    media = PASSIVE.get(os.fsdecode(file.name).rpartition(".")[2].lower(), "application/octet-stream")
    pieces = _pieces(handler, wanted, size, media)
    length = sum(len(piece) if isinstance(piece, bytes) else piece[1] - piece[0] for piece in pieces)
    handler.set_header("Content-Length", str(length))
    try:
        for piece in pieces if handler.request.method == "GET" else ():
            if isinstance(piece, bytes):
                handler.write(piece)
            elif not await _copy(handler, file.descriptor, *piece):
                handler.break_off()
                return
        await handler.finish()
    except StreamClosedError:
        pass  # It has what it wanted.


async def _copy(handler: ApiHandler, descriptor: int, start: int, stop: int) -> bool:
    """Send a part of a file; False if it is not there any more."""
    await handler.flush()
    connection: Any = handler.request.connection
    sent: int = await connection.stream.send_file(descriptor, start, stop, handler.api.service.files.run)
    connection._expected_content_remaining -= sent  # Tornado counts what goes through its own buffer
    return sent == stop - start


def _pieces(
    handler: ApiHandler, wanted: Sequence[tuple[int, int]], size: int, media: str
) -> Sequence[bytes | tuple[int, int]]:
    """Set the status and the headers of what is wanted, and return what the body is made of: bytes, and parts of the file."""
    handler.set_header("Content-Type", media)
    if not wanted:
        return [(0, size)]
    handler.set_status(206)
    if len(wanted) == 1:
        handler.set_header("Content-Range", _content_range(wanted[0], size))
        return wanted
    boundary = secrets.token_hex(16)
    handler.set_header("Content-Type", f"multipart/byteranges; boundary={boundary}")
    pieces: list[bytes | tuple[int, int]] = []
    for each in wanted:
        head = f"\r\n--{boundary}\r\nContent-Type: {media}\r\nContent-Range: {_content_range(each, size)}\r\n\r\n"
        pieces += [head.encode(), each]
    return [*pieces, f"\r\n--{boundary}--\r\n".encode()]


def _attach(handler: ApiHandler, name: str) -> None:
    encoded = quote(name, safe="!#$&+-.^_`|~")
    handler.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{encoded}")


def _content_range(wanted: tuple[int, int], size: int) -> str:
    return f"bytes {wanted[0]}-{wanted[1] - 1}/{size}"
