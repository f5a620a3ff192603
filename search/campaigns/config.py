"""The part of a command's config that says how many searches share one budget."""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.config import section
from evaluators.option import option
from evaluators.suite_config import RulesConfig
from search.run import BudgetConfig, RunConfig


@dataclass
class StopConfig:
    """When a search is not gone on with."""

    patience: int = option(4, "slices in a row that gain less than `gain`")
    gain: float = option(0.01, "in the logarithm of the speedup")
    roofline: float = option(0.95, "share of the speedup that the roofline allows")
    failures: int = option(40, "evaluations in a row that are not correct")
    evaluations: int | None = option(None, "of one search")
    seconds: float | None = option(None, "of one search")


@dataclass
class SearchesConfig(RunConfig):
    """That of a search, of which there are several."""

    problem: RulesConfig = section(RulesConfig)
    stop: StopConfig = section(StopConfig)
    slice: int = option(20, "evaluations that a search is given at a time")
    at_once: int = option(4, "searches that go on side by side")
    rounds: int = option(100_000, "rounds of a search: the budget of all ends it")
    budget: BudgetConfig = section(BudgetConfig)
