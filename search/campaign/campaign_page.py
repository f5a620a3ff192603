"""`report.html` of a campaign, made from its `campaign.jsonl` and, if it has ended, `campaign.json`."""

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
from search.run.winner_checks import held_out_speedup, only_listed

SCRIPTS = ("elements.js", "plots.js", "arms.js", "campaign.js")
BASELINES = ("eager", "compile")


def has_campaign(folder: Path) -> bool:
    """Whether the folder has a campaign."""
    return (folder / "campaign.jsonl").exists()


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of the campaign in the folder to `out`, by default its `report.html`, and returns the
    file. Raises OSError, and ValueError for files that are no results."""
    place, data = out or folder / "report.html", page_data(folder)
    arms, problems = len(data["arms"]), data["total"]["problems"]
    title = f"{arms} arm{'s' * (arms != 1)} on {problems} problem{'s' * (problems != 1)}"
    name = folder.resolve().name
    write_atomically(place, render_page("campaign.html.j2", SCRIPTS, name=name, title=title, data=data))
    return place


def page_data(folder: Path) -> dict[str, Any]:
    """The data of the page, as plain JSON types, with the last state of each search."""
    lines = whole_lines((folder / "campaign.jsonl").read_bytes())
    results = folder / "campaign.json"
    body = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    searches = _searches(lines, body)
    seconds = [line["value"] for line in lines if line["key"] == SECONDS]
    arms = dict.fromkeys(each.arm for each in searches)
    by_arm = {arm: [each for each in searches if each.arm == arm] for arm in arms}
    shown: dict[str, Any] = plain(
        {
            "name": folder.resolve().name,
            "command": _command(folder),
            "ended": bool(body),
            "total": _total(searches, max([body.get("seconds", 0.0), *seconds])),
            "arms": [_arm(arm, own, lines) for arm, own in by_arm.items()],
            "searches": [
                _search(each, folder) for each in sorted(searches, key=lambda each: -_reached(each))
            ],
        }
    )
    return shown


def _searches(lines: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> list[SearchProgress]:
    """The searches: in the campaign's order if it has ended, otherwise those that have begun."""
    found = [*body.get("searches", ()), *(line["value"] for line in lines if isinstance(line["value"], dict))]
    return list({each.key: each for each in map(SearchProgress.from_json, found)}.values())


def _command(folder: Path) -> str | None:
    """The command that began the campaign; None if it was another program."""
    stored = folder / ".hydra" / "overrides.yaml"
    if not stored.exists():
        return None
    return shlex.join(["python", "-m", "search.campaign", *map(str, OmegaConf.load(stored))])


def _total(searches: Sequence[SearchProgress], seconds: float) -> dict[str, Any]:
    """The campaign as a whole, with the fastest kernel of any arm for each problem."""
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
        "held_out": measured["held out"],
        "over_rivals": measured["over rivals"],
        "spent": measured["spent"],
        "per_solved": measured["spent per solved problem"],
        "shares": {
            baseline: _shares(scored(own, against=baseline)) for baseline in BASELINES if against[baseline]
        },
        "budget": _thinned(over_budget(lines, name)),
    }


def _shares(problems: Sequence[Scored]) -> list[tuple[float, float]]:
    """fast_p as steps: for each speedup that was reached, the weighted share of problems that are faster. The
    first step, at 0, is the share with a correct kernel."""
    total = sum(each.weight for each in problems)
    steps = sorted({0.0, *(max(each.speedups) for each in problems)})
    return [
        (step, sum(each.weight for each in problems if max(each.speedups) > step) / total) for step in steps
    ]


def _thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The curve from 0, reduced to the points where the share changes, and its end."""
    steps = [(0.0, 0.0), *curve]
    changed = [after for before, after in itertools.pairwise(steps) if after[1] != before[1]]
    return [steps[0], *changed, steps[-1]]


def _reached(each: SearchProgress) -> float:
    """The speedup as in `results.scored`; below all others if the problem was not searched."""
    if each.unfit:
        return -math.inf
    return each.final if each.final is not None else each.speedup


def _search(each: SearchProgress, folder: Path) -> dict[str, Any]:
    path = f"{each.problem}/{each.arm}/report.html"
    reached = _reached(each)
    state = "can continue" if each.slices else "not started"
    result = "faster than eager" if reached > 1 else "correct" if reached > 0 else "none correct"
    return {
        **{key: getattr(each, key) for key in ("problem", "arm", "weight", "evaluations", "speedup")},
        **{key: getattr(each, key) for key in ("final", "final_compile", "ceiling")},
        **{unit: each.total(unit) for unit in ("seconds", *COSTS[1:])},
        "state": "not searched" if each.unfit else "stopped" if each.stopped else state,
        "result": None if each.unfit else result,
        "why": each.unfit or each.stopped,
        "roofline_share": reached / each.ceiling if each.ceiling and reached > 0 else None,
        **{key: getattr(each, key) for key in ("final_rival", "final_rival_low", "final_rival_high")},
        "held_out": [asdict(one) for one in each.held_out],
        "held_out_passed": sum(one.passes for one in each.held_out),
        "held_out_speedup": held_out_speedup(each.held_out),
        "only_listed": only_listed(each.held_out),
        "slices": [
            (used, part.speedup)
            for used, part in zip(
                itertools.accumulate(part.evaluations for part in each.slices), each.slices, strict=True
            )
        ],
        "report": link_to(folder, path),
    }
