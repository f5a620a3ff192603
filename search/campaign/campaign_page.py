"""`report.html` of a campaign, made of its `campaign.jsonl`, and of `campaign.json` where it has ended."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from evaluators.base.atomic_write import write_atomically
from evaluators.base.jsonl_store import whole_lines
from evaluators.records.scores import Scored, geometric_mean
from search.campaign.results import COSTS, of_arm, over_budget, scored
from search.campaign.running import SECONDS
from search.campaign.slices import SearchProgress
from search.report.html import link_to, plain, render_page

SCRIPTS = ("elements.js", "plots.js", "arms.js", "campaign.js")
BASELINES = ("eager", "compile")


def has_campaign(folder: Path) -> bool:
    """Whether a campaign has begun in the folder."""
    return (folder / "campaign.jsonl").exists()


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of the campaign in the folder, `report.html` there unless `out` says otherwise;
    returns the file. Raises OSError, and ValueError for results that are none."""
    place, data = out or folder / "report.html", page_data(folder)
    arms, problems = len(data["arms"]), data["total"]["problems"]
    title = f"{arms} arm{'s' * (arms != 1)} on {problems} problem{'s' * (problems != 1)}"
    name = folder.resolve().name
    write_atomically(place, render_page("campaign.html.j2", SCRIPTS, name=name, title=title, data=data))
    return place


def page_data(folder: Path) -> dict[str, Any]:
    """What the page shows, as plain JSON types: of each search what was kept last."""
    lines = whole_lines((folder / "campaign.jsonl").read_text(encoding="utf-8"))
    said_in = folder / "campaign.json"
    said = json.loads(said_in.read_text(encoding="utf-8")) if said_in.exists() else {}
    searches = _searches(lines, said)
    seconds = [line["value"] for line in lines if line["key"] == SECONDS]
    arms = dict.fromkeys(each.arm for each in searches)
    of = {arm: [each for each in searches if each.arm == arm] for arm in arms}
    shown: dict[str, Any] = plain(
        {
            "name": folder.resolve().name,
            "command": _command(folder),
            "ended": bool(said),
            "total": _total(searches, max([said.get("seconds", 0.0), *seconds])),
            "arms": [_arm(arm, own, lines) for arm, own in of.items()],
            "searches": [
                _search(each, folder) for each in sorted(searches, key=lambda each: -_reached(each))
            ],
        }
    )
    return shown


def _searches(lines: Sequence[Mapping[str, Any]], said: Mapping[str, Any]) -> list[SearchProgress]:
    """In the campaign's order, where that is known; of a campaign that goes on, those that have begun."""
    told = [*said.get("searches", ()), *(line["value"] for line in lines if isinstance(line["value"], dict))]
    return list({each.key: each for each in map(SearchProgress.from_json, told)}.values())


def _command(folder: Path) -> str | None:
    """That began it; None where it was no command."""
    stored = folder / ".hydra" / "overrides.yaml"
    if not stored.exists():
        return None
    return shlex.join(["python", "-m", "search.campaign", *map(str, OmegaConf.load(stored))])


def _total(searches: Sequence[SearchProgress], seconds: float) -> dict[str, Any]:
    """The campaign as a whole: of each problem the fastest kernel, whichever arm has found it."""
    best: dict[str, Scored] = {}
    for each in scored(searches):
        if each.problem not in best or max(each.speedups) > max(best[each.problem].speedups):
            best[each.problem] = each
    found = list(best.values())
    return {
        "problems": len({each.problem for each in searches}),
        "searched": len(found),
        "solved": sum(max(each.speedups) > 1 for each in found),
        "correct": sum(max(each.speedups) > 0 for each in found),
        "geometric mean": asdict(geometric_mean(found)),
        "seconds": seconds,
        **{unit: sum(each.total(unit) for each in searches) for unit in COSTS},
    }


def _arm(name: str, own: Sequence[SearchProgress], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    measured = of_arm(own)
    against = {baseline: measured[f"against {baseline}"] for baseline in BASELINES}
    return {
        "name": name,
        "searched": measured["problems"],
        "solved": measured["solved"],
        "against": against,
        "spent": measured["spent"],
        "per_solved": measured["spent per solved problem"],
        "shares": {
            baseline: _shares(scored(own, against=baseline)) for baseline in BASELINES if against[baseline]
        },
        "budget": _thinned(over_budget(lines, name)),
    }


def _shares(problems: Sequence[Scored]) -> list[tuple[float, float]]:
    """fast_p as steps: at each speedup that was reached, the weighted share of the problems that are faster;
    first, at 0, of those with a correct kernel."""
    total = sum(each.weight for each in problems)
    steps = sorted({0.0, *(max(each.speedups) for each in problems)})
    return [
        (step, sum(each.weight for each in problems if max(each.speedups) > step) / total) for step in steps
    ]


def _thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """From nothing on; where the share changes, and the end."""
    steps = [(0.0, 0.0), *curve]
    changed = [after for before, after in itertools.pairwise(steps) if after[1] != before[1]]
    return [steps[0], *changed, steps[-1]]


def _reached(each: SearchProgress) -> float:
    """As `results.scored` has it; below all others where nothing was searched."""
    if each.unfit:
        return -math.inf
    return each.final if each.final is not None else each.speedup


def _search(each: SearchProgress, folder: Path) -> dict[str, Any]:
    path = f"{each.problem}/{each.arm}/report.html"
    reached = _reached(each)
    state = "may go on" if each.slices else "not begun"
    result = "faster than eager" if reached > 1 else "correct" if reached > 0 else "none correct"
    return {
        **{key: getattr(each, key) for key in ("problem", "arm", "weight", "evaluations", "speedup")},
        **{key: getattr(each, key) for key in ("final", "final_compile", "ceiling")},
        **{unit: each.total(unit) for unit in ("seconds", *COSTS[1:])},
        "state": "not searched" if each.unfit else "stopped" if each.stopped else state,
        "result": None if each.unfit else result,
        "why": each.unfit or each.stopped,
        "roofline_share": reached / each.ceiling if each.ceiling and reached > 0 else None,
        "slices": [
            (used, part.speedup)
            for used, part in zip(
                itertools.accumulate(part.evaluations for part in each.slices), each.slices, strict=True
            )
        ],
        "report": link_to(folder, path),
    }
