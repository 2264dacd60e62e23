"""What a caller is told about files, one class per code, besides the errors that all calls may have.

Leaves to http/errors.py: the status of each.
"""

from __future__ import annotations

from interpreter.errors import ServiceError


class OutsideDirectory(ServiceError):
    """The path leaves its directory, through a link or a mount."""

    code = "outside_directory"


class NotARegularFile(ServiceError):
    """The path names something that is no plain file: a FIFO, socket, device, or a directory where a file is meant."""

    code = "not_a_regular_file"


class NotPermitted(ServiceError):
    """The mode of a file or directory does not allow this, also not to the service."""

    code = "not_permitted"


class NoSuchFile(ServiceError):
    """There is no such file or directory."""

    code = "file_not_found"


class FileExists(ServiceError):
    """There is something of this name already."""

    code = "file_exists"


class PreconditionFailed(ServiceError):
    """The file is not, or not any more, what If-Match, If-None-Match or If-Unmodified-Since asks for; nothing was done."""

    code = "precondition_failed"


class FileBusy(ServiceError):
    """What the path names is being changed all the time, or locked by who uses it."""

    code = "file_busy"
    retryable = True


class TooManyArchives(ServiceError):
    """As many archives as there is room for are being sent."""

    code = "too_many_archives"
    retryable = True


class TooManyUploads(ServiceError):
    """As many uploads as there is room for are arriving."""

    code = "too_many_uploads"
    retryable = True
