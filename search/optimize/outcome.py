"""The outcome of a run, read from its files, for `profile.html`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from search.optimize.extraction.record import EXTRACTION, Extraction
from search.optimize.profiling.record import Profile, site_patterns
from search.optimize.verification.launcher import way_title
from search.optimize.verification.record import EAGER, FILE, Verification
from search.optimize.verification.summary import growth_lines, memory_lines, summary_lines

KERNELS = "kernels.json"
"""The file with the kernels that were found, by problem."""


def outcome_of(folder: Path, profile: Profile) -> dict[str, Any] | None:
    """The outcome as plain JSON types, or None where no model with kernels has been verified yet: the `ways`
    of running the model with times and speedups over eager, overall and per input shape (`shapes`), the
    comparison in words (`said`), a row per problem, and of a model that is trained the `memory` of a step in
    words and the loss `curves`. Raises OSError and ValueError for damaged files."""
    if not (folder / FILE).exists():
        return None
    found = Verification.read(folder / FILE)
    extraction = Extraction.read(folder / EXTRACTION)
    kernels: Mapping[str, Any] = json.loads((folder / KERNELS).read_text(encoding="utf-8"))
    return {
        "passes": found.passes,
        "said": summary_lines(found),
        "growth": growth_lines(found),
        "memory": [*memory_lines(found)],
        "curves": found.curves and {**asdict(found.curves), "differences": found.curves.differences},
        "ways": [_way(found, way) for way in found.ways],
        "shapes": [
            {"name": name, "weight": weight, "ways": [_way(found, way, name) for way in found.ways]}
            for name, weight in found.shapes.items()
        ],
        "failed": {way_title(found, way): why for way, why in found.failed.items()},
        "problems": [
            {
                "name": each.name,
                "target": each.target,
                "calls": len(each.places),
                "share": each.time_ms / profile.total_ms,
                "ceiling": each.ceiling,
                "sites": list(site_patterns([place.site for place in each.places])),
                "kernel": kernels.get(each.name),
                "used": found.calls.get(each.name, 0),
                "left_out": found.left_out.get(each.name, ""),
            }
            for each in extraction.problems
        ],
        "no_problems": dict(extraction.left_out),
    }


def _way(found: Verification, way: str, shape: str | None = None) -> dict[str, Any]:
    speedup, low, high = found.speedup(way, shape=shape)
    return {
        "name": way_title(found, way),
        "ms": found.ms(way, shape),
        "eager": way == EAGER,
        "speedup": speedup,
        "low": low,
        "high": high,
    }
