"""The gains of each category and each model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from search.report.run_frames import RunFrames

if TYPE_CHECKING:
    import pandas as pd


def gains_by(frames: RunFrames, key: str) -> pd.DataFrame:
    """One row for each `category` or `model`, in the order of their first ideas.

    `ideas`, `variants` and `correct` are counts; `new_bests` counts variants that became the run's best when
    evaluated; `gain` is the median of the ideas' gains over their seeds; `dollars` is what all calls of a
    model cost, or the calls about a category's ideas.
    """
    import pandas as pd

    ideas, variants = frames.ideas, frames.variants
    names = ideas[key].drop_duplicates()
    rows: list[dict[str, Any]] = []
    for name in names[names != ""]:
        own, written = ideas[ideas[key] == name], variants[variants[key] == name]
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
                "dollars": float(paid["dollars"].sum()),
            }
        )
    columns = ["ideas", "variants", "correct", "new_bests", "best_speedup", "gain", "dollars"]
    return pd.DataFrame(rows, columns=[key, *columns]).set_index(key)
