"""Writing a file completely or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Writes a UTF-8 file. Readers see the old file or the complete new one, even while several processes
    write it. Raises OSError."""
    with _written(path, text) as part:
        os.replace(part, path)


def write_if_new(path: Path, text: str) -> bool:
    """Writes a UTF-8 file unless it exists; returns whether it did. Of several machines that share the
    folder, also by NFS, exactly one does. Raises OSError."""
    with _written(path, text) as part:
        try:
            os.link(part, path)
        except FileExistsError:  # or an NFS server repeated a link that it had made
            return part.stat().st_nlink == 2
    return True


@contextlib.contextmanager
def _written(path: Path, text: str) -> Iterator[Path]:
    """A complete file next to the path, for the block."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        part.write_text(text, encoding="utf-8")
        yield part
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        part.unlink(missing_ok=True)
