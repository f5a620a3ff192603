"""The files of a comparison as pandas frames, for notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.compare.curves import UNITS, Searched, read_searches

if TYPE_CHECKING:
    import pandas as pd

SEARCH = ("problem", "arm", "seed")


@dataclass(frozen=True, kw_only=True)
class ComparisonFrames:
    """A comparison as pandas frames; `docs/guides/compare.md` describes their columns.

    Attributes:
        unit: the unit of the budget, which is the x axis of `curves`.
        searches: one row per search: what it found and spent.
        points: the best kernel so far after each evaluation of each search.
        curves: median and quartiles of the best so far, by arm and problem.
        arms: mean speedup of each arm.
        differences: each pair of arms.
    """

    unit: str
    searches: pd.DataFrame
    points: pd.DataFrame
    curves: pd.DataFrame
    arms: pd.DataFrame
    differences: pd.DataFrame


def load_comparison(folder: str | Path) -> ComparisonFrames:
    """Reads the comparison in a folder; until it ends, the searches of its last report. Needs pandas. Raises
    OSError if a file is missing."""
    import pandas as pd

    place = Path(folder)
    searches = read_searches(place / "searches.jsonl")
    body = json.loads((place / "comparison.json").read_text(encoding="utf-8"))
    arms = [{"arm": arm, **_interval("speedup", each)} for arm, each in body["arms"].items()]
    differences = [_difference(each) for each in body["differences"]]
    return ComparisonFrames(
        unit=body["unit"],
        searches=pd.DataFrame(map(_search, searches)).set_index(list(SEARCH)).sort_index(),
        points=pd.DataFrame(row for each in searches for row in _points(each)),
        curves=pd.read_csv(place / "curves.csv"),
        arms=pd.DataFrame(arms).set_index("arm"),
        differences=pd.DataFrame(differences).set_index(["first", "second"]),
    )


def _search(search: Searched) -> dict[str, Any]:
    """The result of a search, and all that it spent."""
    last = search.points[-1]
    return {
        **{name: getattr(search, name) for name in (*SEARCH, "reason", "final")},
        **{unit: getattr(last, unit) for unit in UNITS},
    }


def _points(search: Searched) -> Iterable[dict[str, Any]]:
    """The best so far after each evaluation."""
    keys = {name: getattr(search, name) for name in SEARCH}
    return ({**keys, **asdict(point)} for point in search.points)


def _difference(known: Mapping[str, Any]) -> dict[str, Any]:
    intervals = {name: _interval(name, known[name]) for name in ("ratio", "beats")}
    return {name: each for name, each in known.items() if name not in intervals} | {
        key: value for interval in intervals.values() for key, value in interval.items()
    }


def _interval(name: str, known: Mapping[str, float]) -> dict[str, float]:
    return {name: known["value"], f"{name}_low": known["low"], f"{name}_high": known["high"]}
