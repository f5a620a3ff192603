"""The keys of `ideatree run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluators.app.config import DEVICE_HELP, RayConfig, group, hydra_settings, section
from evaluators.base.cause import first_line
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from search.app.run_folders import RUN_FOLDER, RunFolderConfig
from search.engine.pipeline import SAME_ROUND
from search.engine.session import COMPARE_AT_MOST
from search.records.budget import Budget


@dataclass
class BudgetConfig:
    """Limits of a run; null: no limit."""

    evaluations: int | None = option(None, "kernels to evaluate; null: no limit")
    seconds: float | None = option(
        None,
        "seconds of wall-clock time, with the proposer's thinking, without the wait for a queue's verdicts",
    )
    calls: int | None = option(None, "calls to language models, including failed ones")
    tokens: int | None = option(None, "input and output tokens of language models")
    dollars: float | None = option(None, "cost of language models, in dollars")


@dataclass
class ReplayConfig:
    """The recorded run that `proposer=replay` repeats."""

    run: str | None = option(None, "folder of the recorded run, or name of a shipped recording")
    evaluations: bool = option(
        False, "use the recorded verdicts instead of evaluating the recorded kernels on this machine"
    )


@dataclass
class RunConfig(RunFolderConfig):
    """The config of `ideatree run`."""

    strategy: Any = group("idea_branching")
    proposer: Any = group("playbook")
    llm: Any = group(["openai"])
    choice: Any = group("fixed")
    prompting: Any = group("full")
    evaluator: Any = group("default")
    pool: Any = group("ray")
    library: Any = group("folder")
    rounds: int = option(13, "rounds of the search")
    ideas: int = option(4, "ideas per round")
    branch: int = option(8, "variants per idea")
    seed: int = option(
        0,
        "seed of every random choice; with a deterministic proposer and a synchronous strategy, a search "
        "repeats as long as measurements rank the kernels alike",
    )
    history: str = option("all", "earlier ideas that the proposer is shown: all | best | summary | none")
    compare_leaders: bool = option(
        True, "measure the leading kernels against each other before each round, not only at the end"
    )
    repairs: int = option(1, "times a failed variant is returned to the model with the evaluator's log")
    repairs_in: str = option(
        SAME_ROUND,
        "when failed variants are repaired: same_round | next_round; next_round: together with the next "
        "round's variants, so that all kernels of a round, repaired ones included, are judged in one batch",
    )
    comparisons: int = option(
        COMPARE_AT_MOST,
        "largest number of comparisons of the leading kernels after one round, or at the end; 0: none",
    )
    race: bool = option(
        False,
        "judge kernels in two stages: all of them quickly, and in full only those that may become a seed or "
        "the winner",
    )
    pair_with_seed: bool = option(
        False,
        "time each correct kernel in alternating blocks with its seed too, so that the models see a narrow "
        "interval for the kernel's speedup over its seed",
    )
    profile: str = option(
        "off",
        "profile the best kernels before each round, for the prompts: off | static | trace | counters | auto",
    )
    probes: int = option(
        0,
        "probes (kernels that are only timed) that a model may request per round; 0: none",
    )
    device: str = option("auto", DEVICE_HELP)
    budget: BudgetConfig = section(BudgetConfig)
    ray: RayConfig = section(RayConfig)
    until: str = option(
        "end",
        "end | blocked; blocked: stop when only a mailbox's answers or a queue's verdicts are missing",
    )
    resume: str | None = option(None, "run folder to continue")
    replay: ReplayConfig = section(ReplayConfig)
    hydra: Any = hydra_settings(RUN_FOLDER)


def budget_of(limits: Mapping[str, Any]) -> Budget:
    """The budget with these limits. Raises UsageError."""
    try:
        return Budget(**limits)
    except ValueError as error:
        raise UsageError(first_line(error)) from error
