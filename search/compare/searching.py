"""Runs the searches of a comparison: on kernels concurrently through one evaluator, on a landscape or a
recorded tree in processes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from evaluators.app.command import build
from evaluators.base.jsonl_store import append_line, only_writer
from search.compare.curves import Searched, of_events, searched
from search.compare.plan import ComparisonPlan
from search.compare.shared_verdicts import SharedVerdicts
from search.records.journal import JOURNAL, Journal, replay
from search.run.searches import PlannedSearch, SearchRunner, gives_verdicts, run_all, shared_evaluator
from search.run.specification import specification
from search.run.winner_checks import on_held_out

DEFAULTS = ("wandb=off", "library.use=false", "report=false")
"""Overrides of each search, unless the call has others. Without the library, no search finds a kernel that
another one has added."""
LONGEST_TAG = 64
"""W&B's limit."""
IN_MEMORY = Path("/dev/shm")
"""Where a search without a device has its journal: on a disk, every round would wait for the write."""
BATCH = 8
"""Searches without a device that a process gets at a time."""
OUTSTANDING = 8
"""Kernels of a search without a device that may be evaluated at a time."""


async def search_all(
    config: DictConfig,
    comparison: ComparisonPlan,
    console: Console,
    on_change: Callable[[], None] = lambda: None,
) -> list[Searched]:
    """Runs the searches that have not ended yet and returns all that have. `config`: the comparison's. Each
    result is written as soon as its search ends; then `on_change` is called. Raises UsageError, also if
    another process runs the comparison."""
    with only_writer(comparison.results, "comparison"):
        await _search_rest(config, comparison, console, on_change)
    return comparison.ended()


async def _search_rest(
    config: DictConfig, comparison: ComparisonPlan, console: Console, on_change: Callable[[], None]
) -> None:
    ended = [each for each in comparison.ended() if not each.failed]
    done = {(each.problem, each.arm, each.seed) for each in ended}
    todo = [each for each in comparison.searches if (each.problem, each.arm, each.seed) not in done]
    columns = (
        TextColumn("searches"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[verdicts]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(comparison.searches), completed=len(done), verdicts="")

        def keep(found: Iterable[Searched]) -> None:
            for each in found:
                append_line(comparison.results, each.to_json())
                progress.advance(bar)
            on_change()

        def show(verdicts: int) -> None:
            progress.update(bar, verdicts=f"{verdicts} verdicts")

        if todo and gives_verdicts(config):
            await _search_in_processes(todo, keep)
        elif todo:
            await _search_kernels(config, comparison, todo, keep, show)


async def _search_kernels(
    config: DictConfig,
    comparison: ComparisonPlan,
    todo: Sequence[PlannedSearch],
    keep: Callable[[Iterable[Searched]], None],
    on_verdict: Callable[[int], None],
) -> None:
    """Runs each search to its end: all arms of a seed together, `seeds_at_once` seeds and `problems_at_once`
    problems at a time. With one problem at a time, a device opens each once."""
    with shared_evaluator(config) as (pool, _):
        assert pool is not None
        verdicts = SharedVerdicts(pool, comparison.folder / "verdicts.jsonl", on_verdict)
        runner = SearchRunner(pool, config.device, DEFAULTS)

        async def search(planned: PlannedSearch) -> None:
            alone = "" if config.share_verdicts else f"{planned.arm}/{planned.seed}"
            own = runner.config(planned)
            own.wandb = {**own.wandb, **on_wandb(comparison.folder.name, planned, own.wandb)}
            finished = await runner.run(planned, own, evaluator=verdicts.for_search(alone))
            found = searched(planned.folder, problem=planned.problem, arm=planned.arm, seed=planned.seed or 0)
            if config.held_out and finished.best is not None:
                opened = build(own.problem, device=config.device)
                # The same configurations for all arms and seeds, so that their kernels can be compared.
                results = await on_held_out(
                    pool, opened, finished.best.kernel, count=config.held_out, seed=config.seed
                )
                found = replace(found, held_out=results)
            keep([found])

        async def search_problem(problem: str) -> None:
            seeds = (
                run_all([search(each) for each in todo if (each.problem, each.seed) == (problem, seed)])
                for seed in comparison.seeds
            )
            await run_all(seeds, config.seeds_at_once)

        await run_all(map(search_problem, comparison.problems), config.problems_at_once)


def on_wandb(comparison: str, planned: PlannedSearch, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """How a search is marked on W&B: the comparison is its group, arm and problem are tags. Values that the
    call has `chosen` win."""
    return {
        "group": chosen["group"] or comparison,
        "job_type": chosen["job_type"] or planned.arm,
        "name": chosen["name"] or f"{planned.arm} {planned.problem} {planned.seed}",
        "tags": [*chosen["tags"], *(tag[:LONGEST_TAG] for tag in (planned.arm, planned.problem))],
    }


async def _search_in_processes(
    todo: Sequence[PlannedSearch], keep: Callable[[Iterable[Searched]], None]
) -> None:
    """Runs batches of searches in processes. Only this process handles an interrupt: batches that are running
    end, the others do not begin."""
    method = multiprocessing.get_context("spawn")
    ignored = (signal.SIGINT, signal.SIG_IGN)
    with concurrent.futures.ProcessPoolExecutor(
        os.cpu_count(), mp_context=method, initializer=signal.signal, initargs=ignored
    ) as processes:

        async def search(batch: Sequence[PlannedSearch]) -> None:
            keep(await asyncio.wrap_future(processes.submit(search_batch, batch)))

        try:
            await run_all(search(todo[start : start + BATCH]) for start in range(0, len(todo), BATCH))
        finally:
            processes.shutdown(cancel_futures=True)


def search_batch(searches: Sequence[PlannedSearch]) -> list[Searched]:
    """Runs the searches in this process, one after the other; only their results remain."""
    runner = SearchRunner(None, "cpu", DEFAULTS)
    return [search_in_memory(runner.config(each), each) for each in searches]


def search_in_memory(config: DictConfig, planned: PlannedSearch, *, chance: int | None = None) -> Searched:
    """One search whose proposer gives the verdicts. `chance`: seed of the search's own choices; None: the
    config's seed, which the proposer has too."""
    spec = specification(config)
    evaluator = spec.evaluator
    assert evaluator is not None
    assert planned.seed is not None
    if chance is not None:
        spec = replace(spec, seed=chance)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        path = Path(folder) / JOURNAL
        with Journal(path) as journal:
            asyncio.run(spec.engine(journal, evaluator, outstanding=OUTSTANDING).run())
        return of_events(replay(path), problem=planned.problem, arm=planned.arm, seed=planned.seed)
