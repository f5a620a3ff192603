"""The config of `python -m search.run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evaluators.app.config import RayConfig, group, hydra_settings, section
from evaluators.base.option import option
from search.app.run_folders import RUN_FOLDER, RunFolderConfig
from search.engine.session import COMPARE_AT_MOST


@dataclass
class BudgetConfig:
    """Limits of a run; null: none."""

    evaluations: int | None = option(None, "null: no limit")
    seconds: float | None = option(None, "the proposer's thinking included")
    calls: int | None = option(None, "of models, failed ones counted")
    tokens: int | None = option(None, "of models")
    dollars: float | None = option(None, "for models")


@dataclass
class ReplayConfig:
    """For `proposer=replay`."""

    run: str | None = option(None, "for proposer=replay: the recorded run's folder, or a shipped recording")
    evaluations: bool = option(
        False, "take the recorded verdicts, too, instead of evaluating on this machine"
    )


@dataclass
class RunConfig(RunFolderConfig):
    """The config of the command."""

    strategy: Any = group("idea_branching")
    proposer: Any = group("playbook")
    llm: Any = group(["openai"])
    choice: Any = group("fixed")
    evaluator: Any = group("default")
    pool: Any = group("ray")
    library: Any = group("folder")
    rounds: int = option(13, "rounds of the search")
    ideas: int = option(4, "ideas a round")
    branch: int = option(8, "variants an idea")
    seed: int = option(0, "of every random choice: the same seed repeats a deterministic search")
    history: str = option("all", "what a proposer is told of earlier ideas: all | best | summary | none")
    compare_leaders: bool = option(
        True,
        "measure those that may be the fastest against one another before each round, too; at the end always",
    )
    repairs: int = option(
        1, "how often a variant that failed is given back to the model, with the evaluator's log"
    )
    comparisons: int = option(COMPARE_AT_MOST, "sessions at most, a round, that compare its leaders; 0: none")
    device: str = option("auto", "auto | cuda | cpu")
    budget: BudgetConfig = section(BudgetConfig)
    ray: RayConfig = section(RayConfig)
    resume: str | None = option(None, "a run folder to go on with")
    replay: ReplayConfig = section(ReplayConfig)
    hydra: Any = hydra_settings(RUN_FOLDER)
