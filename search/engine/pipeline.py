"""From an idea to verdicts: has ideas, has each written as kernels, evaluated and repaired. Whoever decides
what is built on next uses it: `engine.py` round by round, `steady_state.py` whenever there is room.
"""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel
from search.engine.session import Session
from search.protocols import KnowsItsEnd, Proposer
from search.records.budget import BudgetSpent
from search.records.events import IdeaImplemented, SeedExhausted, VariantWritten
from search.records.tree import (
    HISTORY,
    LIBRARY,
    Expansion,
    Idea,
    Outcome,
    Seed,
    Tree,
    Variant,
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


class Pipeline:
    """The work on ideas of one search. `history`, `repairs`, `seed` and `writing`: see `engine.Engine`.

    `ended` is called with an idea whenever some work on it has ended.
    """

    def __init__(
        self,
        session: Session,
        proposer: Proposer,
        *,
        seed: int,
        history: str,
        repairs: int,
        writing: int,
    ) -> None:
        if history not in HISTORY:
            raise ValueError(f"history is {history!r}; it must be one of {', '.join(HISTORY)}")
        if repairs < 0:
            raise ValueError(f"repairs is {repairs}; it must not be negative")
        self.session, self.proposer = session, proposer
        self.seed, self.history, self.repairs, self.writing = seed, history, repairs, writing
        self._busy: Counter[str] = Counter()
        """How much work is under way, by the id of the idea."""
        self.ended: Callable[[Idea], None] = lambda idea: None
        self._longest_queue = 2 * session.outstanding

    @property
    def is_busy(self) -> bool:
        """Whether work on any idea is under way."""
        return any(self._busy.values())

    def is_busy_with(self, ideas: Sequence[Idea]) -> bool:
        """Whether work on one of these is under way, a repair included."""
        return any(self._busy[idea.id] for idea in ideas)

    def usable(self, kernel: Kernel) -> bool:
        """Whether a round may start from the kernel: the proposer can build on it."""
        return self.proposer.extends(self.session.problem, kernel)

    def exhausted(self, tree: Tree, before: int = sys.maxsize) -> frozenset[str]:
        """The kernels on which there are no more ideas, as far as rounds before this one and their tree tell:
        see `View`."""
        found = self.session.state.exhausted(before)
        return found | self.proposer.exhausted(tree) if isinstance(self.proposer, KnowsItsEnd) else found

    def rng(self, *place: object) -> random.Random:
        """The generator for a place in the search."""
        return random.Random("/".join(str(part) for part in (self.seed, *place)))

    async def ideas(
        self,
        expansion: Expansion,
        past: Sequence[Outcome],
        under_way: Sequence[Idea],
        rng: random.Random,
    ) -> list[Idea]:
        """New ideas on the expansion's seed. `past`: what came of earlier ideas, `under_way`: those of which
        nothing is known yet. Where there is no new one the journal says so. Raises BudgetSpent and
        ProposerFailed."""
        number, known = expansion.round, self.session.state.tree.ideas
        if expansion.as_it_is and expansion.seed is not None:
            return [library_idea(expansion.seed, number)]
        history = shown_history(past, self.history, under_way)
        answer = await self.proposer.propose(self.session.problem, expansion, history, rng)
        placed = (replace(idea, round=number, parent=parent_of(expansion)) for idea in answer)
        ideas = [idea for idea in {idea.id: idea for idea in placed}.values() if idea.id not in known]
        ideas = ideas[: expansion.ideas]
        if len(ideas) < len(answer):
            logger.warning("%d ideas were repeated or too many", len(answer) - len(ideas))
        if not ideas:
            seed, at_s = parent_of(expansion), self.session.now_s
            self.session.record(SeedExhausted(at_s=at_s, seed=seed, round=number))
        return ideas

    async def begin(self, idea: Idea, expansion: Expansion) -> bool:
        """Submits what an idea still needs; False when the budget or a stop allows no more."""
        budget = self.session.budget
        there = self.session.state.tree.variants_of(idea.id)
        waiting = [variant for variant in there if variant.evaluation is None]
        missing = 0
        if idea.id not in self.session.state.implemented:
            missing = expansion.variants - sum(not variant.repairs for variant in there)
        repaired = {variant.repairs for variant in there}
        for variant in there:
            if variant.evaluation is not None and variant.id not in repaired and self._repairable(variant):
                self._spawn(idea, f"repair variant {variant.id}", self._repair, variant, idea)
        if not waiting and missing <= 0:
            return True
        if not await self.room(len(waiting) + missing):
            return False
        granted = budget.reserve(len(waiting) + missing)
        for variant in waiting[:granted]:
            self._spawn(idea, f"evaluate variant {variant.id}", self._evaluate, variant, idea)
        if (n := granted - len(waiting)) > 0:
            self._spawn(idea, f"implement idea {idea.id}", self._implement, idea, expansion.seed, n)
        return True

    async def room(self, wanted: int) -> bool:
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
        rng = self.rng(idea.round, idea.id, "implement")
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
        self._spawn(idea, f"evaluate variant {variant.id}", self._evaluate, variant, idea)

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
        rng = self.rng(idea.round, failed.id, "repair")
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

    def _spawn(self, idea: Idea, name: str, work: Callable[..., Awaitable[None]], *of: Any) -> None:
        self._busy[idea.id] += 1
        self.session.work.spawn(self._counted(idea, work, *of), name)

    async def _counted(self, idea: Idea, work: Callable[..., Awaitable[None]], *of: Any) -> None:
        try:
            await work(*of)
        finally:
            self._busy[idea.id] -= 1
        self.ended(idea)


def parent_of(expansion: Expansion) -> str:
    """The id of its seed, "" for the reference."""
    return "" if expansion.seed is None else expansion.seed.id


async def _as_it_is(seed: Seed | None) -> AsyncIterator[Kernel]:
    if seed is not None:
        yield seed.kernel
