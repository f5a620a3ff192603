"""The results of a campaign: the field's measures by arm, as a table, JSON and CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluators.base.atomic_write import write_atomically
from evaluators.records.scores import Estimate, Scored, geometric_mean, measures
from search.campaign.slices import SearchProgress
from search.report.html import plain
from search.run.winner_checks import held_out_speedup, held_out_summary, mean_speedup, only_listed

UNKNOWN = Estimate(value=math.nan, low=math.nan, high=math.nan)
COSTS = ("evaluations", "device_s", "tokens", "dollars")
COLUMNS = (
    *("problem", "arm", "weight", "evaluations", "dollars", "speedup", "final", "final_compile"),
    *("final_share", "final_sol", "final_rival", "final_rival_low", "final_rival_high"),
    *("final_bound", "final_beyond", "held_out", "held_out_speedup", "ceiling", "stopped", "unfit"),
)
"""The columns of `scores.csv`."""
SHOWN = {
    "correct": "correct",
    "geometric mean": "mean",
    "fast_1": "fast_1",
    "fast_2": "fast_2",
    "roofline": "roofline",
}
"""The measures in the printed table, with their headings, so that it fits into 100 columns."""


def scored(searches: Sequence[SearchProgress], *, against: str = "eager") -> list[Scored]:
    """The problems that could be searched, with their winner's speedup: that of the final measurement, or
    else of the search. `against`: `eager`, or `compile`, for which only the final measurement counts."""
    found = []
    for each in searches:
        if each.unfit:
            continue
        speedup = each.final if each.final is not None else each.speedup
        if against == "compile":
            speedup = each.final_compile or 0.0
        found.append(
            Scored(
                problem=each.problem,
                speedups=[speedup],
                compiled=[each.compiled],
                weight=each.weight,
                share=each.share,
                sol_score=each.final_sol if each.speedup else 0.0,
            )
        )
    return found


def of_arm(searches: Sequence[SearchProgress]) -> dict[str, Any]:
    """The measures and costs of one arm, as plain JSON types."""
    problems, compiled = scored(searches), scored(searches, against="compile")
    solved = sum(max(each.speedups) > 1 for each in problems)
    spent = {unit: sum(each.total(unit) for each in searches) for unit in COSTS}
    eager = {**measures(problems), **without_overhead(searches)} if problems else {}
    return {
        "problems": len(problems),
        "solved": solved,
        "against eager": {name: asdict(each) for name, each in eager.items()},
        "against compile": (
            {name: asdict(each) for name, each in measures(compiled).items()}
            if any(each.final_compile for each in searches)
            else {}
        ),
        "held out": asdict(held_out) if (held_out := held_out_summary(searches)) else None,
        "over rivals": asdict(rivals) if (rivals := over_rivals(searches)) else None,
        "spent": spent,
        "spent per solved problem": {unit: spent[unit] / solved if solved else None for unit in COSTS},
    }


def without_overhead(searches: Sequence[SearchProgress]) -> dict[str, Estimate]:
    """The geometric mean over problems with cases, without cases that are bound by overhead. Empty if no such
    problem has a final measurement."""
    measured = [each for each in searches if each.final_bound is not None]
    rest = [
        Scored(problem=each.problem, speedups=[each.final_beyond], compiled=[True], weight=each.weight)
        for each in measured
        if each.final_beyond is not None
    ]
    return {"without overhead": geometric_mean(rest)} if measured else {}


def over_budget(lines: Sequence[Mapping[str, Any]], arm: str, p: float = 1.0) -> list[tuple[float, float]]:
    """fast_p of an arm over the evaluations of its searches, from the lines of `campaign.jsonl`."""
    spent: dict[str, int] = {}
    solved: dict[str, bool] = {}
    unfit: set[str] = set()
    used = count = 0
    curve = []
    for line in lines:
        if not isinstance(line["value"], dict):
            continue
        search = SearchProgress.from_json(line["value"])
        if search.arm != arm:
            continue
        key, is_solved = search.key, not search.unfit and search.speedup > p
        used += search.evaluations - spent.get(key, 0)
        count += is_solved - solved.get(key, False)
        spent[key], solved[key] = search.evaluations, is_solved
        (unfit.add if search.unfit else unfit.discard)(key)
        curve.append((float(used), count))
    total = len(spent) - len(unfit) or 1
    return [(amount, found / total) for amount, found in curve]


def write(folder: Path, searches: Sequence[SearchProgress], seconds: float) -> list[str]:
    """Writes `campaign.json` and `scores.csv`; returns the lines to print."""
    arms = list(dict.fromkeys(each.arm for each in searches))
    by_arm = {arm: of_arm([each for each in searches if each.arm == arm]) for arm in arms}
    unfit = {each.problem: each.unfit for each in searches if each.unfit}
    body = {
        "seconds": seconds,
        "arms": by_arm,
        "not searched": unfit,
        "searches": [each.to_json() for each in searches],
    }
    write_atomically(folder / "campaign.json", json.dumps(plain(body, digits=None), indent=1) + "\n")
    with (folder / "scores.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for each in searches:
            rows.writerow(_row(each))
    return [
        *table(searches),
        "",
        *(f"{each.problem} ({each.arm}): {why}" for each in searches if (why := only_listed(each.held_out))),
        *(f"not searched: {name}: {why}" for name, why in unfit.items()),
    ]


def _row(each: SearchProgress) -> list[Any]:
    """A row of `scores.csv`."""
    special = {
        "dollars": each.total("dollars"),
        "held_out": f"{sum(one.passes for one in each.held_out)} of {len(each.held_out)}"
        if each.held_out
        else "",
        "held_out_speedup": held_out_speedup(each.held_out),
    }
    return [special[name] if name in special else getattr(each, name) for name in COLUMNS]


def table(searches: Sequence[SearchProgress]) -> list[str]:
    """Two lines per arm: the measures against eager PyTorch, and their 95 % intervals."""
    lines = [f"{'arm':<20}{'problems':>9}" + "".join(f"{name:>14}" for name in SHOWN.values())]
    for arm in dict.fromkeys(each.arm for each in searches):
        own = [each for each in searches if each.arm == arm]
        problems = scored(own)
        if not problems:
            lines.append(f"{arm:<20}{0:>9}")
            continue
        found = measures(problems)
        shown = [found.get(name, UNKNOWN) for name in SHOWN]
        lines.append(f"{arm:<20}{len(problems):>9}" + "".join(f"{_short(each):>14}" for each in shown))
        lines.append(f"{'':<29}" + "".join(f"{each.interval:>14}" for each in shown))
        lines += [*_beyond(own), *_on_held_out(own), *_beside_rivals(own)]
    return lines


def _beyond(searches: Sequence[SearchProgress]) -> list[str]:
    """A line with the mean speedup without the cases that are bound by overhead, if there are any."""
    bound = sum(each.final_bound or 0 for each in searches)
    if not bound:
        return []
    mean = without_overhead(searches)["without overhead"]
    cases = f"{bound} case{'s' * (bound != 1)} bound by overhead"
    return [f"{'':<20}without {cases}: mean {mean}"]


def _on_held_out(searches: Sequence[SearchProgress]) -> list[str]:
    """A line with the winners' speedup in held-out configurations, if any were judged."""
    found = held_out_summary(searches)
    return [f"{'':<20}held-out configurations: {found}"] if found else []


def _beside_rivals(searches: Sequence[SearchProgress]) -> list[str]:
    """A line with the winners' speedup over the best public kernels, if the suite names any."""
    found = over_rivals(searches)
    return [f"{'':<20}over the best public kernels: mean {found}"] if found else []


def over_rivals(searches: Sequence[SearchProgress]) -> Estimate | None:
    """The geometric mean of the winners' speedups over the best public kernels; None if none was compared."""
    compared = [(each, each.final_rival) for each in searches if each.final_rival is not None]
    return mean_speedup(compared) if compared else None


def _short(estimate: Estimate) -> str:
    return "-" if math.isnan(estimate.value) else f"{estimate.value:.3g}"
