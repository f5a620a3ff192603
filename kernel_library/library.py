"""A library in a folder: `<root>/<problem id>/<entry id>/` with `kernel.py` and `card.json`.

An entry appears whole or not at all: it is written beside its place and moved there, so that several runs
may add to one library at once.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from pathlib import Path

from evaluators.problem import Problem
from kernel_library.entry import Entry

logger = logging.getLogger(__name__)


class FolderLibrary:
    """Kernels that outlive the runs that found them."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def lookup(self, problem: Problem, k: int) -> list[Entry]:
        """At most k entries for the same problem, the fastest against eager first. An entry that cannot be
        read is logged and left out."""
        entries = [self._read(folder) for folder in sorted((self.root / problem.id).glob("*/"))]
        found = [entry for entry in entries if entry is not None]
        return sorted(found, key=lambda entry: (-entry.evaluation.speedup, entry.id))[:k]

    def add(self, entry: Entry) -> bool:
        """Whether the entry is new. Raises OSError when the folder cannot be written."""
        place = self.root / entry.problem_id / entry.id
        if place.exists():
            return False
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=place.parent))
        try:
            (part / "kernel.py").write_text(entry.kernel.source)
            (part / "card.json").write_text(json.dumps(entry.card(), indent=2) + "\n")
            os.chmod(part, 0o755)
            os.rename(part, place)
        except OSError:
            if place.exists():
                return False  # another run was first
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return True

    def _read(self, folder: Path) -> Entry | None:
        if folder.name.startswith("."):
            return None
        try:
            card = json.loads((folder / "card.json").read_text())
            return Entry.from_card(card, (folder / "kernel.py").read_text())
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("library entry %s cannot be read: %s", folder, error)
            return None
