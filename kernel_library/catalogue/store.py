"""Stores text files under a root: a local folder, or any URL that fsspec opens."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

READ_AT_ONCE = 16
"""Files read concurrently, because each file of an object store has some latency."""


class Store:
    """Reads and atomically writes files. Raises ValueError for a root that fsspec cannot open."""

    def __init__(self, root: str) -> None:
        import fsspec  # type: ignore[import-untyped]

        try:
            self._files, base = fsspec.core.url_to_fs(root)
        except (ImportError, ValueError) as error:
            raise ValueError(f"library.root={root} cannot be opened: {error}") from error
        self._base = str(base).rstrip("/")

    def paths(self) -> list[str]:
        """All files, relative to the root; none if the root does not exist yet. Raises OSError."""
        self._files.invalidate_cache()  # other processes write as well
        try:
            found = self._files.find(self._base)
        except FileNotFoundError:
            return []
        return sorted(str(PurePosixPath(each).relative_to(self._base)) for each in found)

    def read(self, paths: Iterable[str]) -> dict[str, str]:
        """The texts of the files that exist. Raises OSError."""
        wanted = list(paths)
        with ThreadPoolExecutor(READ_AT_ONCE) as threads:
            texts = threads.map(self._read, wanted)
            return {path: text for path, text in zip(wanted, texts, strict=True) if text is not None}

    def exists(self, path: str) -> bool:
        """Whether the file exists. Raises OSError."""
        return bool(self._files.exists(f"{self._base}/{path}"))

    def write(self, path: str, text: str) -> None:
        """Writes a temporary file and moves it into place. Raises OSError."""
        place = PurePosixPath(f"{self._base}/{path}")
        part = str(place.with_name(f".{place.name}.{uuid.uuid4().hex}"))
        self._files.makedirs(str(place.parent), exist_ok=True)
        try:
            self._files.pipe_file(part, text.encode())
            self._files.mv(part, str(place))
        except OSError:
            if self._files.exists(part):
                self._files.rm_file(part)
            raise

    def _read(self, path: str) -> str | None:
        try:
            content: bytes = self._files.cat_file(f"{self._base}/{path}")
        except FileNotFoundError:
            return None
        return content.decode(errors="replace")
