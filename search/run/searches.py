"""Many searches through one evaluator: their plan, their configs, and the loop that runs them concurrently.

`search.compare` and `search.campaign` are two policies of it: they choose what runs next, and for how long.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from evaluators.app.command import build, compose_config, require_all, say
from evaluators.app.device_config import host_of, host_or_queue, settle_device
from evaluators.app.suite_config import sizes_in
from evaluators.base.usage_error import UsageError
from evaluators.queue.queue_evaluator import QueueEvaluator
from evaluators.scheduler.pool import Pool
from search.app.run_folders import page_at_the_end
from search.protocols import KernelEvaluator
from search.records.events import RunFinished
from search.records.journal import JOURNAL
from search.report.fresh_page import FreshPage
from search.run.config import RunConfig
from search.run.launch import search
from search.run.specification import specification

Result = TypeVar("Result")

WITHOUT_DEVICE = (
    "search.proposers.landscape.LandscapeProposer",
    "search.proposers.recorded_tree.RecordedTree",
)
"""Proposers that also give the verdicts."""


@dataclass(frozen=True, kw_only=True)
class PlannedSearch:
    """One of many searches: a problem and an arm (the setting that is compared), the overrides of its
    `search.run` call, and its run folder. `seed` replaces the one in `overrides`; `weight` is the problem's
    in its suite; `sizes` are module globals to replace, where the reference has them; `ceiling` is the
    largest possible speedup, if it is known in advance."""

    problem: str
    arm: str
    overrides: tuple[str, ...]
    folder: Path
    seed: int | None = None
    weight: float = 1.0
    sizes: Mapping[str, Any] = field(default_factory=dict)
    ceiling: float | None = None


def planned_searches(
    folder: Path,
    problems: Mapping[str, Sequence[str]],
    arms: Mapping[str, Sequence[str]],
    shared: Sequence[str],
    seeds: Sequence[int | None] = (None,),
) -> list[PlannedSearch]:
    """A search for each seed, problem and arm, in that order. `problems` and `arms` are overrides by name,
    `shared` those of all searches; an arm's come last, so that they win."""
    return [
        PlannedSearch(
            problem=problem,
            arm=arm,
            overrides=(*chosen, *shared, *changes),
            folder=folder / problem / arm / ("" if seed is None else f"seed_{seed}"),
            seed=seed,
        )
        for seed in seeds
        for problem, chosen in problems.items()
        for arm, changes in arms.items()
    ]


class SearchRunner:
    """Composes the configs of searches and runs them through one evaluator."""

    def __init__(self, evaluator: KernelEvaluator | None, device: str, defaults: Sequence[str]) -> None:
        """`evaluator`: an open one; None where the proposers give the verdicts. `defaults`: overrides of all
        searches; a search's own come after them."""
        self.evaluator, self.device = evaluator, device
        self._defaults = defaults
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def config(self, planned: PlannedSearch) -> DictConfig:
        """A new copy of the search's config, which resumes the run in its folder if there is one. Raises
        UsageError."""
        if planned.overrides not in self._composed:
            overrides = [*self._defaults, *planned.overrides]
            self._composed[planned.overrides] = compose_config(RunConfig, overrides, resolve=False)
        config = self._composed[planned.overrides].copy()
        if planned.seed is not None:
            config.seed = planned.seed
        config.device = self.device
        require_all(config)
        if config.until != "end":
            raise UsageError(f"until={config.until} is for ideatree run; leave it out")
        if planned.sizes:
            source = build(config.problem, device=self.device).source
            OmegaConf.update(config, "problem.sizes", sizes_in(source, planned.sizes), force_add=True)
        if (planned.folder / JOURNAL).exists():
            config.resume = str(planned.folder)
        return config

    async def run(
        self,
        planned: PlannedSearch,
        config: DictConfig,
        *,
        evaluator: KernelEvaluator | None = None,
        confirms: bool = True,
    ) -> RunFinished:
        """Runs or resumes the search with this config; `evaluator` takes the place of the runner's. Raises
        UsageError."""
        return await search(
            specification(config),
            planned.folder,
            Console(quiet=True),
            signals=False,
            evaluator=evaluator or self.evaluator,
            confirms=confirms,
        )


def gives_verdicts(config: DictConfig) -> bool:
    """Whether the config's proposer also gives the verdicts, so that no kernel runs."""
    return config.proposer.get("_target_") in WITHOUT_DEVICE


@contextlib.contextmanager
def shared_evaluator(
    config: DictConfig, *, queues: bool = False
) -> Iterator[tuple[Pool | QueueEvaluator | None, int]]:
    """The evaluator of many searches, None where their proposers give the verdicts, and its number of
    devices. `queues`: whether it may be that of a queue, whose number of devices is unknown and counts as 1.
    Sets the config's key `device`. Raises UsageError."""
    if gives_verdicts(config):
        config.device = "cpu"
        yield None, 1
        return
    settle_device(config)
    host = host_or_queue(config) if queues else host_of(config)
    if isinstance(host, QueueEvaluator):
        yield host, 1
        return
    with Pool(host) as pool:
        yield pool, host.devices


async def run_concurrently(
    next_job: Callable[[], Coroutine[Any, Any, None] | None], at_once: float = math.inf
) -> None:
    """Runs jobs, at most `at_once` at a time, until none is running and `next_job` returns None. `next_job`
    is asked again whenever a job ends. An error of one job cancels the others and is raised."""
    running: set[asyncio.Task[None]] = set()
    try:
        while True:
            while len(running) < at_once and (job := next_job()) is not None:
                running.add(asyncio.create_task(job))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def run_all(jobs: Iterable[Coroutine[Any, Any, None]], at_once: float = math.inf) -> None:
    """Runs jobs in their order, at most `at_once` at a time. See `run_concurrently`."""
    await run_concurrently(partial(next, iter(jobs), None), at_once)


def run_with_report(
    work: Callable[[Callable[[], None]], Coroutine[Any, Any, Result]],
    summary: Callable[[Result | None], Sequence[str] | None],
    write_page: Callable[[Path], Path],
    folder: Path,
    console: Console,
    *,
    wanted: bool,
) -> Result:
    """Runs `work` to its end or an interrupt, then prints the summary; returns what `work` does. Meanwhile
    `write_page` keeps the folder's report fresh, if it is `wanted`. `work` calls its argument whenever
    results change. `summary` gets the result of `work`, None before its end; it writes the summary files and
    returns the lines to print, or None if there is nothing to report yet."""

    def refresh() -> None:
        if summary(None) is not None:
            write_page(folder)

    async def run() -> Result:
        page = FreshPage(refresh, wanted=wanted)
        async with page.kept():
            return await work(page.change)

    def conclude(result: Result | None) -> None:
        if (lines := summary(result)) is not None:
            say(console, *lines, *page_at_the_end(write_page, folder, wanted))

    try:
        result = asyncio.run(run())
    except KeyboardInterrupt:
        conclude(None)
        raise
    conclude(result)
    return result
