"""One search, round by round: select, propose, implement, evaluate, close. Knows protocols only.

One generic loop in named phases, the policy a parameter (after mctx's `search.py`). What every search does
whoever steers it is the session's.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from evaluators.evaluation import Status
from evaluators.problem import Kernel
from search.budget import BudgetSpent
from search.events import IdeaImplemented, IdeaProposed, RunFinished, VariantWritten
from search.protocols import Proposer, ProposerFailed, RunContext, Strategy, View, asked_in_a_round
from search.session import Session
from search.tree import (
    HISTORY,
    LIBRARY,
    Expansion,
    Idea,
    Outcome,
    Seed,
    Variant,
    drop_ins,
    library_idea,
    shown_history,
)

logger = logging.getLogger(__name__)

REPAIRABLE = (
    Status.COMPILE_ERROR,
    Status.RUNTIME_ERROR,
    Status.INCORRECT,
    Status.CRASHED,
    Status.TIMEOUT,
)


class Engine:
    """A search of one problem; goes on from whatever the journal holds.

    Its first round measures the library's kernels for the problem, too, so that a search never ends below
    what was known.

    `history` says what a proposer is shown of earlier ideas (see `search.tree.shown_history`), `repairs` how
    often a variant that failed is given back to the proposer with the evaluator's log. Nothing is asked of
    the proposer while it is writing as many variants as `writing`, or while twice as many wait for their
    verdict as may be with the evaluator at a time.

    Every choice draws on a generator seeded by `seed` and its place in the search, so that the result
    does not depend on the order in which work finishes. Raises ValueError for settings that cannot be.
    """

    def __init__(
        self,
        session: Session,
        *,
        strategy: Strategy,
        proposer: Proposer,
        seed: int = 0,
        history: str = "all",
        repairs: int = 0,
        writing: int = 128,
    ) -> None:
        if history not in HISTORY:
            raise ValueError(f"history is {history!r}; it must be one of {', '.join(HISTORY)}")
        if repairs < 0:
            raise ValueError(f"repairs is {repairs}; it must not be negative")
        self.session = session
        self.strategy = strategy
        self.proposer = proposer
        self.seed = seed
        self.history = history
        self.repairs = repairs
        self.writing = writing
        self._dry = False
        self._longest_queue = 2 * session.outstanding

    async def run(self) -> RunFinished:
        """Searches until a limit, a stop or an error ends it; an error is in the reason (`error: ...`).

        Raises ValueError for a journal of another search, OSError when it cannot be written, and whatever the
        strategy or library raises.
        """
        session, state = self.session, self.session.state
        try:
            strategy, proposer = type(self.strategy).__name__, type(self.proposer).__name__
            session.start(proposer=proposer, strategy=strategy, seed=self.seed)
            if state.finished is not None and state.finished.reason == self._reason():
                return state.finished
            session.announce()
            self.proposer.begin(
                RunContext(
                    problem=session.problem,
                    folder=session.journal.path.parent,
                    state=state,
                    entries=session.entries,
                    facts=session.environment,
                    model_client=session.model_client,
                )
            )
            while self._goes_on():
                await self._round(state.tree.rounds_closed + 1)
            return await session.finish(lambda: self._reason() or "interrupted")
        finally:
            session.close()
            await self.proposer.close()

    def request_stop(self, reason: str) -> None:
        """Ends the run in order: nothing new is submitted. For the event loop's thread (signal handlers)."""
        self.session.work.request_stop(reason)

    async def _round(self, number: int) -> None:
        """One round, or what is left of it. It stays open when a stop cuts it short."""
        work, state = self.session.work, self.session.state
        if not state.proposed:
            await self.session.compare_leaders(self._usable)
        if work.stop is not None:
            return
        expansions = self._select(number)
        work.spawn(self._propose_all(number, expansions), f"propose in round {number}")
        await work.drain(self.session.grace_s)
        if work.stop is None and not state.proposed:
            self._dry = True
        elif work.stop is None:
            self.session.close_round(number)

    def _select(self, number: int) -> list[Expansion]:
        state = self.session.state
        entries = drop_ins(self.session.entries)
        known = entries if number == 1 else []
        usable = [seed for seed in entries if self._usable(seed.kernel)]
        tree = state.tree.before(number, self._usable)
        view = View(tree=tree, entries=usable, round=number)
        chosen = asked_in_a_round(self.strategy, view, lambda index: self._rng(number, index, "select"))
        expansions = [Expansion(seed=seed, ideas=1, variants=1, as_it_is=True) for seed in known]
        expansions = [replace(expansion, round=number) for expansion in (*expansions, *chosen)]
        for index, ideas in state.proposed.items():
            if index >= len(expansions) or ideas[0].parent != _parent(expansions[index]):
                raise ValueError(
                    f"{self.session.journal.path}: round {number} was begun with other settings of the "
                    "strategy; resume with those, or start a new run"
                )
        return expansions

    def _usable(self, kernel: Kernel) -> bool:
        return self.proposer.extends(self.session.problem, kernel)

    async def _propose_all(self, number: int, expansions: Sequence[Expansion]) -> None:
        """Asks for ideas, one expansion after the other, and begins each idea as it comes."""
        state = self.session.state
        past = shown_history(state.tree.before(number).history(), self.history)
        recorded = dict(state.proposed)
        for index, expansion in enumerate(expansions):
            ideas = recorded.get(index, [])
            if index > max(recorded, default=-1):
                if not await self._room(1):
                    return
                try:
                    ideas = await self._propose(index, expansion, past)
                except BudgetSpent as spent:
                    logger.info("no more ideas: %s", spent)
                    return
                except ProposerFailed as error:
                    self.request_stop(f"error: {error}")
                    return
            for idea in ideas:
                if not await self._begin(idea, expansion):
                    return

    async def _propose(self, index: int, expansion: Expansion, past: Sequence[Outcome]) -> list[Idea]:
        number, state = expansion.round, self.session.state
        if expansion.as_it_is and expansion.seed is not None:
            return self._record_ideas(index, [library_idea(expansion.seed, number)])
        known = state.tree.ideas
        so_far = [idea for ideas in state.proposed.values() for idea in ideas]
        rng = self._rng(number, index, "propose")
        history = [*past, *(Outcome(idea=idea, best=None, variants=()) for idea in so_far)]
        history = history if self.history != "none" else []
        answer = await self.proposer.propose(self.session.problem, expansion, history, rng)
        placed = (replace(idea, round=number, parent=_parent(expansion)) for idea in answer)
        ideas = [idea for idea in {idea.id: idea for idea in placed}.values() if idea.id not in known]
        ideas = ideas[: expansion.ideas]
        if len(ideas) < len(answer):
            logger.warning("%d ideas were repeated or too many", len(answer) - len(ideas))
        return self._record_ideas(index, ideas)

    def _record_ideas(self, index: int, ideas: list[Idea]) -> list[Idea]:
        """Those of an expansion, numbered on from those that the round has had."""
        at_s, of = self.session.now_s, len(ideas)
        start = 1 + sum(len(each) for each in self.session.state.proposed.values())
        self.session.record(
            *(
                IdeaProposed(at_s=at_s, idea=idea, number=i, expansion=index, of=of)
                for i, idea in enumerate(ideas, start)
            )
        )
        return ideas

    async def _begin(self, idea: Idea, expansion: Expansion) -> bool:
        """Submits what an idea still needs; False when the budget or a stop allows no more."""
        work, budget = self.session.work, self.session.budget
        there = self.session.state.tree.variants_of(idea.id)
        waiting = [variant for variant in there if variant.evaluation is None]
        missing = 0
        if idea.id not in self.session.state.implemented:
            missing = expansion.variants - sum(not variant.repairs for variant in there)
        repaired = {variant.repairs for variant in there}
        for variant in there:
            if variant.evaluation is not None and variant.id not in repaired and self._repairable(variant):
                work.spawn(self._repair(variant, idea), f"repair variant {variant.id}")
        if not waiting and missing <= 0:
            return True
        if not await self._room(len(waiting) + missing):
            return False
        granted = budget.reserve(len(waiting) + missing)
        for variant in waiting[:granted]:
            work.spawn(self._evaluate(variant, idea), f"evaluate variant {variant.id}")
        if (n := granted - len(waiting)) > 0:
            work.spawn(self._implement(idea, expansion.seed, n), f"implement idea {idea.id}")
        return True

    async def _room(self, wanted: int) -> bool:
        """Whether another evaluation may be reserved.

        Waits while enough is under way: what is asked for now would only lie in the queue. Near the limit,
        waits until every reservation before is settled: an idea then gets what those before it did not use,
        in whatever order they finished.
        """
        work, budget = self.session.work, self.session.budget
        while work.stop is None and (
            (queue := self.session.queue) >= self._longest_queue
            or budget.reserved - queue >= self.writing
            or (budget.available < wanted and budget.reserved)
        ):
            await work.changed()
        return work.stop is None and budget.available > 0

    async def _implement(self, idea: Idea, parent: Seed | None, n: int) -> None:
        """Has n more variants of an idea written, and sends each on as it comes; n evaluations are reserved
        for them."""
        session = self.session
        there = [v.kernel for v in session.state.tree.variants_of(idea.id) if not v.repairs]
        known = {variant.kernel.id for variant in session.state.tree.variants_of(idea.id)}
        rng = self._rng(idea.round, idea.id, "implement")
        left, number = n, len(known)
        writing = self.proposer.implement(session.problem, idea, parent, len(there) + n, there, rng)
        try:
            async for kernel in _as_it_is(parent) if idea.proposer == LIBRARY else writing:
                if kernel.id in known or not left:
                    continue
                known.add(kernel.id)
                left, number = left - 1, number + 1
                self._write(
                    Variant(kernel=kernel, idea=idea.id, parent=idea.parent, round=idea.round), idea, number
                )
            session.record(IdeaImplemented(at_s=session.now_s, idea_id=idea.id, variants=number))
        except BudgetSpent as spent:
            logger.info("idea %s has %d variants fewer: %s", idea.id, left, spent)
        finally:
            for _ in range(left):
                session.budget.settle(spent=False)

    def _write(self, variant: Variant, idea: Idea, number: int) -> None:
        self.session.record(VariantWritten(at_s=self.session.now_s, variant=variant, number=number))
        self.session.work.spawn(self._evaluate(variant, idea), f"evaluate variant {variant.id}")

    async def _evaluate(self, variant: Variant, idea: Idea) -> None:
        judged = await self.session.evaluate(variant)
        if judged is not None and self._repairable(judged):
            await self._repair(judged, idea)

    def _repairable(self, variant: Variant) -> bool:
        """Whether it failed in a way that its log may help against, and has not been mended too often."""
        if variant.evaluation is None or variant.evaluation.status not in REPAIRABLE:
            return False
        if self.session.state.tree.ideas[variant.idea].proposer == LIBRARY:
            return False
        times, each = 0, variant
        while each.repairs:
            times, each = times + 1, self.session.state.tree.variants[each.repairs]
        return times < self.repairs

    async def _repair(self, failed: Variant, idea: Idea) -> None:
        """One more try at a variant that failed, where the budget has room for its evaluation."""
        session, tree = self.session, self.session.state.tree
        if session.work.stop is not None or not session.budget.reserve(1):
            return
        rng = self._rng(idea.round, failed.id, "repair")
        try:
            kernel = await self.proposer.repair(session.problem, idea, failed, rng)
        except BudgetSpent as spent:
            logger.info("variant %s is not repaired: %s", failed.id, spent)
            kernel = None
        there = tree.variants_of(idea.id)
        if kernel is None or kernel.id in {variant.kernel.id for variant in there}:
            session.budget.settle(spent=False)
            return
        self._write(
            Variant(kernel=kernel, idea=idea.id, parent=idea.parent, round=idea.round, repairs=failed.id),
            idea,
            len(there) + 1,
        )

    def _rng(self, *place: object) -> random.Random:
        return random.Random("/".join(str(part) for part in (self.seed, *place)))

    def _reason(self) -> str | None:
        """Why the run ends now; None while it goes on."""
        session = self.session
        limit = session.budget.exhausted(session.state.tree.rounds_closed)
        return session.work.stop or limit or ("exhausted" if self._dry else None)

    def _goes_on(self) -> bool:
        """Also when a limit was met in a round that is still open: it remains to be closed."""
        reason = self._reason()
        return reason is None or (reason in ("evaluations", "seconds") and bool(self.session.state.proposed))


async def _as_it_is(seed: Seed | None) -> AsyncIterator[Kernel]:
    if seed is not None:
        yield seed.kernel


def _parent(expansion: Expansion) -> str:
    return "" if expansion.seed is None else expansion.seed.id
