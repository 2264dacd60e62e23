"""Several uploads that get their names together or not at all.

Promises: what is replaced is kept until all have their names, so a failure gives each the old one back, and removes the
directories that were made for them, unless something has been put there meanwhile; it says which file it was. Blocks.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from interpreter.errors import ServiceError
from interpreter.files import confine
from interpreter.files.errors import FileExists
from interpreter.files.names import quoted
from interpreter.files.tree import Parts, Stored, Upload, sync
from interpreter.scopes.renaming import exchange_at, rename_new_at

_placing = threading.Lock()
"""One at a time holds the directories of all its files."""


def commit(uploads: Sequence[Upload]) -> list[Stored]:
    """Make each the file of its name. Raises ServiceError, FileExists for example where one names a directory."""
    stored = [upload.complete() for upload in uploads]
    with _placing, ExitStack() as parents, ExitStack() as undo:
        new = []
        for upload in uploads:
            with naming(upload.parts):
                new.append(_place(upload, parents, undo))
        undo.pop_all()
    return [replace(each, new=is_new) for each, is_new in zip(stored, new, strict=True)]


@contextlib.contextmanager
def naming(parts: Parts) -> Iterator[None]:
    """Have the message of a ServiceError say which file it is about."""
    try:
        yield
    except ServiceError as error:
        raise type(error)(f"{quoted(parts)}: {error.message}", retry_after_s=error.retry_after_s) from error


def _place(upload: Upload, parents: ExitStack, undo: ExitStack) -> bool:
    """Give an upload its name; whether nothing had it. What had it gets the name in staging, which goes with the upload."""
    staging, name, leaf = upload.tree.staging, upload.name, upload.parts[-1]
    made: list[Parts] = []
    undo.callback(upload.tree.unmake, made)
    parent = parents.enter_context(upload.tree.parent(upload.parts, make=True, made=made))
    with confine.translated():
        try:
            rename_new_at(staging, name, parent, leaf)
        except FileExistsError:
            exchange_at(staging, name, parent, leaf)
            undo.callback(exchange_at, parent, leaf, staging, name)
            if stat.S_ISDIR(os.stat(name, dir_fd=staging, follow_symlinks=False).st_mode):
                raise FileExists("This is the name of a directory.") from None
            sync(parent)
            return False
        undo.callback(rename_new_at, parent, leaf, staging, name)
    sync(parent)
    return True
