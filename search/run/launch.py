"""Runs the search that a config describes: checks it, builds its parts, and starts or resumes the engine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import (
    build,
    choose_device,
    one_of,
    positive,
    say,
)
from evaluators.app.device_config import host_of
from evaluators.base.cause import cause_of, first_line
from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import WorkerBroken
from evaluators.records.problem import Problem
from evaluators.scheduler.pool import Pool
from search.app.resuming import recorded_run
from search.app.run_folders import (
    DEVICES,
    OUTSTANDING_PER_LANE,
    check_wandb,
    keep_config,
    observers_of,
    places,
    places_at_the_end,
)
from search.engine.engine import Engine
from search.engine.run_folder import finalise
from search.engine.session import Session
from search.protocols import HasOwnEvaluator, KernelEvaluator, Proposer, Strategy
from search.recordings.verdicts import RecordedEvaluations
from search.records.budget import Budget
from search.records.events import RunFinished
from search.records.journal import Journal
from search.records.ranking import LOWER_END, MEDIAN
from search.records.run_state import RunState
from search.records.tree import HISTORY
from search.report.observer import ReportObserver


def settle(config: DictConfig, given: Sequence[str]) -> tuple[RunState | None, list[str]]:
    """Checks the config and chooses the device. Returns the run that is replayed, where one is, and a line on
    each thing that was not `given`, but chosen. Raises UsageError and JournalError."""
    chosen: list[str] = []
    if config.resume is not None:
        if "history" in config.proposer:
            config.proposer.history = config.history
    elif not any(each.startswith("proposer=") for each in given):
        chosen.append("proposer: playbook, the embedded catalogue of ideas (proposer=llm asks a model)")
    positive(config, "rounds", "ideas", "branch")
    positive(config, "repairs", "comparisons", least=0)
    _check_caps(config)
    one_of(config, "device", DEVICES)
    one_of(config, "history", HISTORY)
    check_wandb(config)
    recording = recorded_run(config)
    if recording is not None and config.replay.evaluations:
        assert recording.started is not None
        device, how = recording.started.problem.device, "the recording's"
    else:
        device, how = choose_device(str(config.device), clustered=bool(config.ray.address))
    if config.device == "auto":
        chosen.append(f"device: {device}, {how} (device=… to change)")
    config.device = device
    return recording, chosen


async def search(
    config: DictConfig,
    folder: Path,
    recording: RunState | None,
    console: Console,
    *,
    strategy: Strategy | None = None,
    proposer: Proposer | None = None,
    signals: bool = True,
    evaluator: KernelEvaluator | None = None,
    confirms: bool = True,
) -> RunFinished:
    """Runs the search that the config describes in the folder, or goes on with the run there. `recording`:
    the run that it replays. `strategy` and `proposer` stand in for the config's; `signals`:
    whether SIGINT and SIGTERM end it in order; `evaluator`: one that is open, and stays so; `confirms`: see
    `Session`. Raises UsageError."""
    problem: Problem = build(config.problem, device=config.device)
    proposer = proposer or build(config.proposer)
    if refusal := proposer.refusal(problem):
        raise UsageError(refusal)
    limits: dict[str, Any] = {"rounds": config.rounds, **config.budget}
    try:
        budget = Budget(**limits)
        strategy = strategy or build(config.strategy)
        judged_by, outstanding = _evaluator(config, recording, proposer, evaluator)
        beginning, measures = _beginning(config, recording, proposer)
        with judged_by as judge:
            with console.status(f"opening {problem.name} on {problem.device}"):
                facts = await judge.describe(problem)
            if config.resume is None:
                keep_config(folder, config)
            say(console, *places(config, folder))
            with Journal(folder / "journal.jsonl") as journal:
                session = Session(
                    problem=problem,
                    evaluator=judge,
                    journal=journal,
                    budget=budget,
                    observers=observers_of(
                        config, journal, console, limits, report=ReportObserver, recorded=not measures
                    ),
                    outstanding=outstanding,
                    environment=facts,
                    compares_each_round=config.compare_leaders,
                    confirms=confirms,
                    comparisons=config.comparisons,
                    **beginning,
                )
                engine = Engine(
                    session,
                    strategy=strategy,
                    proposer=proposer,
                    **{key: config[key] for key in ("seed", "history", "repairs")},
                )
                finished = await _run(engine, console, signals=signals)
    except WorkerBroken as error:
        raise UsageError(f"{problem.name} cannot be searched: {cause_of(str(error))}") from error
    except ValueError as error:
        raise UsageError(first_line(error)) from error
    say(console, *places_at_the_end(folder))
    return finished


def _beginning(
    config: DictConfig, recording: RunState | None, proposer: Proposer
) -> tuple[dict[str, Any], bool]:
    """What a session begins with, as its arguments, and whether kernels are measured."""
    repeats, started = bool(config.replay.evaluations), recording.started if recording else None
    own = proposer if isinstance(proposer, HasOwnEvaluator) else None
    measures = not repeats and own is None
    beginning = {
        "library": build(config.library.kernels) if config.library.use and measures else None,
        "entries": own.entries if own else started.entries if started else None,
        "ranking": started.ranking if repeats and started else MEDIAN if own else LOWER_END,
    }
    return beginning, measures


async def _run(engine: Engine, console: Console, *, signals: bool) -> RunFinished:
    """Runs it, and writes what is left in its folder at the end."""
    journal = engine.session.journal
    with _orderly_stop(engine, console) if signals else contextlib.nullcontext():
        finished = await engine.run()
    finalise(journal.path.parent, engine.session.state)
    if finished in journal.past:
        say(console, f"the run had ended ({finished.reason}); a larger limit, say rounds=…, makes it go on")
    return finished


def _evaluator(
    config: DictConfig, recording: RunState | None, proposer: Proposer, given: KernelEvaluator | None
) -> tuple[contextlib.AbstractContextManager[KernelEvaluator], int]:
    """Who gives the verdicts, to be opened, and how many kernels it may have at a time. Raises UsageError."""
    if given is not None:
        return contextlib.nullcontext(given), OUTSTANDING_PER_LANE
    if config.replay.evaluations and recording is not None:
        return contextlib.nullcontext(RecordedEvaluations(recording)), OUTSTANDING_PER_LANE
    if isinstance(proposer, HasOwnEvaluator):
        return contextlib.nullcontext(proposer.evaluator), OUTSTANDING_PER_LANE
    host = host_of(config)
    return Pool(host), OUTSTANDING_PER_LANE * (host.devices + host.cores)


def _check_caps(config: DictConfig) -> None:
    """Raises UsageError for a limit in dollars where a model's price is not known, and for limits under which
    no model can be called at all, since each call is reserved at the most that it can cost."""
    dollars, tokens = (
        limit if isinstance(limit, int | float) else None  # what is no number is told with the other limits
        for limit in (config.budget.dollars, config.budget.tokens)
    )
    models = config.proposer.get("models") or {}
    too_little = []
    for name, model in models.items():
        price = model.get("price") or {"input": 0, "output": 0}
        answer_tokens = (model.get("limits") or {}).get("output_tokens", 0)
        if dollars is not None:
            for key in ("input", "output"):
                if price[key] is None:
                    raise UsageError(f"budget.dollars needs the model's price: set llm.{name}.price.{key}=…")
            if dollars <= (most := price["output"] * answer_tokens / 1e6):
                too_little.append(f"budget.dollars={dollars}: one answer of {name} may cost ${most:.2f}")
                continue
        if tokens is not None and tokens <= answer_tokens:
            too_little.append(f"budget.tokens={tokens}: one answer of {name} may have {answer_tokens}")
    if models and len(too_little) == len(models):
        name = next(iter(models))
        raise UsageError(f"{too_little[0]}; raise the limit, or lower llm.{name}.limits.output_tokens")


@contextlib.contextmanager
def _orderly_stop(engine: Engine, console: Console) -> Any:
    """SIGINT or SIGTERM ends the run in order, and is answered at once; a second one ends it at once."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        count = engine.session.work.count("evaluate", "compare")
        what = f"finishing {count} measurement{'s' * (count != 1)}" if count else "closing the run"
        say(console, f"{what}; once more to stop now")
        engine.request_stop("interrupted")
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
