"""The gains of each category, each model and each language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from search.report.run_frames import RunFrames

if TYPE_CHECKING:
    import pandas as pd


def gains_by(frames: RunFrames, key: str) -> pd.DataFrame:
    """One row for each `category`, `model` or `language`, in the order of their first ideas.

    `ideas`, `variants` and `correct` are counts; `new_bests` counts variants that became the run's best when
    evaluated; `gain` is the median of the ideas' gains over their seeds; `dollars` is what all calls of a
    model cost, or the calls about the ideas of a category or of a language. The ideas of a language are those
    with a kernel in it, and its best speedup is the best of these kernels.
    """
    import pandas as pd

    ideas, variants = frames.ideas, frames.variants
    names = (variants if key == "language" else ideas)[key].drop_duplicates()
    rows: list[dict[str, Any]] = []
    for name in names[names != ""]:
        written = variants[variants[key] == name]
        own = ideas[ideas.index.isin(written["idea"]) if key == "language" else ideas[key] == name]
        best = written if key == "language" else own
        paid = frames.calls[frames.calls["model"] == name] if key == "model" else own
        rows.append(
            {
                key: name,
                "ideas": len(own),
                "variants": len(written),
                "correct": int((written["status"] == "correct").sum()),
                "new_bests": int(written["new_best"].sum()),
                "best_speedup": best["speedup"].max(),
                "gain": own["gain"].median(),
                "dollars": float(paid["dollars"].sum()),
            }
        )
    columns = ["ideas", "variants", "correct", "new_bests", "best_speedup", "gain", "dollars"]
    return pd.DataFrame(rows, columns=[key, *columns]).set_index(key)
