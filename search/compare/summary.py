"""The summary of a comparison: a printed table and sentences, curves as CSV, everything as JSON."""

from __future__ import annotations

import csv
import json
import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from evaluators.base.atomic_write import write_atomically
from evaluators.base.own_version import own_version
from search.compare.curves import Searched, curve, spent_at_most
from search.compare.language_gains import by_arm, language_lines, to_json
from search.compare.plan import ComparisonPlan
from search.compare.statistics import Difference, differences, means
from search.records.events import RunStarted
from search.records.journal import JOURNAL, replay
from search.run.winner_checks import HeldOutSummary, held_out_summary

STEPS = 20
"""Steps of each curve in `curves.csv`."""


def write(comparison: ComparisonPlan, searches: Sequence[Searched]) -> list[str]:
    """Writes `comparison.json` and `curves.csv` into the comparison's folder; returns the lines to print."""
    found, between = means(searches), _ordered(differences(searches, comparison.primary))
    gains = by_arm((each.arm, each.languages) for each in searches)
    body = {
        "command": comparison.command,
        "versions": _versions(comparison),
        "unit": comparison.unit,
        "seeds": list(comparison.seeds),
        "problems": list(comparison.problems),
        "searches": len(searches),
        "planned": len(comparison.searches),
        "overrides": {arm: list(overrides) for arm, overrides in comparison.arms.items()},
        "arms": {arm: asdict(interval) for arm, interval in found.items()},
        "held out": {arm: asdict(each) for arm, each in _held_out(searches).items()},
        "languages": to_json(gains),
        "differences": [
            {**asdict(each), "is_real": each.is_real, "sentence": each.sentence} for each in between
        ],
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
    lines += [f"held-out configurations, {arm}: {each}" for arm, each in _held_out(searches).items()]
    lines += language_lines(gains)
    sentences = [each.sentence for each in between]
    return [*lines, "", *sentences, "", f"{comparison.folder}/comparison.json, curves.csv"]


def _held_out(searches: Sequence[Searched]) -> dict[str, HeldOutSummary]:
    """How each arm's winners do in configurations that no search saw; empty if none was judged."""
    arms = dict.fromkeys(each.arm for each in searches)
    found = {arm: held_out_summary(each for each in searches if each.arm == arm) for arm in arms}
    return {arm: each for arm, each in found.items() if each is not None}


def _ordered(between: Sequence[Difference]) -> list[Difference]:
    """The primary contrast first, then the other significant ones, each kind by the size of the ratio."""

    def rank(each: Difference) -> tuple[bool, bool, float]:
        return not each.is_primary, not each.is_real, -abs(math.log(each.ratio.value or 1))

    return sorted(between, key=rank)


def _curves(comparison: ComparisonPlan, searches: Sequence[Searched]) -> Iterator[list[object]]:
    """The rows of `curves.csv`: median and quartiles of the best so far, by arm and problem."""
    most = max(spent_at_most(searches, comparison.unit).values())
    amounts = [most * step / STEPS for step in range(STEPS + 1)]
    for arm in comparison.arms:
        for problem in comparison.problems:
            own = [each for each in searches if (each.arm, each.problem) == (arm, problem)]
            if own:
                found = curve(own, comparison.unit, amounts)
                for row in zip(found.amounts, found.low, found.median, found.high, strict=True):
                    yield [arm, problem, row[0], len(own), *row[1:]]


def _versions(comparison: ComparisonPlan) -> dict[str, str]:
    """The versions of Ideatree and Python, and the device's facts from the first search that has a
    journal."""
    found = {"ideatree": own_version(), "python": platform.python_version()}
    journals = (each.folder / JOURNAL for each in comparison.searches)
    if (first := next((each for each in journals if each.exists()), None)) is not None:
        found |= next((each.environment for each in replay(first) if isinstance(each, RunStarted)), {})
    return found
