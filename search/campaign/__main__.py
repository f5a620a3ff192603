"""Many problems, and several arms, under one budget:

    python -m search.campaign suite=kernelbench/level1 budget.evaluations=2000
    python -m search.campaign suite=shipped 'arms.a=["llm=local"]' 'arms.b=["llm=openai"]' budget.dollars=50
    python -m search.campaign resume=outputs/campaign/2026-01-31_12-00-00

An arm is a list of overrides of `search.run`; without any there is one, `search`. Each search is given
the budget in slices: the scheduler gives the next one to the search that is expected to gain most
(`scheduler=equal`: the same to each), and the stop rules `stop.*` end those that are stuck or near their
roofline. What is found is kept slice by slice: a campaign that was killed goes on with `resume=`.
`report.html` has it: it is written at most once in a minute, and when the campaign is interrupted. Exit
status 0 when it ended at its limits, 130 when it was interrupted, 2 when the call was wrong.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from evaluators.app.command import (
    CommandCall,
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
from evaluators.app.device_config import host_of, settle_device
from evaluators.app.suite_config import chosen_entries
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.scheduler.pool import Pool
from search.app.overrides import WITHOUT_DEVICE, arms_of, without
from search.app.resuming import restore_overrides
from search.app.run_folders import page_at_the_end
from search.campaign.campaign_page import has_campaign, write_page
from search.campaign.campaign_view import CampaignView
from search.campaign.config import SearchesConfig, check_searches, searches_at_once
from search.campaign.results import write
from search.campaign.running import LIMITS, Campaign, CampaignRun, Planned
from search.campaign.slices import StopRules
from search.records.journal import JournalError
from search.report.fresh_page import FreshPage

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
    "problem.sizes",
)
"""Keys that are the campaign's; all others are those of its searches."""


@dataclass
class CampaignConfig(SearchesConfig):
    """The config of the command."""

    suite: Any = group(None)
    only: list[str] = option([], "of the suite's problems: numbers, names, or patterns with *")
    arms: dict[str, Any] = option({}, "what is compared: overrides by name")
    scheduler: Any = group("gain")
    hydra: Any = hydra_settings({"run": {"dir": "${out}/campaign/${now:%Y-%m-%d_%H-%M-%S}"}})


def expand(overrides: Sequence[str]) -> CommandCall:
    """A campaign that is resumed has the overrides that it began with. Raises UsageError."""
    return restore_overrides(overrides, "campaign")


@command("search.campaign", CampaignConfig, __doc__, JournalError, expand=expand)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    console = Console()
    log_to(console)
    check_searches(config)
    campaign = plan(config, given_overrides(), output_folder())
    say(console, f"campaign: {shown(campaign.folder)}")
    wanted = bool(config.report)
    page = FreshPage(lambda: write_page(campaign.folder), wanted=wanted)
    try:
        run = asyncio.run(_run(config, campaign, console, page))
    except KeyboardInterrupt:
        if has_campaign(campaign.folder):
            say(console, *page_at_the_end(write_page, campaign.folder, wanted))
        raise
    said = write(campaign.folder, run.searches, run.seconds)
    say(console, *said, *page_at_the_end(write_page, campaign.folder, wanted))
    return 0


async def _run(config: DictConfig, campaign: Campaign, console: Console, page: FreshPage) -> CampaignRun:
    with CampaignView(console) as view:
        async with page.kept():
            if config.proposer.get("_target_") in WITHOUT_DEVICE:
                run = CampaignRun(campaign, None, "cpu", view.show, page.change)
                await run.run()
                return run
            settle_device(config)
            host = host_of(config)
            campaign = replace(campaign, at_once=searches_at_once(config, host.devices))
            with Pool(host) as pool:
                run = CampaignRun(campaign, pool, config.device, view.show, page.change)
                await run.run()
            return run


def plan(config: DictConfig, given: Sequence[str], folder: Path) -> Campaign:
    """The searches of a campaign. Raises UsageError."""
    limits = {unit: config.budget[unit] for unit in LIMITS}
    if all(limit is None for limit in limits.values()):
        raise UsageError(
            "a campaign needs a budget: budget.evaluations=…, seconds, calls, tokens or dollars, of all"
        )
    shared = [*given_config_folders(), f"rounds={config.rounds}", *without(given, *OWN)]
    sizes: Any = OmegaConf.to_container(config.problem.sizes)
    arms = arms_of(config) or {"search": ()}
    planned = [
        Planned(
            problem=entry.problem,
            arm=arm,
            weight=entry.weight,
            overrides=(f"problem={entry.problem}", *shared, *overrides),
            folder=folder / entry.problem / arm,
            sizes=sizes,
        )
        for entry in chosen_entries(build(config.suite), config)
        for arm, overrides in arms.items()
    ]
    return Campaign(
        folder=folder,
        planned=planned,
        scheduler=build(config.scheduler),
        rules=StopRules(**config.stop),
        slice=config.slice,
        at_once=searches_at_once(config, devices=1),
        limits=limits,
    )


if __name__ == "__main__":
    sys.exit(main())
