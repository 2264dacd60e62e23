"""What of the files of a session crosses the wire: the models of ``/v1/files``.

As wire.py, which has the rules that hold for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from interpreter.wire import AnswerModel, Flag, Request, Session

DEFAULT_ENTRIES = 1000
MAX_ENTRIES = 10_000


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value) else value


class FileQuery(Request):
    """Whose file."""

    session: Session = None


class ListingQuery(FileQuery):
    """Which file, or which entries of a directory."""

    limit: Annotated[int, BeforeValidator(_number), Field(ge=1, le=MAX_ENTRIES)] = Field(
        default=DEFAULT_ENTRIES, description="Entries of one answer at most."
    )
    recursive: Flag = Field(
        default=False, description="Also what is in the directories below; a name is then a path from the listed one."
    )
    glob: str | None = Field(
        default=None,
        description="Only what this pattern means, from the listed directory on: `*.csv` is in it, `**/*.csv` also below.",
    )
    archive: Literal["tar.gz", "zip"] | None = Field(
        default=None, description="Send the directory with all that is in it as one file instead."
    )
    after: str | None = Field(default=None, description="The `next` of the answer before, as it was given.")


class ChangeQuery(FileQuery):
    """What is to be done with an entry."""

    HINTS: ClassVar[Mapping[str, str]] = {
        "op": "mkdir, move, copy or chmod. A file is stored by PUT; several at once by a POST of multipart/form-data to"
        " /v1/files/{scope}, without a slash at its end"
    }
    op: Literal["mkdir", "move", "copy", "chmod"] = Field(description="What.")
    to: str | None = Field(
        default=None, description="`move` and `copy`: the new path, in the same directory of a session."
    )
    mode: Annotated[str, Field(pattern=r"^[0-7]{3,4}$")] | None = Field(
        default=None, description="`chmod`: permissions in octal, without setuid, setgid and sticky."
    )
    overwrite: Flag = Field(
        default=False, description="`move` and `copy`: in the place of a file, or of a directory that is empty."
    )


class Entry(AnswerModel):
    """One name of a directory."""

    name: str = Field(description="Its name; U+FFFD stands for bytes that are not UTF-8.")
    is_dir: bool = Field(description="Whether it is a directory; a link to one is none.")
    size: int = Field(description="Bytes of a plain file; 0 for all else.")
    mod_time: str = Field(description="When it was last changed: RFC 3339, UTC.")
    raw: str | None = Field(
        default=None, description="Its percent-encoded bytes, where the name is not UTF-8; works in a URL."
    )


class Listing(AnswerModel):
    """A directory, or, where the path names a file, the bytes of that instead."""

    path: str = Field(description="The directory; empty for the root.")
    entries: list[Entry] = Field(description="Its entries, sorted by the bytes of their names.")
    truncated: bool = Field(description="Whether there are more.")
    next: str | None = Field(default=None, description="What `after` has to be for those that follow.")


class StoredFile(AnswerModel):
    """A file that was stored."""

    path: str = Field(description="Where it is.")
    size: int = Field(description="Its bytes.")
    sha256: str = Field(description="Their SHA-256 in hexadecimal.")


class StoredFiles(AnswerModel):
    """Files that were stored together."""

    files: list[StoredFile] = Field(description="In the order of the request.")


class Changed(AnswerModel):
    """What was made, moved, copied or changed."""

    path: str = Field(description="Where it is now.")


class FilesRemoved(AnswerModel):
    """What was removed."""

    removed: Literal[1] = Field(description="1: the entry that was named, with all that was in it.")
