"""Runs one search: checks its config, opens the evaluator, and starts or resumes the engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import build, choose_device, one_of, positive, say, shown
from evaluators.app.device_config import host_or_queue, is_elsewhere, is_queue
from evaluators.base.cause import cause_of, first_line
from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import WorkerBroken
from evaluators.profiling.profiler import OFF, PROFILES
from evaluators.queue.queue_evaluator import QueueEvaluator
from evaluators.records.problem import Problem
from evaluators.scheduler.pool import Pool
from search.app.resuming import recorded_run
from search.app.run_folders import (
    DEVICES,
    OUTSTANDING_PER_LANE,
    check_wandb,
    end_lines,
    keep_config,
    observers_of,
    start_lines,
)
from search.engine.engine import Engine
from search.engine.faults import naming
from search.engine.outside_watch import BLOCKED
from search.engine.pipeline import REPAIRS_IN
from search.engine.run_folder import finalise
from search.protocols import Diagnoser, KernelEvaluator
from search.records.events import ASSUMED, RunFinished
from search.records.journal import JOURNAL, Journal, JournalError
from search.records.outside import Awaited
from search.records.run_state import RunState
from search.records.tree import HISTORY
from search.report.observer import ReportObserver
from search.run.local_diagnoser import LocalDiagnoser
from search.run.queued_search import OpeningBlocked, QueuedDiagnoser, described, for_this_search
from search.run.specification import SearchSpec

logger = logging.getLogger(__name__)

NO_GRACE = {"grace_s": 0.0, "confirm_s": 0.0}
"""After a stop, a search does not wait for a queue: a resumed run finds the verdicts."""


def settle(config: DictConfig, given: Sequence[str]) -> tuple[RunState | None, list[str]]:
    """Checks the config and sets its device. Returns the run to replay, if any, and a line about each default
    that the overrides `given` leave to Ideatree. Raises UsageError and JournalError."""
    chosen: list[str] = []
    if config.resume is None and not any(each.startswith("proposer=") for each in given):
        chosen.append("proposer: playbook, the built-in catalogue of ideas (proposer=llm asks a model)")
    positive(config, "rounds", "ideas", "branch")
    positive(config, "repairs", "comparisons", "probes", least=0)
    _check_caps(config)
    one_of(config, "device", DEVICES)
    one_of(config, "history", HISTORY)
    one_of(config, "repairs_in", REPAIRS_IN)
    one_of(config, "profile", PROFILES)
    one_of(config, "until", ("end", BLOCKED))
    if config.profile != OFF and is_elsewhere(config) and not is_queue(config):
        raise UsageError(
            f"profile={config.profile} needs the devices of this machine or the workers of a queue; set "
            "profile=off, leave out ray.address, or choose pool=folder"
        )
    check_wandb(config)
    recording = recorded_run(config)
    if recording is not None and config.replay.evaluations:
        assert recording.started is not None
        device, how = recording.started.problem.device, "the recording's"
    else:
        device, how = choose_device(str(config.device), clustered=is_elsewhere(config))
    if config.device == "auto":
        chosen.append(f"device: {device}, {how} (device=… to change)")
    config.device = device
    return recording, chosen


async def search(
    spec: SearchSpec,
    folder: Path,
    console: Console,
    *,
    signals: bool = True,
    evaluator: KernelEvaluator | None = None,
    confirms: bool = True,
) -> RunFinished:
    """Runs the search in the folder, or continues the run there. `signals`: whether SIGINT and SIGTERM end
    the run cleanly; `evaluator`: an open one that several searches share; `confirms`: see `Session`. Raises
    UsageError for a problem that cannot be searched and for settings that are not possible."""
    with naming(spec.plug_ins):
        opened, outstanding = _evaluator(spec, evaluator)
        with opened as judge:
            if isinstance(judge, QueueEvaluator):
                judge = _queued(judge, spec.config, folder)
            try:
                return await _search(
                    spec,
                    folder,
                    console,
                    judge,
                    outstanding,
                    signals=signals,
                    confirms=confirms,
                    diagnoser=_diagnoser(spec, judge, shared=evaluator is not None),
                )
            except OpeningBlocked as blocked:
                say(console, *start_lines(spec.config, folder), *_blocked_lines(blocked.awaited, folder))
                return RunFinished(at_s=0.0, reason=BLOCKED, best=None, confirmed=None)


async def _search(
    spec: SearchSpec,
    folder: Path,
    console: Console,
    judge: KernelEvaluator,
    outstanding: int,
    *,
    signals: bool,
    confirms: bool,
    diagnoser: Diagnoser | None,
) -> RunFinished:
    """`search` with an open evaluator, and how many kernels it is given at a time. Raises OpeningBlocked."""
    problem, config = spec.problem, spec.config
    with console.status(f"opening {problem.name} on {problem.device}"):
        facts = await _described(problem, judge, waits=not spec.stops_when_blocked)
    if config.resume is None and not isinstance(judge, QueueEvaluator):
        keep_config(folder, config)
    say(console, *start_lines(config, folder))
    if ASSUMED in facts:
        say(console, f"device: {facts['device']}; prompts use its shipped facts until a worker describes it")
    with _journal(folder / JOURNAL) as journal:
        observers = observers_of(
            config,
            journal,
            console,
            spec.limits,
            report=ReportObserver,
            recorded=spec.evaluator is not None,
        )
        engine = spec.engine(
            journal,
            judge,
            observers=observers,
            outstanding=outstanding,
            environment=facts,
            confirms=confirms,
            diagnoser=diagnoser,
            **(NO_GRACE if isinstance(judge, QueueEvaluator) else {}),
        )
        with _stopped_by_signals(engine, console) if signals else contextlib.nullcontext():
            finished = await engine.run()
        finalise(folder, engine.session.state)
        if finished in journal.past:
            why = f"the run had already ended ({finished.reason})"
            say(console, f"{why}; raise a limit, e.g. rounds=…, to continue")
    if engine.blocked_on is not None:
        say(console, *_blocked_lines(engine.blocked_on, folder))
    elif isinstance(judge, QueueEvaluator) and not finished.reason.startswith(("interrupted", "error")):
        judge.withdraw()
    say(console, *end_lines(folder))
    return finished


def _queued(shared: QueueEvaluator, config: DictConfig, folder: Path) -> QueueEvaluator:
    """The evaluator of this search in a queue. Hours may pass before a worker opens the problem, so a new run
    is written now as far as a resumed one needs it. Raises UsageError."""
    file = folder / JOURNAL
    if config.resume is None:
        keep_config(folder, config)
        file.touch()
    with _journal(file) as journal:
        return for_this_search(shared, folder, journal.past)


def _blocked_lines(awaited: Awaited, folder: Path) -> list[str]:
    place = shown(folder)
    return [*awaited.lines(), f"only others can advance this search; then: ideatree run resume={place}"]


def _journal(path: Path) -> Journal:
    """The run's journal. Raises UsageError if it is damaged, or another process has it."""
    try:
        return Journal(path)
    except JournalError as error:
        raise UsageError(first_line(error)) from error


async def _described(problem: Problem, judge: KernelEvaluator, *, waits: bool) -> dict[str, str]:
    """The device and software that will measure the problem. Raises UsageError, and OpeningBlocked if it
    would have to wait for another machine and `waits` is False."""
    try:
        return await described(problem, judge, waits=waits)
    except WorkerBroken as error:
        raise UsageError(f"{problem.name} cannot be searched: {cause_of(str(error))}") from error


def _evaluator(
    spec: SearchSpec, shared: KernelEvaluator | None
) -> tuple[contextlib.AbstractContextManager[KernelEvaluator], int]:
    """The evaluator, still to be entered, and how many kernels it is given at a time. Raises UsageError."""
    if (ready := shared or spec.evaluator) is not None:
        lanes = ready.outstanding if isinstance(ready, QueueEvaluator) else OUTSTANDING_PER_LANE
        return contextlib.nullcontext(ready), lanes
    host = host_or_queue(spec.config)
    if isinstance(host, QueueEvaluator):
        return contextlib.nullcontext(host), host.outstanding
    return Pool(host), OUTSTANDING_PER_LANE * (host.devices + host.cores)


def _diagnoser(spec: SearchSpec, judge: KernelEvaluator, *, shared: bool) -> Diagnoser | None:
    """What profiles the search's kernels. Nothing does if verdicts are recorded ones, or if other searches
    may be measuring on the same devices; the workers of a queue see to that themselves."""
    wanted = str(spec.config.get("profile", OFF))
    if wanted != OFF and isinstance(judge, QueueEvaluator):
        return QueuedDiagnoser(judge, wanted)
    if wanted != OFF and shared:
        logger.warning("profile=%s has no effect on searches that share devices", wanted)
    if wanted == OFF or shared or spec.evaluator is not None:
        return None
    return LocalDiagnoser(build(spec.config.evaluator), wanted)


def _check_caps(config: DictConfig) -> None:
    """Raises UsageError for a limit in dollars when a model's price is unknown, and for limits too small to
    call any model: before each call, its maximum cost is reserved."""
    dollars, tokens = (
        limit if isinstance(limit, int | float) else None  # `Budget` refuses other values
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
def _stopped_by_signals(engine: Engine, console: Console) -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the run cleanly, a second one immediately."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        waits = engine.session.grace_s > 0
        count = engine.session.work.count("evaluate", "compare") if waits else 0
        what = f"finishing {count} measurement{'s' * (count != 1)}" if count else "closing the run"
        say(console, f"{what}; press Ctrl-C again to stop immediately")
        engine.request_stop("interrupted")
        restore()

    def restore() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        restore()
