"""One search, round by round: select, propose, implement, evaluate, close. Knows protocols only.

One generic loop in named phases, the policy a parameter (after mctx's `search.py`). What happens is
written to the journal first, then taken into the state, then told to the observers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from evaluators.evaluation import Evaluation, Status
from evaluators.problem import Problem
from kernel_library.entry import Entry
from search.budget import Budget
from search.events import (
    BestConfirmed,
    Event,
    IdeaProposed,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantStage,
    VariantWritten,
)
from search.in_flight import InFlight
from search.journal import Journal, rebuild
from search.protocols import Evaluator, Library, Observer, Proposer, Strategy
from search.tree import Expansion, Idea, Outcome, Seed, Variant

logger = logging.getLogger(__name__)

HISTORY = ("all", "none")
CONFIRM_AT_MOST = 3
"""How many of the best variants are measured again before the run is said to have none."""


class Engine:
    """A search of one problem; goes on from whatever the journal holds.

    `history` says what a proposer is told of earlier ideas: `all` or `none` of them. At most
    `outstanding` evaluations are with the evaluator at a time, and nothing is asked of the proposer while
    twice as many are under way, those still to be written included. `library_entries` is how many kernels
    are asked of the library. After `request_stop`, work in flight is awaited for `grace_s` seconds and the
    best kernel's final measurement for `confirm_s` (0: the best is reported unconfirmed).

    Every choice draws on a generator seeded by `seed` and its place in the search, so that the result
    does not depend on the order in which work finishes. Raises ValueError for settings that cannot be,
    and for a journal of another search.
    """

    def __init__(
        self,
        *,
        problem: Problem,
        strategy: Strategy,
        proposer: Proposer,
        evaluator: Evaluator,
        journal: Journal,
        budget: Budget,
        library: Library | None = None,
        observers: Sequence[Observer] = (),
        seed: int = 0,
        history: str = "all",
        outstanding: int = 64,
        library_entries: int = 4,
        grace_s: float = 30.0,
        confirm_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if history not in HISTORY:
            raise ValueError(f"history is {history!r}; it must be one of {', '.join(HISTORY)}")
        if outstanding < 1:
            raise ValueError(f"outstanding is {outstanding}; at least one evaluation must be allowed")
        self.problem = problem
        self.strategy = strategy
        self.proposer = proposer
        self.evaluator = evaluator
        self.journal = journal
        self.budget = budget
        self.library = library
        self.observers = tuple(observers)
        self.seed = seed
        self.history = history
        self.library_entries = library_entries
        self.grace_s = grace_s
        self.confirm_s = confirm_s
        self.environment = dict(environment or {})
        self.state = rebuild(journal.past)
        self._entries: tuple[Seed, ...] = ()
        self._work = InFlight()
        self._dry = False
        self._slots = asyncio.Semaphore(outstanding)
        self._under_way = 2 * outstanding
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._broken_observers: set[int] = set()

    async def run(self) -> RunFinished:
        """Searches until a limit, a stop or an error ends it; an error is in the reason (`error: ...`).

        Raises OSError when the journal cannot be written, and whatever the strategy or library raises.
        """
        try:
            ended = self._start()
            if ended is not None:
                return ended
            while self._goes_on():
                await self._round(self.state.tree.rounds_closed + 1)
            best, confirmed = await self._confirm()
            reason = self._reason() or "interrupted"
            finished = RunFinished(at_s=self._now(), reason=reason, best=best, confirmed=confirmed)
            self._record(finished)
            self.journal.sync()
            self._offer(best, confirmed)
            return finished
        finally:
            self._work.cancel()
            for observer in self.observers:
                self._tell(observer, None)

    def request_stop(self, reason: str) -> None:
        """Ends the run in order: nothing new is submitted. For the event loop's thread (signal handlers)."""
        self._work.request_stop(reason)

    def _start(self) -> RunFinished | None:
        """Begins or resumes; returns how the run ended where that stands, and nothing is left to do."""
        state = self.state
        self.budget.start(used_s=state.used_s, evaluations=state.evaluations)
        if state.started is not None:
            self._check_same_search(state.started)
            self._entries = state.started.entries
        elif self.library is not None:
            found = self.library.lookup(self.problem, self.library_entries)
            self._entries = tuple(Seed(id=e.id, kernel=e.kernel, evaluation=e.evaluation) for e in found)
        if state.finished is not None and state.finished.reason == self._reason():
            return state.finished
        self._record(
            RunStarted(
                at_s=self._now(),
                problem=self.problem,
                proposer=type(self.proposer).__name__,
                strategy=type(self.strategy).__name__,
                rounds=self.budget.rounds or 0,
                seed=self.seed,
                environment=self.environment,
                entries=self._entries,
            )
        )
        return None

    def _check_same_search(self, started: RunStarted) -> None:
        for what, was, now in (
            ("problem", started.problem.id, self.problem.id),
            ("strategy", started.strategy, type(self.strategy).__name__),
            ("seed", started.seed, self.seed),
        ):
            if was != now:
                raise ValueError(f"{self.journal.path} has {what} {was}, not {now}; start a new run for that")

    async def _round(self, number: int) -> None:
        """One round, or what is left of it. It stays open when a stop cuts it short."""
        expansions = self._select(number)
        self._work.spawn(self._propose_all(number, expansions), f"propose in round {number}")
        await self._work.drain(self.grace_s)
        if self._work.stop is None and not self.state.proposed:
            self._dry = True
        elif self._work.stop is None:
            self._close(number)

    def _select(self, number: int) -> list[Expansion]:
        rng = self._rng(number, "select")
        chosen = self.strategy.select(self.state.tree.before(number), self._entries, rng)
        expansions = [replace(expansion, round=number) for expansion in chosen]
        for index, ideas in self.state.proposed.items():
            if index >= len(expansions) or ideas[0].parent != _parent(expansions[index]):
                raise ValueError(
                    f"{self.journal.path}: round {number} was begun with other settings of the strategy; "
                    "resume with those, or start a new run"
                )
        return expansions

    async def _propose_all(self, number: int, expansions: Sequence[Expansion]) -> None:
        """Asks for ideas, one expansion after the other, and begins each idea as it comes."""
        past = self.state.tree.before(number).history() if self.history == "all" else []
        recorded = dict(self.state.proposed)
        for index, expansion in enumerate(expansions):
            ideas = recorded.get(index, [])
            if index > max(recorded, default=-1):
                if not await self._room(1):
                    return
                ideas = await self._propose(index, expansion, past)
            for idea in ideas:
                if not await self._begin(idea, expansion):
                    return

    async def _propose(self, index: int, expansion: Expansion, past: Sequence[Outcome]) -> list[Idea]:
        number, known = expansion.round, self.state.tree.ideas
        so_far = [idea for ideas in self.state.proposed.values() for idea in ideas]
        told = [*past, *(Outcome(idea=idea, best=None, variants=()) for idea in so_far)]
        rng = self._rng(number, index, "propose")
        told = told if self.history == "all" else []
        answer = await self.proposer.propose(self.problem, expansion, told, rng)
        placed = (replace(idea, round=number, parent=_parent(expansion)) for idea in answer)
        ideas = [idea for idea in {idea.id: idea for idea in placed}.values() if idea.id not in known]
        ideas = ideas[: expansion.ideas]
        if len(ideas) < len(answer):
            logger.warning("%d ideas were repeated or too many", len(answer) - len(ideas))
        at_s, of = self._now(), len(ideas)
        self._record(
            *(
                IdeaProposed(at_s=at_s, idea=idea, number=i, expansion=index, of=of)
                for i, idea in enumerate(ideas, start=len(so_far) + 1)
            )
        )
        return ideas

    async def _begin(self, idea: Idea, expansion: Expansion) -> bool:
        """Submits what an idea still needs; False when the budget or a stop allows no more."""
        written = self.state.tree.variants_of(idea.id)
        waiting = [variant for variant in written if variant.evaluation is None]
        if written and not waiting:
            return True
        wanted = len(waiting) or expansion.variants
        if not await self._room(wanted):
            return False
        granted = self.budget.reserve(wanted)
        if not written:
            self._work.spawn(self._implement(idea, expansion.seed, granted), f"implement idea {idea.id}")
        for variant in waiting[:granted]:
            self._work.spawn(self._evaluate(variant), f"evaluate variant {variant.id}")
        return True

    async def _room(self, wanted: int) -> bool:
        """Whether another evaluation may be reserved.

        Waits while enough is under way to keep the evaluator busy: what is asked for now would only lie in
        the queue. Near the limit, waits until every reservation before is settled: an idea then gets what
        those before it did not use, in whatever order they finished.
        """
        while self._work.stop is None and (
            self.budget.reserved >= self._under_way
            or (self.budget.available < wanted and self.budget.reserved)
        ):
            await self._work.changed()
        return self._work.stop is None and self.budget.available > 0

    async def _implement(self, idea: Idea, parent: Seed | None, n: int) -> None:
        """Has the idea's variants written, and sends them on; `n` evaluations are reserved for them."""
        rng = self._rng(idea.round, idea.id, "implement")
        answer = await self.proposer.implement(self.problem, idea, parent, n, rng)
        kernels = list({kernel.id: kernel for kernel in answer}.values())[:n]
        variants = [Variant(kernel=k, idea=idea.id, parent=idea.parent, round=idea.round) for k in kernels]
        at_s, of = self._now(), len(variants)
        self._record(
            *(VariantWritten(at_s=at_s, variant=v, number=i, of=of) for i, v in enumerate(variants, start=1))
        )
        for _ in range(n - of):
            self.budget.settle(spent=False)
        for variant in variants:
            self._work.spawn(self._evaluate(variant), f"evaluate variant {variant.id}")

    async def _evaluate(self, variant: Variant) -> None:
        """Gets a variant its verdict, from an equal kernel where there is one; settles its reservation."""
        kernel, verdicts = variant.kernel, self.state.verdicts
        self._stage(variant, "queued")
        spent = False
        try:
            async with self._one_at_a_time[kernel.id]:
                reused = kernel.id in verdicts
                evaluation = verdicts.get(kernel.id) or await self._ask_evaluator(variant)
                if evaluation is None:
                    return
                spent = not reused
                judged = replace(variant, evaluation=evaluation)
                self._record(VariantEvaluated(at_s=self._now(), variant=judged, reused=reused))
        finally:
            self.budget.settle(spent=spent)

    async def _ask_evaluator(self, variant: Variant) -> Evaluation | None:
        """None when the run was stopped, or its time was up, before the evaluator was free."""
        async with self._slots:
            if self._work.stop is not None or self.budget.timed_out:
                return None
            return await self.evaluator.evaluate(
                self.problem, variant.kernel, on_stage=lambda stage: self._stage(variant, stage)
            )

    def _close(self, number: int) -> None:
        best = next(iter(self.state.tree.best()), None)
        evaluations = self.state.evaluations
        self._record(RoundClosed(at_s=self._now(), round=number, best=best, evaluations=evaluations))
        self.journal.sync()

    async def _confirm(self) -> tuple[Variant | None, Evaluation | None]:
        """The best variant that holds when measured again; unconfirmed where there is no time for that."""
        for variant in self.state.tree.best(CONFIRM_AT_MOST):
            evaluation = self.state.confirmed.get(variant.kernel.id) or await self._measure_again(variant)
            if evaluation is None or evaluation.status is Status.CORRECT:
                return variant, evaluation
            logger.warning("variant %s did not hold: %s", variant.id, evaluation.status)
        return None, None

    async def _measure_again(self, variant: Variant) -> Evaluation | None:
        if self._work.stop is not None and self.confirm_s <= 0:
            return None
        measuring = self.evaluator.evaluate(self.problem, variant.kernel, thorough=True)
        task = self._work.spawn(measuring, f"confirm variant {variant.id}")
        await self._work.drain(self.confirm_s)
        if task.cancelled() or task.exception() is not None:
            return None
        evaluation = task.result()
        self._record(BestConfirmed(at_s=self._now(), variant=variant, evaluation=evaluation))
        return evaluation

    def _offer(self, best: Variant | None, confirmed: Evaluation | None) -> None:
        """The winner goes to the library once it has been measured again, never before."""
        if self.library is None or best is None or confirmed is None:
            return
        entry = Entry(
            problem=self.problem.name,
            problem_id=self.problem.id,
            kernel=best.kernel,
            evaluation=confirmed,
            idea=self.state.tree.ideas[best.idea].text,
        )
        try:
            self.library.add(entry)
        except OSError as error:
            logger.warning("the winner could not be added to the library: %s", error)

    def _now(self) -> float:
        return self.budget.elapsed_s

    def _rng(self, *place: object) -> random.Random:
        return random.Random("/".join(str(part) for part in (self.seed, *place)))

    def _reason(self) -> str | None:
        """Why the run ends now; None while it goes on."""
        limit = self.budget.exhausted(self.state.tree.rounds_closed)
        return self._work.stop or limit or ("exhausted" if self._dry else None)

    def _goes_on(self) -> bool:
        """Also when a limit was met in a round that is still open: it remains to be closed."""
        reason = self._reason()
        return reason is None or (reason in ("evaluations", "seconds") and bool(self.state.proposed))

    def _stage(self, variant: Variant, stage: str) -> None:
        self._notify(VariantStage(at_s=self._now(), variant_id=variant.id, stage=stage))

    def _record(self, *events: Event) -> None:
        self.journal.append(events)
        for event in events:
            self.state.apply(event)
        for event in events:
            self._notify(event)

    def _notify(self, event: Event) -> None:
        for observer in self.observers:
            self._tell(observer, event)

    def _tell(self, observer: Observer, event: Event | None) -> None:
        """An event, or None for the end. An observer's failure is its own: logged once."""
        try:
            if event is None:
                observer.close()
            else:
                observer.on_event(event)
        except Exception:
            if id(observer) not in self._broken_observers:
                logger.exception("observer %s failed; the search goes on", type(observer).__name__)
            self._broken_observers.add(id(observer))


def _parent(expansion: Expansion) -> str:
    return "" if expansion.seed is None else expansion.seed.id
