"""Enables the kernels of an exported package as soon as torch is imported.

The package registers `autoload` as an entry point in the group `torch.backends`, which torch calls at the end
of its import. Library kernels are loaded when they are first called.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_library.overrides.choice import Candidate, MeasuredCase
from kernel_library.overrides.kernels import DEVICES, given, load_module
from kernel_library.overrides.library_kernels import Rules, library_sources
from kernel_library.overrides.operators import operator
from kernel_library.overrides.override import Override

logger = logging.getLogger(__name__)

MANIFEST = "kernels.json"


def packaged(folder: Path) -> Override:
    """The override of a package's folder. Raises OSError and ValueError for an incomplete folder."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    sources: dict[Any, Any] = {
        operator(name): given(name, folder / file, DEVICES) for name, file in manifest["operators"].items()
    }
    candidates = [_candidate(each) for each in manifest["candidates"]]
    functions = {each.name: each.function for each in candidates}

    def load(name: str) -> Callable[..., Any]:
        found = getattr(load_module(folder / manifest["files"][name]), functions[name])
        function: Callable[..., Any] = found() if isinstance(found, type) else found
        return function

    ids = {name: Path(file).stem for name, file in manifest["files"].items()}
    return Override(
        {**library_sources(candidates, load=load, ids=ids, rules=Rules(**manifest["rules"])), **sources}
    )


def autoload(folder: Path) -> Override | None:
    """Enables the package's override. Errors are only logged, so that `import torch` succeeds."""
    try:
        return packaged(folder).enable()
    except Exception:  # would make torch's import fail
        logger.exception("%s: its kernels are not used", folder)
        return None


def _candidate(fields: dict[str, Any]) -> Candidate:
    tuples: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    tuples["measured"] = tuple(
        MeasuredCase(**{**each, "shapes": tuple(map(tuple, each["shapes"]))}) for each in fields["measured"]
    )
    return Candidate(**tuples)
