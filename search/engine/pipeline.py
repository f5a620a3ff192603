"""From an idea to verdicts: asks for ideas, has them written as kernels, evaluated and repaired. `engine.py`
uses it round by round, `steady_state.py` whenever there is room."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel
from evaluators.records.race import IN_FULL, Threshold
from search.engine.probes import Probes
from search.engine.session import Session
from search.protocols import (
    NoUsableAnswer,
    Proposer,
    ProposerFailed,
    Reflects,
    ReportsExhaustion,
    WritesInWaves,
)
from search.records.budget import BudgetSpent
from search.records.events import IdeaImplemented, IdeaProposed, RoundReflected, SeedExhausted, VariantWritten
from search.records.tree import (
    HISTORY,
    LIBRARY,
    Expansion,
    Idea,
    Outcome,
    Seed,
    Tree,
    Variant,
    fit_to_show,
    library_idea,
    shown_history,
    too_long,
)

logger = logging.getLogger(__name__)

REPAIRABLE = (
    Status.COMPILE_ERROR,
    Status.RUNTIME_ERROR,
    Status.INCORRECT,
    Status.CRASHED,
    Status.TIMEOUT,
)
SAME_ROUND, NEXT_ROUND = "same_round", "next_round"
REPAIRS_IN = (SAME_ROUND, NEXT_ROUND)
"""The values of the key `repairs_in`."""
UNUSABLE_AT_MOST = 3
"""Questions for ideas in a row without a usable answer, after which a search ends."""


class Pipeline:
    """The work on the ideas of one search. For `history`, `repairs`, `repairs_in`, `seed`, `writing` and
    `probes` see `engine.Engine`.

    `ended` is called with an idea each time a task for it has ended.
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
        probes: int = 0,
        repairs_in: str = SAME_ROUND,
    ) -> None:
        if history not in HISTORY:
            raise ValueError(f"history is {history!r}; it must be one of {', '.join(HISTORY)}")
        if repairs < 0:
            raise ValueError(f"repairs is {repairs}; it must be 0 or more")
        if repairs_in not in REPAIRS_IN:
            raise ValueError(f"repairs_in is {repairs_in!r}; it must be one of {', '.join(REPAIRS_IN)}")
        self.session, self.proposer = session, proposer
        self.seed, self.history, self.repairs, self.writing = seed, history, repairs, writing
        self.repairs_wait = repairs_in == NEXT_ROUND
        """Whether the kernels that fail in a round are repaired in the next one."""
        self.probes = Probes(session, proposer, probes)
        self._busy: Counter[str] = Counter()
        """The number of tasks in flight, by idea id."""
        self.ended: Callable[[Idea], None] = lambda idea: None
        self.threshold_of: Callable[[Idea], Threshold] = lambda idea: IN_FULL
        """In a race, the speedup that a kernel of an idea must be able to reach to be judged in full."""
        self._longest_queue = 2 * session.outstanding
        self.unusable: list[str] = []
        """Why the latest questions for ideas, in a row, got no usable answer."""

    @property
    def is_busy(self) -> bool:
        """Whether a task for any idea is in flight."""
        return any(self._busy.values())

    def is_busy_with(self, ideas: Sequence[Idea]) -> bool:
        """Whether a task for one of these ideas is in flight, repairs included."""
        return any(self._busy[idea.id] for idea in ideas)

    def usable(self, kernel: Kernel) -> bool:
        """Whether a round may start from the kernel, that is, whether the proposer can build on it."""
        return self.proposer.extends(self.session.problem, kernel)

    def exhausted(self, tree: Tree, before: int = sys.maxsize) -> frozenset[str]:
        """The kernels for which there are no more ideas, judging by the rounds before this one and their tree
        (see `View`)."""
        found = self.session.state.exhausted(before)
        return (
            found | self.proposer.exhausted(tree) if isinstance(self.proposer, ReportsExhaustion) else found
        )

    def rng(self, *place: object) -> random.Random:
        """The random generator for a place in the search."""
        return random.Random("/".join(str(part) for part in (self.seed, *place)))

    async def ideas(
        self,
        expansion: Expansion,
        past: Sequence[Outcome],
        under_way: Sequence[Idea],
        rng: random.Random,
        *,
        index: int,
        start: int,
    ) -> list[Idea] | None:
        """Asks for new ideas for the expansion's seed and records them, numbered from `start`; if there are
        none, records that. Returns None if the budget or the proposer's failure forbids more.

        An expansion without a usable answer gets no ideas, and the search continues; UNUSABLE_AT_MOST of
        them in a row end it.

        `past` are the results of earlier ideas, `under_way` the ideas without a result yet; `index` is the
        expansion's number.
        """
        session = self.session
        try:
            ideas = await self._new_ideas(expansion, past, under_way, rng)
        except BudgetSpent as spent:
            logger.info("no more ideas: %s", spent)
            return None
        except NoUsableAnswer as error:
            logger.warning("%s; the search continues without ideas for this kernel", error)
            self.unusable.append(str(error))
            if len(self.unusable) < UNUSABLE_AT_MOST:
                return []
            session.work.request_stop(f"error: {error}, {UNUSABLE_AT_MOST} times in a row")
            return None
        except ProposerFailed as error:
            session.work.request_stop(f"error: {error}")
            return None
        self.unusable = []
        at_s, of, requested = session.now_s, len(ideas), self.probes.requested(expansion.round)
        if ideas:
            proposed = (
                IdeaProposed(at_s=at_s, idea=idea, number=number, expansion=index, of=of)
                for number, idea in enumerate(ideas, start)
            )
            session.record(*proposed, *requested)
        else:
            exhausted = SeedExhausted(at_s=at_s, seed=parent_of(expansion), round=expansion.round)
            session.record(exhausted, *requested)
        self.probes.start([each.request for each in requested])
        return ideas

    async def _new_ideas(
        self, expansion: Expansion, past: Sequence[Outcome], under_way: Sequence[Idea], rng: random.Random
    ) -> list[Idea]:
        """Asks the proposer; drops repeated and surplus ideas. Raises BudgetSpent and ProposerFailed."""
        if expansion.as_it_is and expansion.seed is not None:
            return [library_idea(expansion.seed, expansion.round)]
        history = shown_history(past, self.history, under_way)
        answer = await self.proposer.propose(self.session.problem, expansion, history, rng)
        if not isinstance(answer, Sequence) or not all(isinstance(each, Idea) for each in answer):
            name = type(self.proposer).__name__
            raise TypeError(f"proposer {name} returned {answer!r:.60}, not a list of ideas")
        for idea in answer:
            if why := too_long("its text", idea.text) or too_long("its expected effect", idea.expected):
                logger.warning("an idea of %s is cut: %s", idea.proposer, why)
        placed = [
            replace(fit_to_show(idea), round=expansion.round, parent=parent_of(expansion)) for idea in answer
        ]
        known = self.session.state.tree.ideas
        new = [idea for idea in {idea.id: idea for idea in placed}.values() if idea.id not in known]
        new = new[: expansion.ideas]
        if len(new) < len(answer):
            logger.warning("dropped %d ideas: repeated, or more than requested", len(answer) - len(new))
        return new

    async def reflect(self, number: int) -> None:
        """Asks the proposer once, if it reflects, what the measurements of a closed round mean, and records
        the answer."""
        session, proposer = self.session, self.proposer
        if not isinstance(proposer, Reflects) or number in session.state.reflections:
            return
        if session.budget.exhausted(number) is None:
            reflection = await proposer.reflect(session.problem, number)
            if reflection is not None:
                session.record(RoundReflected(at_s=session.now_s, reflection=reflection))

    async def begin(self, idea: Idea, expansion: Expansion) -> bool:
        """Submits the work that an idea still needs; returns False when the budget or a stop forbids more."""
        budget = self.session.budget
        there = self.session.state.tree.variants_of(idea.id)
        waiting = [variant for variant in there if variant.evaluation is None]
        missing = 0
        if idea.id not in self.session.state.implemented:
            missing = expansion.variants - sum(not variant.repairs for variant in there)
        if not self.repairs_wait:
            self._repair_all(there)
        if not waiting and missing <= 0:
            return True
        if not await self.room(len(waiting) + missing):
            return False
        granted = budget.reserve(len(waiting) + missing)
        judging = [
            self._spawn(idea, f"evaluate variant {variant.id}", self._evaluate, variant, idea)
            for variant in waiting[:granted]
        ]
        if (n := granted - len(waiting)) > 0:
            self._spawn(idea, f"implement idea {idea.id}", self._implement, idea, expansion.seed, n, judging)
        return True

    async def repair_earlier(self, round: int) -> None:
        """Submits what the repairs that belong to this round still need: those of the kernels that failed in
        the round before. Ends when the budget or a stop forbids more."""
        tree = self.session.state.tree
        if not self.repairs_wait:
            return
        self._repair_all([each for each in tree.variants.values() if each.round == round - 1])
        written = [each for each in tree.variants.values() if each.round == round and each.repairs]
        for variant in written:
            if variant.evaluation is None and await self.room(1):
                self.session.budget.reserve(1)
                idea = tree.ideas[variant.idea]
                self._spawn(idea, f"evaluate variant {variant.id}", self._evaluate, variant, idea)

    def _repair_all(self, variants: Sequence[Variant]) -> None:
        """Has those of the variants repaired that failed and have not been repaired yet."""
        tree = self.session.state.tree
        for variant in filter(self._repairable, variants):
            idea = tree.ideas[variant.idea]
            if all(each.repairs != variant.id for each in tree.variants_of(idea.id)):
                self._spawn(idea, f"repair variant {variant.id}", self._repair, variant, idea)

    async def room(self, wanted: int) -> bool:
        """Waits until another evaluation may be requested; returns whether one may be reserved.

        It waits while enough work is in flight, because more would only lie in the queue. Near the limit it
        waits until every earlier reservation is settled: an idea then gets what the ideas before it did not
        use, no matter in which order they finished.
        """
        work, budget = self.session.work, self.session.budget
        while work.stop is None and (
            (queue := self.session.queue) >= self._longest_queue
            or budget.reserved - queue >= self.writing
            or (budget.available < wanted and budget.reserved)
        ):
            await work.changed()
        return work.stop is None and budget.available > 0

    async def _implement(
        self, idea: Idea, parent: Seed | None, n: int, judging: list[asyncio.Task[None]]
    ) -> None:
        """Has n more variants of an idea written, and evaluates each as soon as it is; n evaluations are
        reserved. `judging` are the evaluations of its variants in flight. Each wave waits for the verdicts of
        the one before, but not for repairs."""
        session, proposer, left = self.session, self.proposer, n
        there = [v.written for v in session.state.tree.variants_of(idea.id) if not v.repairs]
        wanted = len(there) + n
        in_waves = isinstance(proposer, WritesInWaves) and proposer.wave > 0 and idea.proposer != LIBRARY
        try:
            before = -1
            while left and before != len(there):
                if in_waves and judging:
                    await asyncio.wait(judging)
                    if session.work.stop is not None:
                        return
                before = len(there)
                rng = self.rng(idea.round, idea.id, "implement")
                writing = (
                    _as_it_is(parent)
                    if idea.proposer == LIBRARY
                    else proposer.implement(session.problem, idea, parent, wanted, tuple(there), rng)
                )
                async for kernel in writing:
                    if left and (task := self._write(idea, kernel)) is not None:
                        judging.append(task)
                        there.append(kernel)
                        left -= 1
                if not in_waves:
                    break
            session.record(IdeaImplemented(at_s=session.now_s, idea_id=idea.id, variants=len(there)))
        except ProposerFailed as error:
            session.work.request_stop(f"error: {error}")
        except BudgetSpent as spent:
            logger.info("idea %s gets %d fewer variants: %s", idea.id, left, spent)
        finally:
            for _ in range(left):
                session.budget.settle(spent=False)

    def _write(self, idea: Idea, kernel: Kernel, failed: Variant | None = None) -> asyncio.Task[None] | None:
        """Records a kernel as a variant of the idea, and the repair of the `failed` one if there is one, and
        evaluates it; None if the idea has it already."""
        there = self.session.state.tree.variants_of(idea.id)
        if any(variant.written.id == kernel.id for variant in there):
            return None
        repairs, round = "", idea.round
        if failed is not None:
            repairs, round = failed.id, failed.round + self.repairs_wait
        variant = Variant(kernel=kernel, idea=idea.id, parent=idea.parent, round=round, repairs=repairs)
        self.session.record(VariantWritten(at_s=self.session.now_s, variant=variant, number=len(there) + 1))
        return self._spawn(idea, f"evaluate variant {variant.id}", self._evaluate, variant, idea)

    async def _evaluate(self, variant: Variant, idea: Idea) -> None:
        judged = await self.session.evaluate(variant, self.threshold_of(idea))
        if judged is not None and not self.repairs_wait:
            self._repair_all([judged])

    def judge_in_full(self, variant: Variant) -> None:
        """Has an outpaced variant judged in full. If it turns out to be wrong in its own round, it is
        repaired."""
        idea = self.session.state.tree.ideas[variant.idea]
        self._spawn(idea, f"judge variant {variant.id} in full", self._judge_in_full, variant)

    async def _judge_in_full(self, variant: Variant) -> None:
        judged = await self.session.judge_in_full(variant)
        if not self.repairs_wait:
            self._repair_all([each for each in judged if each.round > self.session.state.tree.rounds_closed])

    def _repairable(self, variant: Variant) -> bool:
        """Whether its log may help to fix the variant, and it has not been repaired too often."""
        if variant.evaluation is None or variant.evaluation.status not in REPAIRABLE:
            return False
        if self.session.state.tree.ideas[variant.idea].proposer == LIBRARY:
            return False
        times, each = 0, variant
        while each.repairs:
            times, each = times + 1, self.session.state.tree.variants[each.repairs]
        return times < self.repairs

    async def _repair(self, failed: Variant, idea: Idea) -> None:
        """Tries to repair a failed variant if the budget has room for the evaluation."""
        session = self.session
        if session.work.stop is not None or not session.budget.reserve(1):
            return
        rng = self.rng(idea.round, failed.id, "repair")
        kernel: Kernel | None = None
        try:
            kernel = await self.proposer.repair(session.problem, idea, failed, rng)
        except ProposerFailed as error:
            session.work.request_stop(f"error: {error}")
        except BudgetSpent as spent:
            logger.info("variant %s is not repaired: %s", failed.id, spent)
        if kernel is None or self._write(idea, kernel, failed) is None:
            session.budget.settle(spent=False)

    def _spawn(
        self, idea: Idea, name: str, work: Callable[..., Awaitable[None]], *of: Any
    ) -> asyncio.Task[None]:
        self._busy[idea.id] += 1
        return self.session.work.spawn(self._counted(idea, work, *of), name)

    async def _counted(self, idea: Idea, work: Callable[..., Awaitable[None]], *of: Any) -> None:
        try:
            await work(*of)
        finally:
            self._busy[idea.id] -= 1
        self.ended(idea)


def parent_of(expansion: Expansion) -> str:
    """The id of the expansion's seed, "" for the reference."""
    return "" if expansion.seed is None else expansion.seed.id


async def _as_it_is(seed: Seed | None) -> AsyncIterator[Kernel]:
    if seed is not None:
        yield seed.kernel
