"""Runs a small campaign on landscapes, for its folder."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from search.campaign.results import write
from search.campaign.running import Campaign, CampaignRun
from search.campaign.schedulers import Equal
from search.campaign.slices import SearchProgress, StopRules
from search.run.searches import PlannedSearch

ATTACK = "<script>document.title='taken over'</script>"
ARMS = {"branching": "idea_branching", "many": "best_of_n"}
MOVES = {
    f"landscape/{ATTACK}": 12,
    "landscape/broken": 3,
    "landscape/small": 2,
    "landscape/large": 16,
}
CEILING = 3.0
"""The ceiling of the large landscape, as if its roofline were known."""


def planned(folder: Path, problem: str, arm: str) -> PlannedSearch:
    """A search whose kernels can become faster, the more moves the landscape has."""
    return PlannedSearch(
        problem=problem,
        arm=arm,
        weight=1.0,
        overrides=(
            "problem=nowhere" if problem == "landscape/broken" else "problem=landscape",
            *("proposer=landscape", "library.use=false", "branch=2", "rounds=100000", "seed=3"),
            *(f"proposer.moves={MOVES[problem]}", "proposer.mean=0.25", "proposer.seed=1"),
            f"strategy={ARMS[arm]}",
        ),
        folder=folder / problem / arm,
        ceiling=CEILING if problem == "landscape/large" else None,
    )


def campaign(folder: Path) -> Campaign:
    """Four problems, one of which cannot be searched, and two arms."""
    return Campaign(
        folder=folder,
        planned=[planned(folder, problem, arm) for problem in MOVES for arm in ARMS],
        scheduler=Equal(),
        rules=StopRules(roofline=10.0),
        slice=8,
        at_once=2,
        limits={"evaluations": 6 * 24},
    )


def searched(folder: Path) -> list[SearchProgress]:
    """Runs it and writes the results, with what a landscape lacks: times of `torch.compile`, costs, a reason
    to stop that is an attack, and a search's report."""
    plan = campaign(folder)
    run = CampaignRun(plan, None, "cpu", lambda run: None)
    asyncio.run(run.run())
    for at, each in enumerate(run.searches):
        if each.unfit:
            continue
        slices = tuple(dataclasses.replace(part, dollars=0.05) for part in each.slices)
        compared = each.final * 0.7 if each.final is not None else None
        stopped = ATTACK if at == 0 else each.stopped
        run.keep(dataclasses.replace(each, slices=slices, final_compile=compared, stopped=stopped))
    write(folder, run.searches, run.seconds)
    (folder / "landscape/large/many/report.html").write_text("a report")
    return run.searches
