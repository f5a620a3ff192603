"""Searches many problems, with one or several arms, under one budget:

    ideatree campaign suite=kernelbench/level1 budget.evaluations=2000
    ideatree campaign suite=shipped 'arms.a=["llm=local"]' 'arms.b=["llm=openai"]' budget.dollars=50
    ideatree campaign resume=outputs/campaign/2026-01-31_12-00-00

An arm is a list of overrides of `search.run`; without `arms` there is one, `search`. The budget is spent in
slices: the scheduler gives the next slice to the search that is expected to gain most (`scheduler=equal`: the
same number to each), and the stop rules `stop.*` end searches that are stuck or near their roofline. Results
are written slice by slice, and `resume=` continues a campaign that was interrupted or killed. At the end
each winner is measured again, judged in `held_out` configurations that no search saw, and compared with the
best public kernel if the suite names one. `report.html` is written at most once a minute, and when the
campaign ends or is interrupted.

Exit status: 0 when it ended at its limits, 1 when a search failed, 2 when the call was wrong, 130 when it was
interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from evaluators.app.command import (
    build,
    command,
    given_config_folders,
    given_overrides,
    log_to,
    output_folder,
    say,
    shown,
)
from evaluators.app.config import group, hydra_settings
from evaluators.app.kernel_file import read_kernel
from evaluators.app.suite_config import chosen_entries
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from search.app.overrides import arms_of, without
from search.app.resuming import restore_overrides
from search.app.run_folders import NEW_FOLDER, refuse_if_begun
from search.campaign.campaign_page import has_campaign, write_page
from search.campaign.campaign_view import CampaignView
from search.campaign.config import SearchesConfig, check_searches, searches_at_once
from search.campaign.results import write
from search.campaign.running import LIMITS, Campaign, CampaignRun
from search.campaign.slices import StopRules
from search.records.journal import JournalError
from search.run.searches import planned_searches, run_with_report, shared_evaluator

OWN = (
    "suite",
    "only",
    "arms",
    "scheduler",
    "stop",
    "slice",
    "at_once",
    "budget",
    "resume",
    "hydra",
    "device",
    "held_out",
    "problem.sizes",
)
"""Keys of the campaign itself; all others go to its searches."""


@dataclass
class CampaignConfig(SearchesConfig):
    """The config of `ideatree campaign`."""

    suite: Any = group(None)
    only: list[str] = option([], "problems of the suite: numbers, names, or patterns with *; []: all")
    arms: dict[str, Any] = option({}, "settings to compare: overrides of `ideatree run`, by name; {}: one")
    scheduler: Any = group("gain")
    held_out: int = option(
        4, "configurations that no search saw, in which each winner is judged at the end; 0: none"
    )
    hydra: Any = hydra_settings({**NEW_FOLDER, "run": {"dir": "${out}/campaign/${now:%Y-%m-%d_%H-%M-%S}"}})


@command(
    "search.campaign",
    CampaignConfig,
    __doc__,
    JournalError,
    expand=partial(restore_overrides, what="campaign"),
)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    console = Console()
    log_to(console)
    check_searches(config)
    campaign = plan(config, given_overrides(), output_folder())
    refuse_if_begun(campaign.kept, "campaign")
    say(console, f"campaign: {shown(campaign.folder)}")

    async def work(on_kept: Callable[[], None]) -> CampaignRun:
        with CampaignView(console) as view, shared_evaluator(config, queues=True) as (pool, devices):
            sized = replace(campaign, at_once=searches_at_once(config, devices))
            run = CampaignRun(sized, pool, config.device, view.show, on_kept)
            await run.run()
            return run

    def summary(run: CampaignRun | None) -> list[str] | None:
        if run is None:
            return [] if has_campaign(campaign.folder) else None
        return write(campaign.folder, run.searches, run.seconds)

    run = run_with_report(work, summary, write_page, campaign.folder, console, wanted=bool(config.report))
    failed = [each for each in run.searches if each.failed]
    say(console, *(f"{each.arm} on {each.problem}: {each.stopped}" for each in failed))
    return 1 if failed else 0


def plan(config: DictConfig, given: Sequence[str], folder: Path) -> Campaign:
    """The searches of a campaign. Raises UsageError."""
    limits = {unit: config.budget[unit] for unit in LIMITS}
    if all(limit is None for limit in limits.values()):
        raise UsageError(
            "a campaign needs a budget: set budget.evaluations=…, seconds, calls, tokens or dollars"
        )
    shared = [*given_config_folders(), f"rounds={config.rounds}", *without(given, *OWN)]
    sizes: Any = OmegaConf.to_container(config.problem.sizes)
    entries = {entry.problem: entry for entry in chosen_entries(build(config.suite), config)}
    problems = {name: (f"problem={name}",) for name in entries}
    planned = planned_searches(folder, problems, arms_of(config) or {"search": ()}, shared)
    return Campaign(
        folder=folder,
        planned=[replace(each, weight=entries[each.problem].weight, sizes=sizes) for each in planned],
        scheduler=build(config.scheduler),
        rules=StopRules(**config.stop),
        slice=config.slice,
        at_once=searches_at_once(config, devices=1),
        limits=limits,
        held_out=config.held_out,
        rivals={
            name: read_kernel(Path(entry.rival), "auto") for name, entry in entries.items() if entry.rival
        },
    )


if __name__ == "__main__":
    sys.exit(main())
