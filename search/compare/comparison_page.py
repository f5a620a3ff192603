"""`report.html` of a comparison, made from its `comparison.json` and `searches.jsonl`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluators.base.atomic_write import write_atomically
from evaluators.base.languages import LANGUAGES
from search.compare.curves import UNITS, Searched, curve, read_searches, spent_at_most
from search.compare.statistics import means
from search.report.html import link_to, plain, render_page
from search.run.winner_checks import held_out_speedup, only_listed

SCRIPTS = ("elements.js", "plots.js", "arms.js", "comparison.js")
STEPS = 100
"""Steps of each curve."""


def has_comparison(folder: Path) -> bool:
    """Whether the folder has the results of a comparison."""
    return (folder / "comparison.json").exists() and (folder / "searches.jsonl").exists()


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of the comparison in the folder to `out`, by default its `report.html`, and returns
    the file. Raises OSError, and ValueError for files that are no results."""
    place, data = out or folder / "report.html", page_data(folder)
    arms, problems = len(data["arms"]), data["problems"]
    title = f"{arms} arms on {problems[0] if len(problems) == 1 else f'{len(problems)} problems'}"
    name = folder.resolve().name
    write_atomically(place, render_page("comparison.html.j2", SCRIPTS, name=name, title=title, data=data))
    return place


def page_data(folder: Path) -> dict[str, Any]:
    """The data of the page, as plain JSON types."""
    body = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    searches = [each for each in read_searches(folder / "searches.jsonl") if each.arm in body["arms"]]
    most = {unit: spent_at_most(searches, unit) for unit in UNITS}
    units = [unit for unit in UNITS if any(most[unit].values())] or [UNITS[0]]
    problems = list(dict.fromkeys(each.problem for each in searches))
    by_problem = {problem: [each for each in searches if each.problem == problem] for problem in problems}
    arms = sorted(body["arms"], key=lambda arm: -body["arms"][arm]["value"])
    shown: dict[str, Any] = plain(
        {
            **{key: body[key] for key in ("seeds", "differences")},
            **{key: body.get(key) for key in ("command", "versions", "planned")},
            "name": folder.resolve().name,
            "unit": body["unit"] if body["unit"] in units else units[0],
            "units": units,
            "problems": problems,
            "arms": [_arm(arm, body, searches, most) for arm in arms],
            "by_problem": [
                {
                    "problem": problem,
                    "arms": {a: asdict(mean) for a, mean in means(by_problem[problem]).items()},
                }
                for problem in problems
                if len(problems) > 1
            ],
            "curves": [
                each
                for problem in problems
                for unit in units
                for each in _curves(by_problem[problem], unit, arms)
            ],
            "languages": [
                {"arm": arm, "language": LANGUAGES[name].title, **each}
                for arm, found in body.get("languages", {}).items()
                for name, each in found.items()
            ],
            "searches": [_search(each, folder) for each in searches],
        }
    )
    return shown


def _arm(
    name: str, body: Mapping[str, Any], searches: Sequence[Searched], most: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    own = [each for each in searches if each.arm == name]
    statuses: Counter[str] = Counter()
    for each in own:
        statuses.update(each.statuses)
    return {
        "name": name,
        "overrides": body.get("overrides", {}).get(name, []),
        "searches": len(own),
        "spent": {unit: by_arm.get(name, 0.0) for unit, by_arm in most.items()},
        "mean": body["arms"][name],
        "held_out": body.get("held out", {}).get(name),
        "statuses": dict(statuses.most_common()),
    }


def _curves(searches: Sequence[Searched], unit: str, arms: Sequence[str]) -> list[dict[str, Any]]:
    """The curves of one problem, each up to the most that a search of the arm has spent."""
    found = []
    for arm in arms:
        if own := [each for each in searches if each.arm == arm]:
            most = spent_at_most(own, unit)[arm]
            steps = min(STEPS, int(most)) if unit == "evaluations" else STEPS
            drawn = curve(own, unit, [most * step / max(steps, 1) for step in range(steps + 1)])
            found.append({"arm": arm, "problem": own[0].problem, "unit": unit, **asdict(drawn)})
    return found


def _search(each: Searched, folder: Path) -> dict[str, Any]:
    path = f"{each.problem}/{each.arm}/seed_{each.seed}/report.html"
    spent = asdict(each.points[-1])
    return {
        **{key: getattr(each, key) for key in ("problem", "arm", "seed", "reason", "final")},
        **{unit: spent[unit] for unit in UNITS},
        "held_out": [asdict(one) for one in each.held_out],
        "held_out_passed": sum(one.passes for one in each.held_out),
        "held_out_speedup": held_out_speedup(each.held_out),
        "only_listed": only_listed(each.held_out),
        "report": link_to(folder, path),
    }
