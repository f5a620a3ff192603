"""Shows what a model is asked, without asking it:

    python -m search.prompt problem=level1/conv2d                   the first question for ideas
    python -m search.prompt run=outputs/…                           the next question for ideas of a run
    python -m search.prompt run=outputs/… idea=<id>                 the question for an idea's code
    python -m search.prompt run=outputs/… variant=<id>              the question for a variant's repair
    python -m search.prompt run=outputs/… call=000012               a call that was made, as it was made

Further keys are those of search.run: `history=summary proposer.examples=false problem.sizes.n=512 …`.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from evaluators.cli import UsageError, build, choose_device, command, compose_config, edit_config
from evaluators.problem import Problem
from search.budget import Budget
from search.cli import stored_config
from search.journal import replay
from search.llm import Question
from search.model_client import ModelClient
from search.proposers.llm.proposer import LLMProposer
from search.protocols import RunContext
from search.run_state import RunState, rebuild
from search.tree import drop_ins, shown_history

OWN = ("run", "idea", "variant", "call")


@command("search.prompt", __doc__, ValueError)
def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    own = {key: value for key, _, value in (a.partition("=") for a in arguments) if key in OWN}
    others = [a for a in arguments if a.partition("=")[0] not in OWN]
    print(_recorded(own) if own.get("call") else _text(_question(own, others)))  # noqa: T201  (what it is for)
    return 0


def _question(own: dict[str, str], others: Sequence[str]) -> Question:
    """What a search of this config, at the place where the run is, would ask next. Raises UsageError."""
    folder = Path(own["run"]) if own.get("run") else None
    if folder is None and (own.get("idea") or own.get("variant")):
        raise UsageError("an idea or a variant is one of a run: give run=<its folder>, too")
    config = _config(folder, others)
    state = rebuild(replay(folder / "journal.jsonl")) if folder else RunState()
    problem: Problem = state.started.problem if state.started else _problem(config)
    proposer: LLMProposer = build(config.proposer)
    proposer.begin(_context(problem, folder, state))
    tree = state.tree
    if variant_id := own.get("variant"):
        if variant_id not in tree.variants:
            raise UsageError(f"variant={variant_id}: the run has no such variant")
        variant = tree.variants[variant_id]
        if variant.evaluation is None:
            raise UsageError(f"variant={variant_id} has no verdict yet")
        return proposer.repair_question(problem, tree.ideas[variant.idea], variant)
    entries = state.started.entries if state.started else ()
    if idea_id := own.get("idea"):
        if idea_id not in tree.ideas:
            raise UsageError(f"idea={idea_id}: the run has no such idea")
        idea = tree.ideas[idea_id]
        seeds = {entry.id: entry for entry in entries} | {v.id: v.seed for v in tree.variants.values()}
        return proposer.code_question(problem, idea, seeds.get(idea.parent), 1, int(config.branch))
    number = tree.rounds_closed + 1
    rng = random.Random(f"{config.seed}/{number}/select")
    expansion = replace(
        build(config.strategy).select(tree.before(number), drop_ins(entries), rng)[0], round=number
    )
    history = shown_history(tree.before(number).history(), config.history)
    return proposer.ideas_question(problem, expansion, history, expansion.ideas)


def _config(folder: Path | None, others: Sequence[str]) -> DictConfig:
    """With a proposer that renders prompts, whoever proposed in the run."""
    if folder is None:
        return compose_config("run", [*others, *([] if _names("proposer", others) else ["proposer=llm"])])
    stored = stored_config(folder, "run")
    if "prompts" not in stored.proposer:
        problem = [] if _names("problem", others) else [f"problem={stored.problem.name}"]
        stored.proposer = compose_config("run", [*problem, "proposer=llm"]).proposer
    config = edit_config(stored, others)
    config.proposer.history = config.history
    return config


def _names(key: str, arguments: Sequence[str]) -> bool:
    return any(argument.startswith(f"{key}=") for argument in arguments)


def _problem(config: DictConfig) -> Problem:
    device, _ = choose_device(str(config.device), clustered=bool(config.ray.address))
    problem: Problem = build(config.problem, device=device)
    return problem


def _context(problem: Problem, folder: Path | None, state: RunState) -> RunContext:
    """Of a run in which nothing is called."""

    def never(_: object) -> None:
        raise AssertionError("nothing is called here")

    path = (folder or Path()) / "model_calls.jsonl"
    return RunContext(
        problem=problem,
        folder=folder or Path(),
        state=state,
        entries=state.started.entries if state.started else (),
        facts=state.started.environment if state.started else {},
        model_client=ModelClient(budget=Budget(), path=path, report=never),
    )


def _recorded(own: dict[str, str]) -> str:
    """A call of the run's record. Raises UsageError."""
    if not own.get("run"):
        raise UsageError("a call is one of a run: give run=<its folder>, too")
    path = Path(own["run"]) / "model_calls.jsonl"
    if not path.exists():
        raise UsageError(f"{path} is not there: the run has called no model")
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            call = json.loads(line)
            if call["id"].lstrip("0") == own["call"].lstrip("0"):
                return f"{call['system']}\n{call['prompt']}"
    raise UsageError(f"call={own['call']}: the run has no such call")


def _text(question: Question) -> str:
    return f"{question.system}\n{question.prompt}"


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error
    sys.exit(main())
