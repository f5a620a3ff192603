"""A comparison as pandas frames, for notebooks: what its folder has, and nothing besides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.records.scores import Estimate
from search.compare.curves import UNITS, Searched, read_searches
from search.compare.statistics import Difference

if TYPE_CHECKING:
    import pandas as pd

SEARCH = ("problem", "arm", "seed")


@dataclass(frozen=True, kw_only=True)
class ComparisonFrames:
    """`unit` is that of the budget, in which curves are drawn; `docs/comparing.md` has the columns."""

    unit: str
    searches: pd.DataFrame
    points: pd.DataFrame
    curves: pd.DataFrame
    arms: pd.DataFrame
    differences: pd.DataFrame


def load_comparison(folder: str | Path) -> ComparisonFrames:
    """The comparison in a folder, as far as it is written: at the end, and with its report before. Needs
    pandas. Raises OSError where its files are not there, or not all yet."""
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
    """What was found, and what was spent in all."""
    last = search.points[-1]
    return {
        **{name: getattr(search, name) for name in (*SEARCH, "reason", "final")},
        **{unit: getattr(last, unit) for unit in UNITS},
    }


def _points(search: Searched) -> Iterable[dict[str, Any]]:
    """The best so far after each evaluation."""
    of = {name: getattr(search, name) for name in SEARCH}
    return ({**of, **asdict(point)} for point in search.points)


def _difference(known: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {name: known[name] for name in ("first", "second", "pairs", "p")}
    ratio, beats = known["ratio"], known["beats"]
    found = Difference(**plain, ratio=Estimate(**ratio), beats=Estimate(**beats))
    said = {"is_real": found.is_real, "sentence": found.sentence}
    return {**plain, **_interval("ratio", ratio), **_interval("beats", beats), **said}


def _interval(name: str, known: Mapping[str, float]) -> dict[str, float]:
    return {name: known["value"], f"{name}_low": known["low"], f"{name}_high": known["high"]}
