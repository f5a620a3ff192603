"""What every search does, no matter who steers it: records events, evaluates within the budget, confirms the
winner and offers it to the library.

The engine steers a session with a strategy and a proposer; `agent.py` lets an agent steer it. Each event is
written to the journal first, then applied to the state, then passed to the observers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from evaluators.base.cause import cause_of
from evaluators.base.system_error import system_error
from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import WorkerBroken
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.race import IN_FULL, Threshold, answers
from search.engine.faults import PlugIn, fault, plug_in
from search.engine.in_flight import InFlight
from search.engine.library_seeds import LIBRARY_ENTRIES, library_seeds
from search.engine.library_winner import offer_winner
from search.engine.race import to_judge
from search.engine.requests import Requests
from search.models.client import ModelClient
from search.protocols import KernelEvaluator, Library, Observer
from search.records.budget import Budget, Cost
from search.records.events import (
    ASSUMED,
    BestConfirmed,
    Event,
    LeadersCompared,
    ModelCalled,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantJudgedInFull,
    VariantStage,
)
from search.records.journal import Journal
from search.records.outside import Awaited
from search.records.ranking import LOWER_END
from search.records.run_state import rebuild
from search.records.tree import Seed, Variant

logger = logging.getLogger(__name__)

CONFIRM_AT_MOST = 3
"""The number of best variants to measure again before the run is reported to have no winner."""
COMPARE_AT_MOST = 4
"""The default of `comparisons`."""
MOST_SHOWN = 80
"""Characters of a problem's value that a message shows."""


class Session:
    """One search of one problem, or the continuation of one, from the journal's last state.

    Args:
        problem: The problem to make faster.
        evaluator: Judges the kernels.
        journal: Where events are recorded.
        budget: The limits of the run.
        library: Gives the kernels to start with, and is offered the winner; None for no library.
        observers: Notified of each event, in this order.
        outstanding: The largest number of evaluations with the evaluator at a time.
        library_entries: The number of kernels to request from the library.
        grace_s: Seconds to wait for work in flight after a stop.
        confirm_s: Seconds to wait for the best kernel's final measurement after a stop; 0 reports the best as
            unconfirmed.
        environment: Facts about the device and its software. If they are `ASSUMED`, the evaluator is asked
            for the device's own, which take their place. A run that is resumed on the same device keeps the
            rates of its last start, so that its open questions stay as they are.
        entries: The kernels to start with; None asks the library.
        ranking: See `search.records.ranking`; a resumed run keeps its own.
        compares_each_round: Whether to compare the leaders before each round, not only at the end.
        confirms: Whether to compare the leaders and measure the best kernel again at the end. False for a run
            that will be resumed.
        pairs_with_seed: Whether to time each correct kernel together with its seed.
        comparisons: The largest number of sessions to find out which leader is the fastest, each time.
        race: Whether kernels are judged in two stages, the second only for those that may become seeds or
            the winner.
        plug_ins: Further parts of the search, for the line that says which one failed.
    """

    def __init__(
        self,
        *,
        problem: Problem,
        evaluator: KernelEvaluator,
        journal: Journal,
        budget: Budget,
        library: Library | None = None,
        observers: Sequence[Observer] = (),
        outstanding: int = 64,
        library_entries: int = LIBRARY_ENTRIES,
        grace_s: float = 30.0,
        confirm_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
        entries: Sequence[Seed] | None = None,
        ranking: str = LOWER_END,
        compares_each_round: bool = True,
        confirms: bool = True,
        comparisons: int = COMPARE_AT_MOST,
        race: bool = False,
        pairs_with_seed: bool = False,
        plug_ins: Iterable[PlugIn] = (),
    ) -> None:
        self.problem = problem
        self.evaluator = evaluator
        self.journal = journal
        self.budget = budget
        self.library = library
        self.observers = tuple(observers)
        self.library_entries = library_entries
        self.grace_s = grace_s
        self.environment = dict(environment or {})
        self.outstanding = outstanding
        self.ranking = ranking
        self.compares_each_round = compares_each_round
        self.confirms = confirms
        self.comparisons = comparisons
        self.state = rebuild(journal.past)
        self.entries: tuple[Seed, ...] = tuple(entries or ())
        """The library's hits; a resumed run keeps those that it started with."""
        self._ask_library = library is not None and entries is None
        self.queue = 0
        """The number of written variants that wait for their verdict."""
        self.plug_ins = [plug_in("evaluator", evaluator), plug_in("library", library), *plug_ins]
        self.work = InFlight(lambda error: fault(error, self.plug_ins))
        self.requests = Requests(
            problem=problem,
            evaluator=evaluator,
            budget=budget,
            work=self.work,
            outstanding=outstanding,
            race=race,
            pairs_with_seed=pairs_with_seed,
            grace_s=grace_s,
            confirm_s=confirm_s,
        )
        self.model_client = ModelClient(
            budget=budget,
            path=journal.path.with_name("model_calls.jsonl"),
            report=lambda call: self.record(ModelCalled(at_s=self.now_s, call=call)),
        )
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._broken_observers: set[int] = set()

    def observe(self, observer: Observer) -> None:
        """Adds an observer, notified after the others."""
        self.observers = (*self.observers, observer)

    @property
    def now_s(self) -> float:
        """Seconds of work on this run."""
        return self.budget.elapsed_s

    def awaited(self) -> Awaited | None:
        """The answers and verdicts that the search waits for, if nothing else can advance it."""
        answers, verdicts = self.model_client.awaited(), self.requests.awaited()
        if answers is None or verdicts is None or not (answers or verdicts):
            return None
        return Awaited(answers=tuple(answers), verdicts=tuple(verdicts))

    def start(self, *, proposer: str, strategy: str, seed: int) -> None:
        """Starts or resumes: sets the budget going and asks the library. Call `announce` next. Raises
        UsageError if the journal belongs to another search."""
        state, spent = self.state, self.state.spent
        cost = Cost(calls=spent.calls, tokens=spent.tokens, dollars=spent.dollars)
        self.budget.start(used_s=state.used_s, evaluations=state.evaluations, cost=cost)
        self._identity: dict[str, Any] = {"proposer": proposer, "strategy": strategy, "seed": seed}
        if (started := state.started) is not None:
            if started.problem.id != self.problem.id:
                changes = "; ".join(_changes(started.problem, self.problem))
                raise UsageError(
                    f"{self.journal.path} has another problem: {changes}; start a new run to change it"
                )
            for what, was, now in (
                ("strategy", started.strategy, strategy),
                ("seed", started.seed, seed),
            ):
                if was != now:
                    raise UsageError(
                        f"{self.journal.path} has {what} {was}, not {now}; start a new run to change it"
                    )
            self.entries, self.ranking = started.entries, started.ranking
            last = next(each for each in reversed(self.journal.past) if isinstance(each, RunStarted))
            self.environment.update(last.rates_on(self.environment))
        elif self._ask_library and self.library is not None:
            self.entries = library_seeds(self.library, self.problem, self.environment, self.library_entries)

    def announce(self) -> None:
        """Records that the run has started or resumed."""
        self._record_start()
        if ASSUMED in self.environment:
            self.work.spawn(self._describe(), "describe the device")

    async def _describe(self) -> None:
        """Replaces the assumed facts, also in the proposer's view of them. Ends the search if the problem
        cannot be run there."""
        try:
            facts = await self.requests.asked(self.evaluator.describe(self.problem))
        except WorkerBroken as error:
            reason = f"{self.problem.name} cannot be searched: {cause_of(str(error))}"
            logger.error("%s", reason)
            self.work.request_stop(f"error: {reason}")
            return
        self.environment.clear()
        self.environment.update(facts)
        self._record_start()

    def _record_start(self) -> None:
        self.record(
            RunStarted(
                at_s=self.now_s,
                problem=self.problem,
                rounds=self.budget.rounds or 0,
                environment=dict(self.environment),
                entries=self.entries,
                ranking=self.ranking,
                **self._identity,
            )
        )

    def seed(self, id: str) -> Seed | None:
        """The variant or library entry with this id; None for the reference."""
        variant = self.state.tree.variants.get(id)
        entry = next((each for each in self.entries if each.id == id), None)
        return variant.seed if variant is not None else entry

    async def evaluate(self, variant: Variant, threshold: Threshold = IN_FULL) -> Variant | None:
        """Evaluates a variant, or takes over the verdict of an equal kernel, and settles its reservation.
        `threshold`: in a race, the speedup from which it is judged in full. Returns None if the run was
        stopped or its time was up before a device was free."""
        kernel, verdicts = variant.kernel, self.state.verdicts
        self._stage(variant, "queued")
        spent = False
        self.queue += 1
        try:
            async with self._one_at_a_time[kernel.id]:
                evaluation = verdicts.get(kernel.id)
                reused = evaluation is not None and answers(evaluation, threshold)
                if not reused:
                    evaluation = await self._ask_evaluator(variant, threshold)
                if evaluation is None:
                    return None
                spent = not reused
                judged = variant.judged(evaluation)
                self.record(VariantEvaluated(at_s=self.now_s, variant=judged, reused=reused))
                return judged
        finally:
            self.queue -= 1
            self.budget.settle(spent=spent)

    async def judge_in_full(self, variant: Variant) -> list[Variant]:
        """Judges an outpaced variant in full. Returns it and the variants with an equal kernel, which get the
        same verdict; none if the run was stopped or its time was up before a device was free. It is not
        another evaluation, but its device time counts."""
        full = await self._ask_evaluator(variant, IN_FULL)
        return [] if full is None else self._record_in_full(variant, full)

    async def judge_winner(self) -> None:
        """Judges in full what may be the best of the search although the search ended in the middle of a
        round, as far as there is time after a stop."""
        for _ in range(CONFIRM_AT_MOST if self.requests.races and self.confirms else 0):
            for variant in to_judge(self.state.tree, ()):
                full = await self.requests.last_in_full(variant.kernel, f"judge variant {variant.id} in full")
                if full is None:
                    return
                self._record_in_full(variant, full)

    def _record_in_full(self, variant: Variant, full: Evaluation) -> list[Variant]:
        if full.status is Status.OUTPACED:
            log = "it was to be judged in full, but the evaluator's verdict has only a quick stage"
            full = Evaluation(status=Status.INFRASTRUCTURE_ERROR, log=log)
        id = variant.id
        equal = [
            each
            for each in self.state.tree.variants.values()
            if each.id != id and each.is_outpaced and each.written.id == variant.written.id
        ]
        judged = [each.judged(full) for each in (variant, *equal)]
        at_s = self.now_s
        self.record(*(VariantJudgedInFull(at_s=at_s, variant=each, reused=each.id != id) for each in judged))
        return judged

    def close_round(self, number: int) -> None:
        """Records that the round is complete."""
        best = next(iter(self.state.tree.best()), None)
        evaluations = self.state.evaluations
        self.record(RoundClosed(at_s=self.now_s, round=number, best=best, evaluations=evaluations))
        self.journal.sync()

    async def compare_leaders(self, usable: Callable[[Kernel], bool] = lambda kernel: True) -> None:
        """Measures the `usable` kernels that may be the fastest against one another, if their order is
        unclear.

        Call it between rounds. No measurement starts after a stop or once the time is up; one in flight
        continues, as an evaluation does. These measurements do not count as evaluations, but their device
        time counts. None starts once they have taken more than half of the run's device time, so that a
        search of three evaluations does not spend ten sessions on its order. A failed session leaves the
        order as it was.
        """
        for _ in range(self.comparisons - self.state.tree.comparisons_since_round):
            if self.state.compared_s > self.state.device_s / 2:
                return
            leaders = self.state.tree.leaders(usable)
            found = await self.requests.comparison([each.kernel for each in leaders]) if leaders else None
            if found is None:
                return
            tables = [each.evaluation.configurations if each.evaluation else () for each in leaders]
            found = [replace(each, configurations=table) for each, table in zip(found, tables, strict=True)]
            self.record(LeadersCompared(at_s=self.now_s, variants=tuple(leaders), evaluations=tuple(found)))

    async def finish(self, reason: Callable[[], str]) -> RunFinished:
        """Measures the best kernel again and ends the run; `reason` is evaluated at the very end."""
        if self.confirms:
            await self.compare_leaders()
            best, confirmed = await self._confirm()
        else:
            best, confirmed = next(iter(self.state.tree.best()), None), None
        try:
            await self._offer(best, confirmed)
        except Exception as error:
            self.work.fail("offer the winner to the library", error)
        finished = RunFinished(at_s=self.now_s, reason=reason(), best=best, confirmed=confirmed)
        self.record(finished)
        self.journal.sync()
        return finished

    def close(self) -> None:
        """Cancels work in flight; the observers see no more events."""
        self.work.cancel()
        for observer in self.observers:
            self._tell(observer, None)

    def record(self, *events: Event) -> None:
        """Writes a batch of events to the journal, applies it to the state, then notifies the observers.
        Raises OSError if the journal cannot be written."""
        self.journal.append(events)
        for event in events:
            self.state.apply(event)
        for event in events:
            self._notify(event)

    async def _ask_evaluator(self, variant: Variant, threshold: Threshold) -> Evaluation | None:
        """Returns None if the run was stopped or its time was up before a device was free."""
        seed = self.seed(variant.parent)
        return await self.requests.verdict(
            variant.kernel, threshold, None if seed is None else seed.kernel, partial(self._stage, variant)
        )

    async def _confirm(self) -> tuple[Variant | None, Evaluation | None]:
        """The best variant that stays correct when measured again; unconfirmed if there is no time for
        that."""
        for variant in self.state.tree.best(CONFIRM_AT_MOST):
            evaluation = self.state.confirmed.get(variant.kernel.id) or await self._measure_again(variant)
            if evaluation is None or evaluation.status is Status.CORRECT:
                return variant, evaluation
            status, cause = evaluation.status, evaluation.cause
            logger.warning("variant %s is not confirmed: %s: %s", variant.id, status, cause)
        return None, None

    async def _measure_again(self, variant: Variant) -> Evaluation | None:
        evaluation = await self.requests.last_thorough(variant.kernel, f"confirm variant {variant.id}")
        if evaluation is not None:
            self.record(BestConfirmed(at_s=self.now_s, variant=variant, evaluation=evaluation))
        return evaluation

    async def _offer(self, best: Variant | None, confirmed: Evaluation | None) -> None:
        """Offers the winner to the library, only after it has been measured again."""
        if self.library is not None and best is not None and confirmed is not None:
            await offer_winner(
                self.library,
                self.problem,
                self.environment,
                self.state.tree,
                str(self.journal.path.parent),
                best=best,
                confirmed=confirmed,
                compare=self.requests.comparison,
            )

    def _stage(self, variant: Variant, stage: str) -> None:
        self._notify(VariantStage(at_s=self.now_s, variant_id=variant.id, stage=stage))

    def _notify(self, event: Event) -> None:
        for observer in self.observers:
            self._tell(observer, event)

    def _tell(self, observer: Observer, event: Event | None) -> None:
        """Passes an event, or None for the end, to an observer. Only its first failure is logged."""
        try:
            if event is None:
                observer.close()
            else:
                observer.on_event(event)
        except Exception as error:
            if id(observer) not in self._broken_observers:
                name, cause = type(observer).__name__, system_error(error)
                what = "observer %s failed; the search continues%s"
                logger.error(what, name, f": {cause}" if cause else "", exc_info=None if cause else error)
            self._broken_observers.add(id(observer))


def _changes(was: Problem, now: Problem) -> Iterator[str]:
    """The fields in which two problems differ, in words."""
    for name in (each.name for each in fields(Problem)):
        before, after = getattr(was, name), getattr(now, name)
        if before != after:
            short = max(len(str(before)), len(str(after))) < MOST_SHOWN
            what = "sizes" if name == "overrides" else name
            yield f"{what} {before}, not {after}" if short else f"another {what}"
