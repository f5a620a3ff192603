"""Runs a campaign: slices of searches, one after the other or side by side, through one evaluator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from evaluators.app.command import build, compose_config
from evaluators.app.suite_config import sizes_in
from evaluators.base.cause import first_line
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Status
from evaluators.records.overhead import bound_cases, cheapest_call, floor_of, speedup_beyond
from evaluators.records.problem import reference_kernel
from search.campaign.schedulers import Scheduler
from search.campaign.slices import SearchProgress, Slice, StopRules, key_of
from search.protocols import KernelEvaluator
from search.records.journal import replay
from search.records.run_state import RunState, rebuild
from search.run.config import RunConfig
from search.run.launch import search

ALONE = ("wandb=off", "report=false", "compare_leaders=false")
"""For each search, where the call does not say otherwise."""
SECONDS, FLOOR = "seconds", "ms of the cheapest call"
"""What is kept beside the searches."""
LIMITS = ("evaluations", "seconds", "calls", "tokens", "dollars")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A search of a campaign: all overrides of its call, and its folder. `sizes`: module globals to replace
    that its reference has. `ceiling`: the speedup that can be reached, where that is known before."""

    problem: str
    arm: str
    weight: float
    overrides: tuple[str, ...]
    folder: Path
    sizes: Mapping[str, Any] = field(default_factory=dict)
    ceiling: float | None = None


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """`slice`: evaluations that a search is given at a time; `at_once`: searches that go on side by side;
    `limits`: of the whole campaign, None for none."""

    folder: Path
    planned: Sequence[Planned]
    scheduler: Scheduler
    rules: StopRules
    slice: int
    at_once: int
    limits: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def kept(self) -> Path:
        """How far the searches have come: a line for each slice, in their order."""
        return self.folder / "campaign.jsonl"


class CampaignRun:
    """One campaign, or the continuation of one from its folder."""

    def __init__(
        self,
        campaign: Campaign,
        evaluator: KernelEvaluator | None,
        device: str,
        on_change: Callable[[CampaignRun], None],
        on_kept: Callable[[], None] = lambda: None,
    ) -> None:
        """`evaluator`: open, or None where the proposer gives the verdicts, too; `on_change` is told whenever
        a slice begins or ends, `on_kept` whenever something was written to the campaign's file."""
        self.campaign, self._evaluator, self._device = campaign, evaluator, device
        self._on_change, self._on_kept = on_change, on_kept
        self._kept = JsonlStore(campaign.kept)
        self._composed: dict[str, DictConfig] = {}
        self._planned = {key_of(each.problem, each.arm): each for each in campaign.planned}
        self._searches = {key: self._known(key, each) for key, each in self._planned.items()}
        self._begun = {key for key in self._searches if self._state_ahead(key) is not None}
        """The searches with a slice that was killed: they are the first to go on."""
        self.running: dict[str, int] = {}
        """The evaluations that each search has been given for the slice that it is at."""
        self.winners: set[str] = set()
        """The searches whose winners are still to be measured again: known when all slices are done."""
        self._start = time.monotonic() - (self._kept.get(SECONDS) or 0.0)
        self._measuring_floor = asyncio.Lock()

    @property
    def searches(self) -> list[SearchProgress]:
        """In the campaign's order."""
        return list(self._searches.values())

    def total(self, unit: str) -> float:
        """What all searches have used."""
        return sum(each.total(unit) for each in self.searches)

    async def run(self) -> None:
        """Until the budget is used up or no search may go on; then measures each winner again. Raises
        UsageError for a call that no search can be made of."""
        for each in {planned.arm: planned for planned in self.campaign.planned}.values():
            self._config(each)  # what is wrong with an arm is told before anything is begun
        tasks: set[asyncio.Task[None]] = set()
        while True:
            while len(tasks) < self.campaign.at_once and (chosen := self._next()) is not None:
                tasks.add(asyncio.create_task(self._slice(chosen)))
            if not tasks:
                break
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        for key in self._begun:  # there was no budget left to go on
            self.keep(grown(self._searches[key], self._state_ahead(key)))
        winners = [each for each in self.searches if each.speedup and not each.unfit and each.final is None]
        self.winners = {each.key for each in winners}
        self._on_change(self)
        turns = asyncio.Semaphore(self.campaign.at_once)
        await asyncio.gather(*(self._finish(each, turns) for each in winners))

    @property
    def seconds(self) -> float:
        """That the campaign has taken, in all its processes."""
        return time.monotonic() - self._start

    def left(self, unit: str) -> float | None:
        """What is left of a limit, None where there is none."""
        limit = self.campaign.limits.get(unit)
        if limit is None:
            return None
        if unit == "seconds":
            return limit - self.seconds
        given = sum(self.running.values()) if unit == "evaluations" else 0
        return limit - self.total(unit) - given

    def _next(self) -> SearchProgress | None:
        """The search for the next slice, which it is given; None where there is none, or no budget."""
        left = [self.left(unit) for unit in LIMITS]
        if any(each is not None and each <= 0 for each in left):
            return None
        may = [each for each in self.searches if not each.stopped and not each.unfit]
        begun = next((each for each in may if each.key in self._begun), None)
        chosen = begun or self.campaign.scheduler.choose(may, self.running)
        if chosen is not None:
            self._begun.discard(chosen.key)
            left_over = self.left("evaluations")
            share = self.campaign.slice
            self.running[chosen.key] = share if left_over is None else int(min(share, left_over))
        return chosen

    async def _slice(self, before: SearchProgress) -> None:
        planned, share = self._planned[before.key], self.running[before.key]
        self._on_change(self)
        try:
            config = self._config(planned)
            config.budget.evaluations = before.evaluations + share
            self._limit(config, before)
            finished = await search(
                config,
                planned.folder,
                None,
                Console(quiet=True),
                signals=False,
                evaluator=self._evaluator,
                confirms=False,
            )
            after = grown(before, state_of(planned.folder))
            reason = "" if finished.reason in LIMITS else finished.reason
            reason = "no more ideas" if reason == "exhausted" else reason
            after = replace(after, stopped=reason or self.campaign.rules.why(after))
        except UsageError as error:
            after = replace(before, unfit=first_line(error))
        finally:
            del self.running[before.key]
        self.keep(after)

    async def _finish(self, each: SearchProgress, turns: asyncio.Semaphore) -> None:
        """Measures the winner again."""
        planned = self._planned[each.key]
        async with turns:
            config = self._config(planned)
            config.budget.evaluations = max(1, each.evaluations)
            finished = await search(
                config, planned.folder, None, Console(quiet=True), signals=False, evaluator=self._evaluator
            )
        self.winners.discard(each.key)
        found = finished.confirmed
        if found is None or found.timing is None:
            return
        each = replace(each, final=found.timing.speedup, final_compile=found.timing.speedup_vs_compile)
        if found.cases:
            floor_ms = await self._floor_ms()
            beyond = speedup_beyond(found, floor_ms) or None
            each = replace(each, final_bound=len(bound_cases(found, floor_ms)), final_beyond=beyond)
        self.keep(each)

    async def _floor_ms(self) -> float:
        """See `floor_of`; measured once a campaign."""
        async with self._measuring_floor:
            known: float | None = self._kept.get(FLOOR)
            if known is None and self._evaluator is not None:
                problem = cheapest_call(self._device)
                known = floor_of(await self._evaluator.evaluate(problem, reference_kernel(problem)))
                self._kept.put(FLOOR, known)
            return known or 0.0

    def _known(self, key: str, planned: Planned) -> SearchProgress:
        """As it was kept."""
        if (kept := self._kept.get(key)) is not None:
            return SearchProgress.from_json(kept)
        return SearchProgress(
            problem=planned.problem, arm=planned.arm, weight=planned.weight, ceiling=planned.ceiling
        )

    def _state_ahead(self, key: str) -> RunState | None:
        """What a search's journal says, where that is more than the campaign has kept: a slice was killed."""
        state = state_of(self._planned[key].folder)
        return state if state and state.evaluations > self._searches[key].evaluations else None

    def keep(self, search: SearchProgress) -> None:
        """Takes in how far a search has come, and writes it to the campaign's file."""
        self._searches[search.key] = search
        self._kept.put(search.key, search.to_json())
        self._kept.put(SECONDS, self.seconds)
        self._on_change(self)
        self._on_kept()

    def _config(self, planned: Planned) -> DictConfig:
        key = key_of(planned.problem, planned.arm)
        if key not in self._composed:
            config = compose_config(RunConfig, [*ALONE, *planned.overrides])
            if planned.sizes:
                source = build(config.problem, device=self._device).source
                OmegaConf.update(config, "problem.sizes", sizes_in(source, planned.sizes), force_add=True)
            self._composed[key] = config
        config = self._composed[key].copy()
        config.device = self._device
        if (planned.folder / "journal.jsonl").exists():
            config.resume = str(planned.folder)
        return config

    def _limit(self, config: DictConfig, before: SearchProgress) -> None:
        """Gives a slice its part of what is left of the campaign's other limits."""
        for unit in ("seconds", "dollars", "calls", "tokens"):
            if (left := self.left(unit)) is not None:
                share = left if unit == "seconds" else left / len(self.running)
                limit = before.total(unit) + share
                config.budget[unit] = int(limit) if unit in ("calls", "tokens") else limit


def state_of(folder: Path) -> RunState | None:
    """Of the search in a folder; None where none has begun. Raises OSError and JournalError."""
    journal = folder / "journal.jsonl"
    return rebuild(replay(journal)) if journal.exists() else None


def grown(before: SearchProgress, state: RunState | None) -> SearchProgress:
    """With the slice between what was known and what the search's journal says now."""
    if state is None:
        return before
    best = next(iter(state.tree.best()), None)
    found = best.evaluation if best is not None else None
    spent = state.spent
    added = Slice(
        evaluations=state.evaluations - before.evaluations,
        seconds=state.used_s - before.total("seconds"),
        device_s=state.device_s - before.total("device_s"),
        calls=int(spent.calls - before.total("calls")),
        tokens=int(spent.tokens - before.total("tokens")),
        dollars=float(spent.dollars) - before.total("dollars"),
        speedup=found.speedup if found else 0.0,
        low=found.speedup_low if found else 0.0,
        failures=failures_in_a_row(state),
    )
    ceiling = before.ceiling
    if found is not None and found.roofline_share:
        ceiling = found.speedup / found.roofline_share
    compiled = any(status is not Status.COMPILE_ERROR for status in state.statuses)
    return replace(
        before,
        slices=(*before.slices, added),
        ceiling=ceiling,
        compiled=compiled,
        final=None,
        final_compile=None,
        final_bound=None,
        final_beyond=None,
    )


def failures_in_a_row(state: RunState) -> int:
    """How many of the last variants were not correct."""
    count = 0
    for variant in reversed(state.tree.variants.values()):
        if variant.evaluation is None:
            continue
        if variant.evaluation.status is Status.CORRECT:
            break
        count += 1
    return count
