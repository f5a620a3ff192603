"""Runs the searches of a comparison: on kernels side by side through one evaluator, on a landscape or a
recorded tree in processes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from evaluators.app.command import build, compose_config
from evaluators.app.device_config import host_of, settle_device
from evaluators.scheduler.pool import Pool
from search.compare.curves import Searched, of_events, searched
from search.compare.plan import ComparisonPlan, SearchTask
from search.compare.shared_verdicts import SharedVerdicts
from search.engine.engine import Engine
from search.engine.session import Session
from search.protocols import KernelEvaluator
from search.records.budget import Budget
from search.records.journal import Journal, replay
from search.records.ranking import MEDIAN
from search.run.config import RunConfig
from search.run.launch import search

ALONE = ("wandb=off", "library.use=false", "report=false")
"""For each search, where the call does not say otherwise: one finds nothing that another has put into the
library."""
LONGEST_TAG = 64
"""W&B's limit."""
IN_MEMORY = Path("/dev/shm")
"""Where a search without a device has its journal: a disk would be waited for at every round."""
BATCH = 8
"""Searches without a device that a process is given at a time."""


async def search_all(
    comparison: ComparisonPlan, console: Console, on_change: Callable[[], None] = lambda: None
) -> list[Searched]:
    """Does the searches that have not ended yet; returns every one that has. What a search finds is kept as
    soon as it has ended, and then `on_change` is told."""
    there = {(each.problem, each.arm, each.seed) for each in comparison.ended()}
    todo = [task for task in comparison.searches if (task.problem, task.arm, task.seed) not in there]
    comparison.folder.mkdir(parents=True, exist_ok=True)
    columns = (
        TextColumn("searches"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[verdicts]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(comparison.searches), completed=len(there), verdicts="")
        with comparison.results.open("a", encoding="utf-8") as results:

            def keep(found: Iterable[Searched]) -> None:
                for each in found:
                    results.write(each.to_json() + "\n")
                    progress.advance(bar)
                results.flush()
                on_change()

            if todo and comparison.without_device:
                await _search_in_processes(todo, keep)
            elif todo:
                await _search_kernels(
                    comparison, todo, keep, lambda count: progress.update(bar, verdicts=f"{count} verdicts")
                )
    return comparison.ended()


async def _search_kernels(
    comparison: ComparisonPlan,
    todo: Sequence[SearchTask],
    keep: Callable[[Iterable[Searched]], None],
    on_verdict: Callable[[int], None],
) -> None:
    """One problem after the other, so that a device opens each once; the arms of a seed side by side."""
    first = compose_config(RunConfig, todo[0].overrides)
    settle_device(first)
    path = comparison.folder / "verdicts.jsonl"
    with Pool(host_of(first)) as pool:
        verdicts = SharedVerdicts(pool, path, on_verdict)

        async def search_one(task: SearchTask) -> None:
            alone = "" if comparison.shares_verdicts else f"{task.arm}/{task.seed}"
            await _search_one(task, first.device, verdicts.of_a_search(alone))
            keep([searched(task.folder, problem=task.problem, arm=task.arm, seed=task.seed)])

        async def search_a_seed(tasks: Sequence[SearchTask], turns: asyncio.Semaphore) -> None:
            async with turns:
                await asyncio.gather(*map(search_one, tasks))

        for problem in comparison.problems:
            turns = asyncio.Semaphore(comparison.seeds_at_once)
            of_seeds = (
                [task for task in todo if (task.problem, task.seed) == (problem, seed)]
                for seed in comparison.seeds
            )
            await asyncio.gather(*(search_a_seed(tasks, turns) for tasks in of_seeds))


async def _search_one(task: SearchTask, device: str, evaluator: KernelEvaluator) -> None:
    config = compose_config(RunConfig, [*ALONE, *task.overrides])
    config.device = device
    config.wandb = {**config.wandb, **on_wandb(task, config.wandb)}
    if (task.folder / "journal.jsonl").exists():
        config.resume = str(task.folder)
    await search(config, task.folder, None, Console(quiet=True), signals=False, evaluator=evaluator)


def on_wandb(task: SearchTask, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """How a search is marked on W&B: all of a comparison in one group, with arm and problem as tags; what the
    call has `chosen` goes before."""
    return {
        "group": chosen["group"] or task.comparison,
        "job_type": chosen["job_type"] or task.arm,
        "name": chosen["name"] or f"{task.arm} {task.problem} {task.seed}",
        "tags": [*chosen["tags"], *(tag[:LONGEST_TAG] for tag in (task.arm, task.problem))],
    }


async def _search_in_processes(
    todo: Sequence[SearchTask], keep: Callable[[Iterable[Searched]], None]
) -> None:
    """An interrupt is this process's alone: the batches that are under way end, and the others do not
    begin."""
    batches = [todo[start : start + BATCH] for start in range(0, len(todo), BATCH)]
    method = multiprocessing.get_context("spawn")
    ignored = (signal.SIGINT, signal.SIG_IGN)
    with concurrent.futures.ProcessPoolExecutor(
        os.cpu_count(), mp_context=method, initializer=signal.signal, initargs=ignored
    ) as processes:
        running = [asyncio.wrap_future(processes.submit(search_batch, batch)) for batch in batches]
        try:
            for done in asyncio.as_completed(running):
                keep(await done)
        finally:
            processes.shutdown(cancel_futures=True)


def search_batch(tasks: Sequence[SearchTask]) -> list[Searched]:
    """In this process, one after the other; nothing is left of them but what they found."""
    found, composed = [], {}
    for task in tasks:
        key = task.overrides[:-1]
        if key not in composed:
            composed[key] = compose_config(RunConfig, [*ALONE, *task.overrides], resolve=False)
        config = composed[key].copy()
        config.seed = task.seed
        found.append(search_without_device(config, task))
    return found


def search_without_device(config: DictConfig, task: SearchTask, *, chance: int | None = None) -> Searched:
    """One search; `chance` is the seed of its own choices, where that is not the proposer's."""
    OmegaConf.resolve(config)
    limits: dict[str, Any] = {"rounds": config.rounds, **config.budget}
    proposer = build(config.proposer)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "journal.jsonl"
        with Journal(path) as journal:
            session = Session(
                problem=build(config.problem, device="cpu"),
                evaluator=proposer.evaluator,
                entries=proposer.entries,
                journal=journal,
                budget=Budget(**limits),
                outstanding=8,
                ranking=MEDIAN,
            )
            engine = Engine(
                session,
                strategy=build(config.strategy),
                proposer=proposer,
                seed=config.seed if chance is None else chance,
                history=config.history,
                repairs=config.repairs,
            )
            asyncio.run(engine.run())
        return of_events(replay(path), problem=task.problem, arm=task.arm, seed=task.seed)
