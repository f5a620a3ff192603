"""A comparison in words and files: a table, the differences in sentences, curves as CSV, all as JSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from evaluators.atomic_write import write_atomically
from search.comparisons.curves import Searched, best_at, spent_at_most
from search.comparisons.plan import Comparison
from search.comparisons.statistics import Difference, differences, means

STEPS = 20
"""Places at which the curves are written."""


def write(comparison: Comparison, searches: Sequence[Searched]) -> list[str]:
    """Writes `comparison.json` and `curves.csv` into the comparison's folder; returns what is to be said."""
    found, between = means(searches), differences(searches)
    body = {
        "unit": comparison.unit,
        "seeds": list(comparison.seeds),
        "problems": list(comparison.problems),
        "searches": len(searches),
        "arms": {arm: asdict(interval) for arm, interval in found.items()},
        "differences": [{**asdict(each), "is_real": each.is_real} for each in between],
    }
    write_atomically(comparison.folder / "comparison.json", json.dumps(body, indent=1) + "\n")
    with (comparison.folder / "curves.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["arm", "problem", comparison.unit, "searches", "low", "median", "high"])
        rows.writerows(_curves(comparison, searches))
    spent = spent_at_most(searches, comparison.unit)
    lines = [f"{'strategy':<24}{'searches':>9}  {comparison.unit:>12}  speedup over eager, geometric mean"]
    for arm, interval in sorted(found.items(), key=lambda each: -each[1].value):
        number = sum(each.arm == arm for each in searches)
        lines.append(f"{arm:<24}{number:>9}  {spent[arm]:>12.6g}  {interval}")
    return [*lines, "", *_sentences(between), "", f"{comparison.folder}/comparison.json, curves.csv"]


def _sentences(between: Sequence[Difference]) -> list[str]:
    """Those that are real first, the largest first."""
    ordered = sorted(between, key=lambda each: (not each.is_real, -abs(math.log(each.ratio.value or 1))))
    return [each.sentence for each in ordered]


def _curves(comparison: Comparison, searches: Sequence[Searched]) -> Iterator[list[object]]:
    """The median of the best so far, and the quartiles, for each arm and problem."""
    most = max(spent_at_most(searches, comparison.unit).values())
    amounts = [most * step / STEPS for step in range(STEPS + 1)]
    for arm in comparison.arms:
        for problem in comparison.problems:
            of = [each for each in searches if (each.arm, each.problem) == (arm.name, problem)]
            curves = [best_at(each.points, comparison.unit, amounts) for each in of]
            for place, amount in enumerate(amounts) if curves else ():
                values = sorted(curve[place] for curve in curves)
                quartiles = [values[round(share * (len(values) - 1))] for share in (0.25, 0.5, 0.75)]
                yield [arm.name, problem, amount, len(values), *quartiles]
