"""Python files as text, in whatever encoding they declare."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

COOKIE = rb"\A((?:[ \t\f]*(?:#[^\n]*)?\n)?[ \t\f]*#[^\n]*?coding[:=][ \t]*)([-\w.]+)"
"""A declaration of the encoding, in the first line or the second (PEP 263)."""
IN_BYTES, IN_TEXT = re.compile(COOKIE), re.compile(COOKIE.decode())
REMEDY = "save it in UTF-8, or declare its encoding"


def read_source(path: Path) -> str:
    """The text of a Python file, decoded as Python does. Raises OSError, and ValueError if the file is not
    text in the encoding that it declares, or in UTF-8."""
    data = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    declared = None if data.startswith(codecs.BOM_UTF8) else IN_BYTES.match(data)
    codec = declared[2].decode() if declared else "utf-8"
    try:
        return as_utf8(data.decode(codec))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"byte {data[error.start]:#04x} in line {line}"
        raise ValueError(f"it is not text in {codec} ({byte}); {REMEDY}") from error
    except LookupError as error:
        raise ValueError(f"it declares the {error}; {REMEDY}") from error


def as_utf8(source: str) -> str:
    """The source without a byte-order mark, and declared as UTF-8 if it declares anything else: it will be
    written as UTF-8."""
    source = source.removeprefix("\ufeff")
    declared = IN_TEXT.match(source)
    if declared is None or declared[2].lower().replace("_", "-") in ("utf-8", "utf8"):
        return source
    return f"{declared[1]}utf-8{source[declared.end() :]}"
