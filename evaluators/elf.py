"""What a 64-bit ELF file says is to be mapped out of it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC, WIDE = b"\x7fELF", 2
LOADED, EXECUTABLE = 1, 1


@dataclass(frozen=True, kw_only=True)
class Segment:
    """`size` bytes of the file from `offset` on, which lie at `address` from where the file is mapped."""

    offset: int
    address: int
    size: int
    executable: bool


def segments(path: Path) -> list[Segment]:
    """Those that are loaded; none of a file of another kind. Raises OSError."""
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:4] != MAGIC or header[4] != WIDE:
            return []
        (table_at,) = struct.unpack_from("<Q", header, 32)
        entry, count = struct.unpack_from("<HH", header, 54)
        file.seek(table_at)
        table = file.read(entry * count)
    found = []
    for start in range(0, len(table), entry):
        kind, flags, offset, address, _, size = struct.unpack_from("<IIQQQQ", table, start)
        if kind == LOADED:
            executable = bool(flags & EXECUTABLE)
            found.append(Segment(offset=offset, address=address, size=size, executable=executable))
    return found
