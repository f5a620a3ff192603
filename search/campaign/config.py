"""The part of a command's config that says how many searches share one budget."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig

from evaluators.app.command import positive
from evaluators.app.config import section
from evaluators.app.suite_config import RulesConfig
from evaluators.base.option import option
from search.run.config import BudgetConfig, RunConfig


@dataclass
class StopConfig:
    """When a search is not gone on with."""

    patience: int = option(4, "slices in a row that gain less than `gain`")
    gain: float = option(0.01, "in the logarithm of the speedup")
    roofline: float = option(0.95, "share of the speedup that the roofline allows")
    failures: int = option(40, "evaluations in a row that are not correct")
    evaluations: int | None = option(None, "of one search")
    seconds: float | None = option(None, "of one search")


SEARCHES_A_DEVICE = 3
"""A search waits for its model for some of the time; one more than that keeps a single device busy."""


@dataclass
class SearchesConfig(RunConfig):
    """That of a search, of which there are several."""

    problem: RulesConfig = section(RulesConfig)
    stop: StopConfig = section(StopConfig)
    slice: int = option(20, "evaluations that a search is given at a time")
    at_once: int | None = option(None, "searches that go on side by side; null: three a device, and one")
    rounds: int = option(100_000, "rounds of a search: the budget of all ends it")
    budget: BudgetConfig = section(BudgetConfig)


def check_searches(config: DictConfig) -> None:
    """Raises UsageError for numbers of searches, or of their evaluations, that nobody can give."""
    positive(config, "slice", *(["at_once"] if config.at_once is not None else []))


def searches_at_once(config: DictConfig, devices: int) -> int:
    """How many searches go on side by side on so many devices."""
    return int(config.at_once or SEARCHES_A_DEVICE * devices + 1)
