"""Runs the searches of a comparison: on kernels concurrently through one evaluator, on a landscape or a
recorded tree in processes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from search.compare.curves import Searched, of_events, searched
from search.compare.plan import ComparisonPlan
from search.compare.shared_verdicts import SharedVerdicts
from search.records.journal import Journal, replay
from search.run.searches import PlannedSearch, SearchRunner, run_concurrently, shared_evaluator
from search.run.specification import specification

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

Job = Coroutine[Any, Any, None]


async def search_all(
    config: DictConfig,
    comparison: ComparisonPlan,
    console: Console,
    on_change: Callable[[], None] = lambda: None,
) -> list[Searched]:
    """Runs the searches that have not ended yet and returns all that have. `config`: the comparison's. Each
    result is written as soon as its search ends; then `on_change` is called. Raises UsageError."""
    done = {(each.problem, each.arm, each.seed) for each in comparison.ended()}
    todo = [each for each in comparison.searches if (each.problem, each.arm, each.seed) not in done]
    comparison.folder.mkdir(parents=True, exist_ok=True)
    columns = (
        TextColumn("searches"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[verdicts]}"),
        TimeRemainingColumn(),
    )
    with (
        Progress(*columns, console=console, transient=True) as progress,
        comparison.results.open("a", encoding="utf-8") as results,
    ):
        if results.tell() and not comparison.results.read_bytes().endswith(b"\n"):
            results.write("\n")  # ends the half line of a process that was killed
        bar = progress.add_task("", total=len(comparison.searches), completed=len(done), verdicts="")

        def keep(found: Iterable[Searched]) -> None:
            for each in found:
                results.write(each.to_json() + "\n")
                progress.advance(bar)
            results.flush()
            on_change()

        def show(verdicts: int) -> None:
            progress.update(bar, verdicts=f"{verdicts} verdicts")

        if todo and comparison.without_device:
            with _in_processes(todo, keep) as jobs:
                await run_concurrently(lambda: next(jobs, None))
        elif todo:
            with shared_evaluator(config) as (pool, _):
                assert pool is not None
                verdicts = SharedVerdicts(pool, comparison.folder / "verdicts.jsonl", show)
                runner = SearchRunner(pool, config.device, DEFAULTS)
                await run_concurrently(PairedSearches(comparison, todo, runner, verdicts, keep).next)
    return comparison.ended()


class PairedSearches:
    """The policy of a comparison: each search runs to its end, one problem after another, so that a device
    opens each once; the arms of a seed run together, `seeds_at_once` seeds at a time."""

    def __init__(
        self,
        comparison: ComparisonPlan,
        todo: Sequence[PlannedSearch],
        runner: SearchRunner,
        verdicts: SharedVerdicts,
        keep: Callable[[Iterable[Searched]], None],
    ) -> None:
        """`keep` is called with the result of each search."""
        order = list(comparison.problems)
        self._waiting = sorted(todo, key=lambda each: order.index(each.problem))
        self._running: Counter[tuple[str, int | None]] = Counter()
        self._comparison, self._runner, self._verdicts, self._keep = comparison, runner, verdicts, keep

    def next(self) -> Job | None:
        """The search to begin now, if any."""
        if not self._waiting:
            return None
        problem = self._waiting[0].problem
        pair = problem, self._waiting[0].seed
        groups = +self._running
        if pair not in groups and (
            len(groups) >= self._comparison.seeds_at_once or any(each != problem for each, _ in groups)
        ):
            return None
        self._running[pair] += 1
        return self._search(self._waiting.pop(0))

    async def _search(self, planned: PlannedSearch) -> None:
        assert planned.seed is not None
        config = self._runner.config(planned)
        config.wandb = {**config.wandb, **on_wandb(self._comparison.folder.name, planned, config.wandb)}
        alone = "" if self._comparison.shares_verdicts else f"{planned.arm}/{planned.seed}"
        await self._runner.run(planned, config, evaluator=self._verdicts.of_a_search(alone))
        self._keep([searched(planned.folder, problem=planned.problem, arm=planned.arm, seed=planned.seed)])
        self._running[planned.problem, planned.seed] -= 1


def on_wandb(comparison: str, planned: PlannedSearch, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """How a search is marked on W&B: the comparison is its group, arm and problem are tags. Values that the
    call has `chosen` win."""
    return {
        "group": chosen["group"] or comparison,
        "job_type": chosen["job_type"] or planned.arm,
        "name": chosen["name"] or f"{planned.arm} {planned.problem} {planned.seed}",
        "tags": [*chosen["tags"], *(tag[:LONGEST_TAG] for tag in (planned.arm, planned.problem))],
    }


@contextlib.contextmanager
def _in_processes(
    todo: Sequence[PlannedSearch], keep: Callable[[Iterable[Searched]], None]
) -> Iterator[Iterator[Job]]:
    """Jobs that run batches of searches in processes. Only this process handles an interrupt: batches that
    are running end, the others do not begin."""
    method = multiprocessing.get_context("spawn")
    ignored = (signal.SIGINT, signal.SIG_IGN)
    with concurrent.futures.ProcessPoolExecutor(
        os.cpu_count(), mp_context=method, initializer=signal.signal, initargs=ignored
    ) as processes:

        async def search(batch: Sequence[PlannedSearch]) -> None:
            keep(await asyncio.wrap_future(processes.submit(search_batch, batch)))

        try:
            yield (search(todo[start : start + BATCH]) for start in range(0, len(todo), BATCH))
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
        path = Path(folder) / "journal.jsonl"
        with Journal(path) as journal:
            asyncio.run(spec.engine(journal, evaluator, outstanding=OUTSTANDING).run())
        return of_events(replay(path), problem=planned.problem, arm=planned.arm, seed=planned.seed)
