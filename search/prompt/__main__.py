"""Shows what a model is asked, without asking it:

    ideatree prompt problem=level1/conv2d                   the first question for ideas
    ideatree prompt problem=level1/conv2d facts=h200        the same, for a search on an H200
    ideatree prompt problem=level1/conv2d estimate=true     the search's calls, tokens and dollars
    ideatree prompt run=outputs/…                           a run's next question for ideas
    ideatree prompt run=outputs/… idea=<id>                 the question for an idea's code
    ideatree prompt run=outputs/… variant=<id>              the question for a variant's repair
    ideatree prompt run=outputs/… reflection=2              the question about a closed round
    ideatree prompt run=outputs/… call=000012               a recorded call, unchanged
    ideatree prompt run=outputs/… sections=true             how long the prompts' sections became

All keys of `ideatree run` work too: `history=summary proposer.examples=false problem.sizes.n=512 …`.
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from evaluators.app.command import CommandCall, build, choose_device, command, compose_config
from evaluators.app.config import NO_FOLDER, group, hydra_settings
from evaluators.app.words import quoted
from evaluators.base.jsonl_store import whole_lines
from evaluators.base.nearest import near
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Problem
from search.app.device_facts import device_facts, facts_of_this_cpu
from search.app.resuming import NO_HYDRA_FILES, stored_config, value_of
from search.engine.library_seeds import library_seeds
from search.models.client import ModelClient
from search.prompt.estimate import SearchPlan, estimate_lines
from search.prompt.sections import section_tables
from search.proposers.llm.proposer import LLMProposer
from search.protocols import Library, RunContext, Strategy, View
from search.records.budget import Budget
from search.records.journal import recorded_state
from search.records.model_calls import Question
from search.records.run_state import RunState
from search.records.tree import Category, Idea, Seed, drop_ins, shown_history
from search.run.config import RunConfig

OWN = ("run", "idea", "variant", "reflection", "call")


@dataclass
class PromptConfig(RunConfig):
    """The command's config."""

    proposer: Any = group("llm")
    run: str | None = option(None, "run folder whose next question to show; null: a new search's first")
    idea: str | None = option(None, "id of the run's idea whose code question to show")
    variant: str | None = option(None, "id of the run's variant whose repair question to show")
    reflection: str | None = option(None, "closed round of the run whose reflection question to show")
    call: str | None = option(None, "number of the run's recorded call to show, such as 000012")
    facts: str | None = option(
        None, "device that a new search's question is for: h100, h200, l40s, a100, a run or a recording"
    )
    sections: bool = option(False, "show how many characters each section of the run's prompts has, by round")
    estimate: bool = option(False, "show a new search's calls, tokens and dollars instead of a prompt")
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
    elif config.sections:
        if folder is None:
            raise UsageError("sections=true belongs to a run; also give run=<its folder>")
        print("\n".join(section_tables(folder)))  # noqa: T201  (the command's output)
    elif config.estimate:
        print("\n".join(_estimate(config)))  # noqa: T201  (the command's output)
    else:
        question = _question(config, *_begun(config, folder))
        print(f"{question.system}\n{question.prompt}")  # noqa: T201  (the command's output)
    return 0


def _estimate(config: DictConfig) -> list[str]:
    """The estimate for a new search with this config. Raises UsageError for a run."""
    if config.run is not None:
        raise UsageError("estimate=true is for a new search; leave run=… out")
    proposer, run = _begun(config, None)
    question = _question(config, proposer, run)
    idea = Idea(text="", category=Category.COMPUTE, parent="", round=1, proposer="")
    code = proposer.questions.code(run.problem, idea, None, [1], 1)
    plan = SearchPlan(
        rounds=config.rounds,
        ideas=config.ideas,
        variants=config.branch,
        seeds=config.strategy.get("keep", 1),
        repairs=config.repairs,
        probes=config.probes,
        together=bool(config.proposer.get("together")),
        screening=config.proposer.get("screening") or 1,
        reflects=bool(config.proposer.get("reflection")) and config.history != "none",
        ideas_characters=len(question.system) + len(question.prompt),
        code_characters=len(code.system) + len(code.prompt),
    )
    return estimate_lines(plan, proposer.models)


def _begun(config: DictConfig, folder: Path | None) -> tuple[LLMProposer, RunContext]:
    """The proposer, at the point where the run in `folder` is, or of a new search. Raises UsageError."""
    state = recorded_state(folder) if folder else RunState()
    proposer: LLMProposer = build(config.proposer)
    if state.started is not None:
        problem, facts, entries = state.started.problem, state.started.environment, state.started.entries
    else:
        problem, facts = _new_search(config)
        library: Library | None = build(config.library.kernels) if config.library.use else None
        entries = library_seeds(library, problem, facts) if library else ()
    context = _context(problem, folder, state, config, facts, entries)
    proposer.begin(context)
    return proposer, context


def _question(config: DictConfig, proposer: LLMProposer, run: RunContext) -> Question:
    """What a search with this config would ask next. Raises UsageError."""
    problem, state, entries, tree = run.problem, run.state, run.entries, run.state.tree
    if (variant_id := config.variant) is not None:
        if variant_id not in tree.variants:
            unknown = f"variant={variant_id}: the run has no such variant"
            raise UsageError(unknown + near(variant_id, tree.variants))
        variant = tree.variants[variant_id]
        if variant.evaluation is None:
            raise UsageError(f"variant={variant_id} has no verdict yet; resume the run, or name another one")
        return proposer.questions.repair(problem, tree.ideas[variant.idea], variant)
    if (idea_id := config.idea) is not None:
        if idea_id not in tree.ideas:
            raise UsageError(f"idea={idea_id}: the run has no such idea{near(idea_id, tree.ideas)}")
        idea = tree.ideas[idea_id]
        seeds = {entry.id: entry for entry in entries} | {v.id: v.seed for v in tree.variants.values()}
        branch = int(config.branch)
        numbers = range(1, branch + 1 if config.proposer.get("together") else 2)
        return proposer.questions.code(problem, idea, seeds.get(idea.parent), numbers, branch)
    if (closed := config.reflection) is not None:
        if closed not in map(str, range(1, tree.rounds_closed + 1)):
            raise UsageError(
                f"reflection={closed}: no such closed round; the run has closed {tree.rounds_closed}"
            )
        return proposer.questions.reflection(problem, int(closed))
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
        raise UsageError("the strategy has nothing to ask for at this point; give idea=… or variant=…")
    expansion = replace(asked, round=number)
    history = shown_history(tree.before(number).history(), config.history)
    return proposer.questions.ideas(problem, expansion, history, expansion.ideas)


def _new_search(config: DictConfig) -> tuple[Problem, dict[str, str]]:
    """The problem, on the device that the prompt is for, and the device's facts."""
    if config.facts is not None:
        facts = device_facts(str(config.facts))
        device = "cuda" if facts.get("architecture") else "cpu"
    else:
        device, _ = choose_device(str(config.device), clustered=bool(config.ray.address))
        facts = facts_of_this_cpu() if device == "cpu" else {}
    problem: Problem = build(config.problem, device=device)
    return problem, facts


def _context(
    problem: Problem,
    folder: Path | None,
    state: RunState,
    config: DictConfig,
    facts: Mapping[str, str],
    entries: Sequence[Seed],
) -> RunContext:
    """The context of a run in which no model is called."""

    def never(_: object) -> None:
        raise AssertionError("no model is called here")

    path = (folder or Path()) / "model_calls.jsonl"
    return RunContext(
        problem=problem,
        folder=folder or Path(),
        state=state,
        entries=entries,
        facts=facts,
        model_client=ModelClient(budget=Budget(), path=path, report=never),
        history=config.history,
        probes=config.probes,
    )


def _recorded(folder: Path, id: str) -> str:
    """A recorded call of the run. Raises UsageError."""
    path = folder / "model_calls.jsonl"
    if not path.exists():
        raise UsageError(f"{path} does not exist: the run has called no model")
    for call in whole_lines(path.read_bytes()):
        if call["id"].lstrip("0") == id.lstrip("0"):
            return f"{call['system']}\n{call['prompt']}"
    raise UsageError(f"call={id}: the run has no such call; its calls are listed in {path}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is not an error
    sys.exit(main())
