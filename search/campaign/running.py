"""Runs a campaign: slices of searches, which share one evaluator and one budget."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from evaluators.base.cause import first_line
from evaluators.base.jsonl_store import JsonlStore, only_writer
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Status
from evaluators.records.overhead import bound_cases, cheapest_call, floor_of, speedup_beyond
from evaluators.records.problem import Kernel, reference_kernel
from search.campaign.schedulers import Scheduler
from search.campaign.slices import SearchProgress, Slice, StopRules, key_of
from search.protocols import KernelEvaluator
from search.records.journal import JOURNAL, recorded_state
from search.records.run_state import RunState
from search.run.searches import PlannedSearch, SearchRunner, run_all, run_concurrently
from search.run.winner_checks import beside, on_held_out

DEFAULTS = ("wandb=off", "report=false", "compare_leaders=false")
"""Overrides of each search, unless the call has others."""
SECONDS, FLOOR, HELD_OUT_SEED = "seconds", "ms of the cheapest call", "seed of held-out configurations"
"""What is kept in addition to the searches."""
LIMITS = ("evaluations", "seconds", "calls", "tokens", "dollars")


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Searches under one budget: `planned`, at most one for each problem and arm. A search gets `slice`
    evaluations at a time, and `at_once` searches run concurrently. `limits` are those of all searches
    together; None: no limit. Each winner is judged in `held_out` configurations that no search saw, and
    compared with the kernel that `rivals` has for its problem."""

    folder: Path
    planned: Sequence[PlannedSearch]
    scheduler: Scheduler
    rules: StopRules
    slice: int
    at_once: int
    limits: Mapping[str, float | None] = field(default_factory=dict)
    held_out: int = 0
    rivals: Mapping[str, Kernel] = field(default_factory=dict)

    @property
    def kept(self) -> Path:
        """The file of the searches' progress: one line per slice, in the order in which they ended."""
        return self.folder / "campaign.jsonl"


class CampaignRun:
    """One campaign, or the continuation of the one in its folder."""

    def __init__(
        self,
        campaign: Campaign,
        evaluator: KernelEvaluator | None,
        device: str,
        on_change: Callable[[CampaignRun], None],
        on_kept: Callable[[], None] = lambda: None,
    ) -> None:
        """`evaluator`: an open one; None where the proposers give the verdicts. `on_change` is called when a
        slice begins or ends, `on_kept` when something was written to the campaign's file."""
        self.campaign, self._on_change, self._on_kept = campaign, on_change, on_kept
        self._runner = SearchRunner(evaluator, device, DEFAULTS)
        self._kept = JsonlStore(campaign.kept)
        self._planned = {key_of(each.problem, each.arm): each for each in campaign.planned}
        self._searches = {key: self._known(key, each) for key, each in self._planned.items()}
        self._begun = {key for key in self._searches if self._state_ahead(key) is not None}
        """The searches whose last slice was killed: they continue first."""
        self.running: dict[str, int] = {}
        """The evaluations in the running slice of each search."""
        self.winners: set[str] = set()
        """The searches whose winners are still to be confirmed: known when all slices have ended."""
        self._start = time.monotonic() - (self._kept.get(SECONDS) or 0.0)
        self._measuring_floor = asyncio.Lock()

    @property
    def searches(self) -> list[SearchProgress]:
        """The progress of all searches, in the campaign's order."""
        return list(self._searches.values())

    def total(self, unit: str) -> float:
        """The amount that all searches have used, see `SearchProgress.total`."""
        return sum(each.total(unit) for each in self.searches)

    async def run(self) -> None:
        """Runs slices until the budget is used up or no search may continue, then measures each winner again.
        Raises UsageError for an arm whose config cannot be composed, and if another process runs the
        campaign."""
        for each in {planned.arm: planned for planned in self.campaign.planned}.values():
            self._runner.config(each)  # reports a wrong arm before anything begins
        with only_writer(self.campaign.kept, "campaign"):
            await self._run()

    async def _run(self) -> None:
        await run_concurrently(self._next_slice, self.campaign.at_once)
        for key in self._begun:  # no budget was left to continue them
            self.keep(grown(self._searches[key], self._state_ahead(key)))
        winners = [each for each in self.searches if each.speedup and not each.unfit and each.final is None]
        self.winners = {each.key for each in winners}
        self._on_change(self)
        await run_all(map(self._confirm, winners), self.campaign.at_once)

    @property
    def seconds(self) -> float:
        """The time that the campaign has taken, earlier calls included."""
        return time.monotonic() - self._start

    def left(self, unit: str) -> float | None:
        """The rest of a limit; None where there is no limit."""
        limit = self.campaign.limits.get(unit)
        if limit is None:
            return None
        if unit == "seconds":
            return limit - self.seconds
        given = sum(self.running.values()) if unit == "evaluations" else 0
        return limit - self.total(unit) - given

    def _next_slice(self) -> Coroutine[Any, Any, None] | None:
        """The slice to begin now; None if the budget is used up or no other search may continue."""
        left = [self.left(unit) for unit in LIMITS]
        if any(each is not None and each <= 0 for each in left):
            return None
        may = [each for each in self.searches if not each.stopped and not each.unfit]
        begun = next((each for each in may if each.key in self._begun), None)
        chosen = begun or self.campaign.scheduler.choose(may, self.running)
        if chosen is None:
            return None
        self._begun.discard(chosen.key)
        evaluations_left = self.left("evaluations")
        share = self.campaign.slice
        self.running[chosen.key] = share if evaluations_left is None else int(min(share, evaluations_left))
        return self._slice(chosen)

    async def _slice(self, before: SearchProgress) -> None:
        planned, share = self._planned[before.key], self.running[before.key]
        self._on_change(self)
        try:
            config = self._runner.config(planned)
            config.budget.evaluations = before.evaluations + share
            self._limit(config, before)
            finished = await self._runner.run(planned, config, confirms=False)
            after = grown(before, state_of(planned.folder))
            reason = "" if finished.reason in LIMITS else finished.reason
            reason = "no more ideas" if reason == "exhausted" else reason
            after = replace(after, stopped=reason or self.campaign.rules.why(after))
        except UsageError as error:
            after = replace(before, unfit=first_line(error))
        finally:
            del self.running[before.key]
        self.keep(after)

    async def _confirm(self, each: SearchProgress) -> None:
        """Measures the winner of a search again."""
        planned = self._planned[each.key]
        config = self._runner.config(planned)
        config.budget.evaluations = max(1, each.evaluations)
        finished = await self._runner.run(planned, config)
        self.winners.discard(each.key)
        found = finished.confirmed
        if found is None or found.timing is None:
            return
        timing = found.timing
        each = replace(
            each,
            final=timing.speedup,
            final_low=timing.speedup_low,
            final_compile=timing.speedup_vs_compile,
            final_share=found.roofline_share,
            final_sol=found.sol_score,
        )
        if found.cases:
            floor_ms = await self._floor_ms()
            beyond = speedup_beyond(found, floor_ms) or None
            each = replace(each, final_bound=len(bound_cases(found, floor_ms)), final_beyond=beyond)
        if finished.best is not None:
            each = await self._checked(each, finished.best.kernel)
        self.keep(each)

    async def _checked(self, each: SearchProgress, kernel: Kernel) -> SearchProgress:
        """The search with its winner's verdicts on held-out configurations, and its gain over the rival."""
        state, evaluator = state_of(self._planned[each.key].folder), self._runner.evaluator
        if evaluator is None or state is None or state.started is None:
            return each
        problem = state.started.problem
        held_out = await on_held_out(
            evaluator, problem, kernel, count=self.campaign.held_out, seed=self._held_out_seed
        )
        each = replace(each, held_out=held_out)
        rival = self.campaign.rivals.get(each.problem)
        if rival is None or (over := await beside(evaluator, problem, kernel, rival)) is None:
            return each
        return replace(each, final_rival=over.speedup, final_rival_low=over.low, final_rival_high=over.high)

    @property
    def _held_out_seed(self) -> int:
        """One for all searches of the campaign, which nobody knows before."""
        if (known := self._kept.get(HELD_OUT_SEED)) is None:
            known = random.SystemRandom().randrange(2**32)
            self._kept.put(HELD_OUT_SEED, known)
        return int(known)

    async def _floor_ms(self) -> float:
        """See `floor_of`; measured once per campaign."""
        async with self._measuring_floor:
            known: float | None = self._kept.get(FLOOR)
            if known is None and (evaluator := self._runner.evaluator) is not None:
                problem = cheapest_call(self._runner.device)
                known = floor_of(await evaluator.evaluate(problem, reference_kernel(problem)))
                self._kept.put(FLOOR, known)
            return known or 0.0

    def _known(self, key: str, planned: PlannedSearch) -> SearchProgress:
        """The progress that was kept, or that of a search that has not begun."""
        if (kept := self._kept.get(key)) is not None:
            return SearchProgress.from_json(kept)
        return SearchProgress(
            problem=planned.problem, arm=planned.arm, weight=planned.weight, ceiling=planned.ceiling
        )

    def _state_ahead(self, key: str) -> RunState | None:
        """The state in a search's journal if it is ahead of the campaign's file, because a slice was
        killed."""
        state = state_of(self._planned[key].folder)
        return state if state and state.evaluations > self._searches[key].evaluations else None

    def keep(self, search: SearchProgress) -> None:
        """Takes over a search's progress and writes it to the campaign's file."""
        self._searches[search.key] = search
        self._kept.put(search.key, search.to_json())
        self._kept.put(SECONDS, self.seconds)
        self._on_change(self)
        self._on_kept()

    def _limit(self, config: DictConfig, before: SearchProgress) -> None:
        """Gives a slice its share of the rest of the campaign's other limits."""
        for unit in ("seconds", "dollars", "calls", "tokens"):
            if (left := self.left(unit)) is not None:
                share = left if unit == "seconds" else left / len(self.running)
                limit = before.total(unit) + share
                config.budget[unit] = int(limit) if unit in ("calls", "tokens") else limit


def state_of(folder: Path) -> RunState | None:
    """The state of the search in a folder; None if none has begun. Raises OSError and JournalError."""
    return recorded_state(folder) if (folder / JOURNAL).exists() else None


def grown(before: SearchProgress, state: RunState | None) -> SearchProgress:
    """The progress with one more slice, from `before` to the state in the search's journal."""
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
    return replace(before.without_final(), slices=(*before.slices, added), ceiling=ceiling, compiled=compiled)


def failures_in_a_row(state: RunState) -> int:
    """The number of incorrect variants since the last correct one."""
    count = 0
    for variant in reversed(state.tree.variants.values()):
        if variant.evaluation is None:
            continue
        if variant.evaluation.status is Status.CORRECT:
            break
        count += 1
    return count
