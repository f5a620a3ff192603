"""Compares strategies at equal budget, on the same problems and seeds:

    ideatree compare problem=level1/softmax strategies=[idea_branching,best_of_n] seeds=5 \\
        budget.evaluations=200
    ideatree compare problem=landscape proposer=landscape strategies=[idea_branching,puct] \\
        budget.evaluations=100 seeds=200
    ideatree compare resume=outputs/compare/2026-01-31_12-00-00

`promptings=[full,no_reflection]` compares prompting policies, which set what prompts tell a language model.
`arms` compares any other settings: each arm has a name of your choice and a list of overrides, as in
`'arms.shown=["history=all"]' 'arms.hidden=["history=none"]'`. The inherited keys are those of `ideatree run`;
they apply to all searches. `landscape` is a synthetic problem that needs no device. The searches of a seed
run concurrently and share one evaluator. A resumed comparison runs only the searches that have not ended.
`report.html` shows the results so far; it is written at most once a minute, and when the comparison ends or
is interrupted. Nothing is logged to Weights & Biases unless you set `wandb=offline` or `wandb=online`; each
search is then logged in a group that has the comparison's name.

Exit status: 0 when all searches have ended, 1 when one failed, 2 when the call was wrong, 130 when the
comparison was interrupted.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import (
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
from search.app.overrides import arms_of, key_of, without
from search.app.resuming import restore_overrides
from search.app.run_folders import NEW_FOLDER, refuse_if_begun
from search.compare.comparison_page import write_page
from search.compare.curves import UNITS, Searched
from search.compare.plan import ComparisonPlan
from search.compare.searching import search_all
from search.compare.summary import write
from search.records.journal import JournalError
from search.run.config import RunConfig
from search.run.searches import gives_verdicts, run_with_report

OWN = (
    "strategies",
    "promptings",
    "arms",
    "seeds",
    "seeds_at_once",
    "problems_at_once",
    "share_verdicts",
    "held_out",
    "problems",
    "primary",
    "resume",
    "hydra",
)


@dataclass
class CompareConfig(RunConfig):
    """The config of `ideatree compare`."""

    strategies: list[str] = option([], "strategies to compare")
    promptings: list[str] = option([], "prompting policies to compare: what prompts tell a language model")
    arms: dict[str, Any] = option({}, "other settings to compare: overrides of `ideatree run`, by name")
    seeds: int = option(5, "searches per arm and problem, with the seeds `seed`, `seed`+1, …")
    seeds_at_once: int = option(1, "seeds whose searches run concurrently")
    problems_at_once: int = option(
        1, "problems whose searches run concurrently; worthwhile if models are slower than devices"
    )
    share_verdicts: bool = option(
        True, "evaluate a kernel once and use its verdict, with the same time, in all searches"
    )
    held_out: int = option(
        0, "configurations that no search saw, in which each winner is judged at the end; 0: none"
    )
    problems: list[str] = option([], "further problems, in addition to `problem`")
    primary: list[str] = option([], "the two arms whose difference is the primary contrast: `primary=[a,b]`")
    rounds: int = option(100_000, "rounds of a search; by default the budget ends it")
    hydra: Any = hydra_settings({**NEW_FOLDER, "run": {"dir": "${out}/compare/${now:%Y-%m-%d_%H-%M-%S}"}})


@command(
    "search.compare",
    CompareConfig,
    __doc__,
    JournalError,
    expand=partial(restore_overrides, what="comparison"),
)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    console = Console()
    log_to(console)
    positive(config, "seeds", "seeds_at_once", "problems_at_once")
    comparison = plan(config, given_overrides(), output_folder(), given_config_folders())
    refuse_if_begun(comparison.results, "comparison")
    say(console, f"comparison: {shown(comparison.folder)}")

    async def work(on_change: Callable[[], None]) -> list[Searched]:
        return await search_all(config, comparison, console, on_change)

    def summary(_: list[Searched] | None) -> list[str] | None:
        ended = comparison.ended()
        return write(comparison, ended) if ended else None

    run_with_report(work, summary, write_page, comparison.folder, console, wanted=bool(config.report))
    ended = comparison.ended()
    failed = [each for each in ended if each.failed]
    say(console, *(f"{each.arm} on {each.problem}, seed {each.seed}: {each.reason}" for each in failed))
    return 1 if failed or len(ended) < len(comparison.searches) else 0


def plan(
    config: DictConfig, given: Sequence[str], folder: Path, config_folders: Sequence[str] = ()
) -> ComparisonPlan:
    """The searches of a comparison, whose config was made by the overrides `given`. `config_folders`: the
    override by which Hydra finds the user's own configs. Raises UsageError."""
    if config.promptings and "mistakes" not in config.proposer:
        raise UsageError("promptings=[…] are for language models; also set proposer=llm or proposer=mailbox")
    named_arms: list[tuple[str, Sequence[str]]] = [
        *((name, (f"strategy={name}",)) for name in config.strategies),
        *((name, (f"prompting={name}",)) for name in config.promptings),
        *arms_of(config).items(),
    ]
    arms = dict(named_arms)
    names = [name for name, _ in named_arms]
    if same := [name for name in arms if names.count(name) > 1]:
        raise UsageError(f"two arms have the same name: {min(same)}; rename one, or leave it out")
    if len(arms) < 2:
        raise UsageError(
            "a comparison needs at least two strategies=[…], promptings=[…] or arms: strategies=[beam,puct]"
        )
    if config.primary and (len(set(config.primary)) != 2 or not set(config.primary) <= set(arms)):
        raise UsageError(
            f"primary=[{','.join(config.primary)}] must name two of the arms, which are {', '.join(arms)}"
        )
    limits = {key: config.budget[key] for key in ("evaluations", "seconds", "calls", "tokens", "dollars")}
    if all(limit is None for limit in limits.values()) and config.rounds == CompareConfig.rounds:
        raise UsageError(
            "a comparison needs a budget: set budget.evaluations=…, seconds, calls, tokens or dollars"
        )
    logged = config.wandb.mode != "off" and any(each.startswith("wandb") for each in given)
    if logged and gives_verdicts(config):
        raise UsageError("searches without a device are not logged to W&B: remove wandb=…")
    named = [each for each in given if each.startswith("problem=")]
    problems: dict[str, Sequence[str]] = {
        named[-1].partition("=")[2]: [each for each in given if key_of(each) == "problem"]
    }
    problems |= {name: (f"problem={name}",) for name in config.problems}
    return ComparisonPlan(
        folder=folder,
        arms=arms,
        problems=problems,
        seeds=tuple(range(config.seed, config.seed + config.seeds)),
        shared=(*config_folders, f"rounds={config.rounds}", *without(given, *OWN, "problem", "seed")),
        unit=next((unit for unit in UNITS if limits.get(unit) is not None), UNITS[0]),
        command=shlex.join(["python", "-m", "search.compare", *given]),
        primary=tuple(config.primary),
    )


if __name__ == "__main__":
    sys.exit(main())
