"""Errors of the system under a program: a full disk, a folder that may not be written, a missing stream."""

from __future__ import annotations

import errno

OF_THE_SYSTEM = frozenset(
    {errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ELOOP}
    | {errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE, errno.ENOSPC, errno.ENOTDIR, errno.EPERM}
    | {errno.EROFS, errno.ESTALE}
)
"""Numbers of errors that say what is wrong with a file or a disk. A file that does not exist (ENOENT) is not
among them, because a fault of the program often looks like that."""


def system_error(error: BaseException) -> str | None:
    """What is wrong, in one line with the file; None if the error is of another kind, and may be a fault of
    the program."""
    if not isinstance(error, OSError) or error.errno not in OF_THE_SYSTEM:
        return None
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
