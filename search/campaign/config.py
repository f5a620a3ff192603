"""The keys of commands whose searches share one budget."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig

from evaluators.app.command import positive
from evaluators.app.config import section
from evaluators.app.suite_config import RulesConfig
from evaluators.base.option import option
from search.run.config import BudgetConfig, RunConfig, budget_of


@dataclass
class StopConfig:
    """When a search stops."""

    patience: int = option(4, "stop after this number of consecutive slices that gain less than `stop.gain`")
    gain: float = option(0.01, "smallest gain per slice, in the logarithm of the speedup")
    roofline: float = option(0.95, "stop at this share of the speedup that the roofline allows")
    failures: int = option(40, "stop after this number of consecutive incorrect kernels")
    evaluations: int | None = option(None, "evaluations of one search; null: no limit")
    seconds: float | None = option(None, "seconds of one search; null: no limit")


SEARCHES_PER_DEVICE = 3
"""A search waits for its model part of the time; one additional search keeps a single device busy."""


@dataclass
class SearchesConfig(RunConfig):
    """The keys of a search, and of the budget that several share."""

    problem: RulesConfig = section(RulesConfig)
    stop: StopConfig = section(StopConfig)
    slice: int = option(20, "evaluations per slice of the budget")
    at_once: int | None = option(None, "searches to run concurrently; null: 3 per device, plus 1")
    rounds: int = option(100_000, "rounds of a search; by default the common budget ends it")
    compare_leaders: bool = option(
        False, "measure a search's leading kernels against each other before each round, not only at the end"
    )
    budget: BudgetConfig = section(BudgetConfig)


def check_searches(config: DictConfig) -> None:
    """Raises UsageError unless `slice`, `at_once` and the limits are positive."""
    budget_of(config.budget)
    positive(config, "slice", *(["at_once"] if config.at_once is not None else []))


def searches_at_once(config: DictConfig, devices: int) -> int:
    """The number of searches to run concurrently on this number of devices."""
    return int(config.at_once or SEARCHES_PER_DEVICE * devices + 1)
