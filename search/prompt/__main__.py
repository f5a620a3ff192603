"""Shows what a model is asked, without asking it:

    python -m search.prompt problem=level1/conv2d                   the first question for ideas
    python -m search.prompt run=outputs/…                           a run's next question for ideas
    python -m search.prompt run=outputs/… idea=<id>                 the question for an idea's code
    python -m search.prompt run=outputs/… variant=<id>              the question for a variant's repair
    python -m search.prompt run=outputs/… call=000012               a recorded call, unchanged

All keys of `ideatree run` work too: `history=summary proposer.examples=false problem.sizes.n=512 …`.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from evaluators.app.command import CommandCall, build, choose_device, command, compose_config
from evaluators.app.config import NO_FOLDER, group, hydra_settings
from evaluators.app.words import quoted
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Problem
from search.app.resuming import NO_HYDRA_FILES, stored_config, value_of
from search.models.client import ModelClient
from search.proposers.llm.proposer import LLMProposer
from search.protocols import RunContext, Strategy, View
from search.records.budget import Budget
from search.records.journal import replay
from search.records.model_calls import Question
from search.records.run_state import RunState, rebuild
from search.records.tree import drop_ins, shown_history
from search.run.config import RunConfig

OWN = ("run", "idea", "variant", "call")


@dataclass
class PromptConfig(RunConfig):
    """The command's config."""

    proposer: Any = group("llm")
    run: str | None = option(None, "run folder whose next question to show; null: a new search's first")
    idea: str | None = option(None, "id of the run's idea whose code question to show")
    variant: str | None = option(None, "id of the run's variant whose repair question to show")
    call: str | None = option(None, "number of the run's recorded call to show, such as 000012")
    hydra: Any = hydra_settings(NO_FOLDER)


def expand(overrides: Sequence[str]) -> CommandCall:
    """A run uses its stored config. If its proposer was not a language model, the default one renders the
    prompts. Raises UsageError."""
    own = {key: value for key in OWN if (value := value_of(overrides, key)) is not None}
    others = [each for each in overrides if each.partition("=")[0] not in OWN]
    given = [*others, *(f"{key}={quoted(value)}" for key, value in own.items())]
    if "run" not in own:
        for key in own:
            raise UsageError(f"{key}=… belongs to a run; also give run=<its folder>")
        return CommandCall(overrides=given)
    stored = stored_config(Path(own["run"]), "run", PromptConfig)
    if "prompts" not in stored.proposer:
        stored.proposer = compose_config(PromptConfig, ["problem=level1/conv2d"]).proposer
    return CommandCall(overrides=[*given, "hydra.run.dir=.", *NO_HYDRA_FILES], stored=stored)


@command("search.prompt", PromptConfig, __doc__, ValueError, expand=expand)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    folder = Path(config.run) if config.run is not None else None
    if folder is not None and config.call is not None:
        print(_recorded(folder, config.call))  # noqa: T201  (the command's output)
    else:
        question = _question(config, folder)
        print(f"{question.system}\n{question.prompt}")  # noqa: T201  (the command's output)
    return 0


def _question(config: DictConfig, folder: Path | None) -> Question:
    """What a search with this config would ask next, at the point where the run is. Raises UsageError."""
    state = rebuild(replay(folder / "journal.jsonl")) if folder else RunState()
    problem: Problem = state.started.problem if state.started else _problem(config)
    proposer: LLMProposer = build(config.proposer)
    proposer.begin(_context(problem, folder, state, config.history))
    tree = state.tree
    if (variant_id := config.variant) is not None:
        if variant_id not in tree.variants:
            raise UsageError(f"variant={variant_id}: the run has no such variant")
        variant = tree.variants[variant_id]
        if variant.evaluation is None:
            raise UsageError(f"variant={variant_id} has no verdict yet")
        return proposer.repair_question(problem, tree.ideas[variant.idea], variant)
    entries = state.started.entries if state.started else ()
    if (idea_id := config.idea) is not None:
        if idea_id not in tree.ideas:
            raise UsageError(f"idea={idea_id}: the run has no such idea")
        idea = tree.ideas[idea_id]
        seeds = {entry.id: entry for entry in entries} | {v.id: v.seed for v in tree.variants.values()}
        return proposer.code_question(problem, idea, seeds.get(idea.parent), 1, int(config.branch))
    number = tree.rounds_closed + 1
    strategy: Strategy = build(config.strategy)
    view = View(
        tree=tree.before(number),
        entries=drop_ins(entries),
        round=number,
        left=strategy.ideas,
        exhausted=state.exhausted(before=number),
    )
    asked = strategy.ask(view, random.Random(f"{config.seed}/{number}/0/select"))
    if asked is None:
        raise UsageError("the strategy has nothing to ask for at this point")
    expansion = replace(asked, round=number)
    history = shown_history(tree.before(number).history(), config.history)
    return proposer.ideas_question(problem, expansion, history, expansion.ideas)


def _problem(config: DictConfig) -> Problem:
    device, _ = choose_device(str(config.device), clustered=bool(config.ray.address))
    problem: Problem = build(config.problem, device=device)
    return problem


def _context(problem: Problem, folder: Path | None, state: RunState, history: str) -> RunContext:
    """The context of a run in which no model is called."""

    def never(_: object) -> None:
        raise AssertionError("no model is called here")

    path = (folder or Path()) / "model_calls.jsonl"
    return RunContext(
        problem=problem,
        folder=folder or Path(),
        state=state,
        entries=state.started.entries if state.started else (),
        facts=state.started.environment if state.started else {},
        model_client=ModelClient(budget=Budget(), path=path, report=never),
        history=history,
    )


def _recorded(folder: Path, id: str) -> str:
    """A recorded call of the run. Raises UsageError."""
    path = folder / "model_calls.jsonl"
    if not path.exists():
        raise UsageError(f"{path} does not exist: the run has called no model")
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            call = json.loads(line)
            if call["id"].lstrip("0") == id.lstrip("0"):
                return f"{call['system']}\n{call['prompt']}"
    raise UsageError(f"call={id}: the run has no such call")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is not an error
    sys.exit(main())
