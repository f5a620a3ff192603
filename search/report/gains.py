"""The gains of each category and each model."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from search.report.run_frames import RunFrames

if TYPE_CHECKING:
    import pandas as pd


def gains_by(frames: RunFrames, key: str) -> pd.DataFrame:
    """One row for each `category` or `model`, in the order of their first ideas.

    `ideas`, `variants` and `correct` are counts; `new_bests` counts variants that became the run's best when
    evaluated; `gain` is the median of the ideas' gains over their seeds; `on_path` is the factor by which its
    ideas on the winner's path made it faster, 1 without any; `dollars` is the cost of all calls of a model,
    or of the calls about a category's ideas.
    """
    import pandas as pd

    ideas, variants = frames.ideas, frames.variants
    names = ideas[key].drop_duplicates()
    factors = path_factors(frames)
    rows: list[dict[str, Any]] = []
    for name in names[names != ""]:
        own, written = ideas[ideas[key] == name], variants[variants[key] == name]
        path = [factor for id, factor in factors.items() if variants.at[id, key] == name]
        paid = frames.calls[frames.calls["model"] == name] if key == "model" else own
        rows.append(
            {
                key: name,
                "ideas": len(own),
                "variants": len(written),
                "correct": int((written["status"] == "correct").sum()),
                "new_bests": int(written["new_best"].sum()),
                "best_speedup": own["speedup"].max(),
                "gain": own["gain"].median(),
                "on_path": math.prod(path),
                "dollars": float(paid["dollars"].sum()),
            }
        )
    columns = ["ideas", "variants", "correct", "new_bests", "best_speedup", "gain", "on_path", "dollars"]
    return pd.DataFrame(rows, columns=[key, *columns]).set_index(key)


def path_factors(frames: RunFrames) -> dict[str, float]:
    """By id, how many times as fast as its predecessor each variant on the winner's path is, without the
    first. Their product is how many times as fast the winner is as the first."""
    best = frames.progress.best
    if best is None:
        return {}
    ids = [each.id for each in frames.progress.state.tree.lineage(best)]
    speedups = frames.variants["speedup"]
    return {after: float(speedups[after] / speedups[before]) for before, after in itertools.pairwise(ids)}
