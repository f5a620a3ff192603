"""Strategies compared at equal budget, on the same problems and seeds:

    python -m search.compare problem=level1/softmax strategies=[idea_branching,best_of_n] seeds=5 \\
        budget.evaluations=200
    python -m search.compare problem=landscape proposer=landscape strategies=[idea_branching,puct] \\
        budget.evaluations=100 seeds=200
    python -m search.compare resume=outputs/compare/2026-01-31_12-00-00

Every other key is that of `search.run`, the same for all searches. `arms` compares whatever can be set:
`'arms.told=["history=all"]' 'arms.untold=["history=none"]'`. The searches of a seed share the evaluator and
go on side by side; what has ended is not searched again when a comparison is resumed. `report.html` has
what has ended so far: it is written at most once in a minute, and when the comparison is interrupted.
`wandb=offline` or `wandb=online` logs each search, in one group with the comparison's name. Exit status 0
when all searches have ended, 130 when it was interrupted, 1 when one failed, 2 when the call was wrong.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import (
    CommandCall,
    command,
    given_config_folders,
    given_overrides,
    log_to,
    output_folder,
    positive,
    say,
    shown,
)
from evaluators.app.config import hydra_settings
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from search.app.overrides import WITHOUT_DEVICE, arms_of, key_of, without
from search.app.resuming import restore_overrides
from search.app.run_folders import page_at_the_end
from search.compare.comparison_page import write_page
from search.compare.curves import UNITS, Searched
from search.compare.plan import Arm, ComparisonPlan
from search.compare.searching import search_all
from search.compare.summary import write
from search.records.journal import JournalError
from search.report.fresh_page import FreshPage
from search.run.config import RunConfig

OWN = ("strategies", "arms", "seeds", "seeds_at_once", "share_verdicts", "problems", "resume", "hydra")


@dataclass
class CompareConfig(RunConfig):
    """The config of the command."""

    strategies: list[str] = option([], "what is compared: choices of the group strategy")
    arms: dict[str, Any] = option({}, "or anything else: overrides by name")
    seeds: int = option(5, "searches of each on each problem: the seeds from seed on")
    seeds_at_once: int = option(1, "of how many seeds the searches go on side by side")
    share_verdicts: bool = option(
        True,
        "a kernel that one search had measured is not measured again for another, and has one time in all",
    )
    problems: list[str] = option([], "further problems beside `problem`")
    rounds: int = option(100_000, "rounds of a search: the budget ends it")
    hydra: Any = hydra_settings({"run": {"dir": "${out}/compare/${now:%Y-%m-%d_%H-%M-%S}"}})


def expand(overrides: Sequence[str]) -> CommandCall:
    """A comparison that is resumed has the overrides that it began with. Raises UsageError."""
    return restore_overrides(overrides, "comparison")


@command("search.compare", CompareConfig, __doc__, JournalError, expand=expand)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    console = Console()
    log_to(console)
    positive(config, "seeds", "seeds_at_once")
    comparison = plan(config, given_overrides(), output_folder(), given_config_folders())
    say(console, f"comparison: {shown(comparison.folder)}")
    wanted = bool(config.report)
    page = FreshPage(lambda: _write_page(comparison), wanted=wanted)
    try:
        ended = asyncio.run(_search(comparison, console, page))
    except KeyboardInterrupt:
        _tell(comparison, comparison.ended(), console, wanted)
        raise
    _tell(comparison, ended, console, wanted)
    return 1 if len(ended) < len(comparison.searches) else 0


async def _search(comparison: ComparisonPlan, console: Console, page: FreshPage) -> list[Searched]:
    async with page.kept():
        return await search_all(comparison, console, page.change)


def _write_page(comparison: ComparisonPlan) -> None:
    """Of the searches that have ended so far, one at least."""
    write(comparison, comparison.ended())
    write_page(comparison.folder)


def _tell(comparison: ComparisonPlan, ended: Sequence[Searched], console: Console, wanted: bool) -> None:
    """Writes what the searches that have ended come to, if any have."""
    if ended:
        said = write(comparison, ended)
        say(console, *said, *page_at_the_end(write_page, comparison.folder, wanted))


def plan(
    config: DictConfig, given: Sequence[str], folder: Path, config_folders: Sequence[str] = ()
) -> ComparisonPlan:
    """The searches of a comparison; `given` are the overrides that made the config, `config_folders` those by
    which it found folders of the user's. Raises UsageError."""
    arms = [Arm(name=name, overrides=(f"strategy={name}",)) for name in config.strategies]
    arms += [Arm(name=name, overrides=overrides) for name, overrides in arms_of(config).items()]
    if len(arms) < 2:
        raise UsageError("a comparison needs two strategies=[…], or arms, at least")
    if len({arm.name for arm in arms}) < len(arms):
        raise UsageError("two arms have the same name")
    limits = {key: config.budget[key] for key in ("evaluations", "seconds", "calls", "tokens", "dollars")}
    if all(limit is None for limit in limits.values()) and config.rounds == CompareConfig.rounds:
        raise UsageError(
            "a comparison needs a budget: budget.evaluations=…, seconds, calls, tokens or dollars"
        )
    without_device = config.proposer.get("_target_") in WITHOUT_DEVICE
    if without_device and config.wandb.mode != "off" and any(each.startswith("wandb") for each in given):
        raise UsageError("searches without a device are not logged to W&B: leave wandb=… out")
    shared = without(given, *OWN, "problem", "seed")
    problem = [each for each in given if key_of(each) == "problem"]
    named = [each for each in given if each.startswith("problem=")]
    problems = {named[-1].partition("=")[2]: tuple(problem)}
    problems |= {name: (f"problem={name}",) for name in config.problems}
    return ComparisonPlan(
        folder=folder,
        arms=tuple(arms),
        problems=problems,
        seeds=tuple(range(config.seed, config.seed + config.seeds)),
        shared=(*config_folders, f"rounds={config.rounds}", *shared),
        without_device=without_device,
        unit=next((unit for unit in UNITS if limits.get(unit) is not None), UNITS[0]),
        seeds_at_once=config.seeds_at_once,
        shares_verdicts=config.share_verdicts,
        command=shlex.join(["python", "-m", "search.compare", *given]),
    )


if __name__ == "__main__":
    sys.exit(main())
