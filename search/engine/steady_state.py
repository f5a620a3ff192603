"""A search without barriers: the strategy is asked whenever there is room, while work is under way. A round
is so many ideas, and closes when the last of them, and of the rounds before, has its verdicts.

What was asked for is in the journal (`expansion_asked`), after all that the strategy had seen: with the
journal read up to there, `view_of` is what it saw.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from evaluators.records.problem import Kernel
from search.engine.pipeline import Pipeline, parent_of
from search.protocols import ProposerFailed, Strategy, View
from search.records.budget import BudgetSpent
from search.records.events import ExpansionAsked, IdeaProposed
from search.records.run_state import Asked, RunState
from search.records.tree import Expansion, Idea, Seed, drop_ins

logger = logging.getLogger(__name__)


def view_of(state: RunState, ideas: int, entries: Sequence[Seed], usable: Callable[[Kernel], bool]) -> View:
    """What a strategy with rounds of so many ideas sees now. `entries`: the library's, of which it sees those
    with `usable` kernels, as it does of the run's."""
    seeds = _seeds(state, entries)
    wanted = sum(each.event.ideas for each in state.asked.values() if not each.event.as_it_is)
    return View(
        tree=state.tree.before(sys.maxsize, usable),
        entries=[seed for seed in drop_ins(entries) if usable(seed.kernel)],
        pending=[each.expansion(seeds) for each in state.asked.values() if state.is_pending(each)],
        round=1 + wanted // ideas,
        left=ideas - wanted % ideas,
        exhausted=state.exhausted(),
    )


class SteadyState:
    """One run of it, or the rest of one."""

    def __init__(self, pipeline: Pipeline, strategy: Strategy) -> None:
        self._pipeline, self._strategy, self._session = pipeline, strategy, pipeline.session
        self._asking = True
        pipeline.ended = lambda idea: self._close_rounds()

    async def run(self) -> bool:
        """Until a limit or a stop; returns whether it ended because nobody had ideas any more."""
        work = self._session.work
        asking = work.spawn(self._ask_on(), "ask for ideas")
        await work.drain(self._session.grace_s)
        self._asking = False
        self._close_rounds()
        return not asking.cancelled() and asking.exception() is None and asking.result()

    async def _ask_on(self) -> bool:
        """Whether it ended because nobody had ideas any more."""
        session, state = self._session, self._session.state
        for asked in list(state.asked.values()):
            is_last = asked.event.number == len(state.asked) - 1
            if (asked.ideas or is_last) and not await self._carry_out(asked):
                return False
        for seed in drop_ins(session.entries) if not state.asked else ():
            known = Expansion(seed=seed, ideas=1, variants=1, round=1, as_it_is=True)
            if not await self._carry_out(self._recorded(known)):
                return False
        vain = seen = 0
        while await self._room():
            if vain >= self._strategy.ideas and seen == self._verdicts and not await self._something_ends():
                return True
            seen = self._verdicts
            view = view_of(state, self._strategy.ideas, session.entries, self._pipeline.usable)
            view = replace(view, exhausted=self._pipeline.exhausted(view.tree))
            if session.budget.rounds is not None and view.round > session.budget.rounds:
                return False
            expansion = self._strategy.ask(view, self._pipeline.rng(len(state.asked), "ask"))
            if expansion is not None:
                ideas = min(expansion.ideas, view.left)
                asked = self._recorded(replace(expansion, ideas=ideas, round=view.round))
                if not await self._carry_out(asked):
                    return False
                vain = 0 if asked.ideas else vain + ideas
            elif not await self._something_ends():
                return True
        return False

    @property
    def _verdicts(self) -> int:
        """How many are known."""
        return sum(each.evaluation is not None for each in self._session.state.tree.variants.values())

    async def _room(self) -> bool:
        """Whether more may be asked for; waits while as much is under way as the evaluator may have: a
        strategy that is asked later knows more."""
        session = self._session
        while session.work.stop is None and session.budget.reserved >= session.outstanding:
            await session.work.changed()
        return await self._pipeline.room(1)

    async def _something_ends(self) -> bool:
        """Waits for some work to end; False where none is under way."""
        if self._pipeline.is_busy:
            await self._session.work.changed()
            return True
        return False

    def _recorded(self, expansion: Expansion) -> Asked:
        session, number = self._session, len(self._session.state.asked)
        session.record(
            ExpansionAsked(
                at_s=session.now_s,
                number=number,
                seed=parent_of(expansion),
                ideas=expansion.ideas,
                variants=expansion.variants,
                round=expansion.round,
                as_it_is=expansion.as_it_is,
            )
        )
        return session.state.asked[number]

    async def _carry_out(self, asked: Asked) -> bool:
        """Has ideas, unless they are there already, and begins each; False where a limit or a stop forbids to
        go on."""
        expansion = asked.expansion(_seeds(self._session.state, self._session.entries))
        if not asked.ideas:
            try:
                await self._have_ideas(asked.event, expansion)
            except BudgetSpent as spent:
                logger.info("no more ideas: %s", spent)
                return False
            except ProposerFailed as error:
                self._session.work.request_stop(f"error: {error}")
                return False
        for idea in asked.ideas:
            if not await self._pipeline.begin(idea, expansion):
                return False
        self._close_rounds()
        return True

    async def _have_ideas(self, event: ExpansionAsked, expansion: Expansion) -> None:
        session, state = self._session, self._session.state
        past = state.tree.history()
        rng = self._pipeline.rng(event.number, "propose")
        ideas: list[Idea] = await self._pipeline.ideas(expansion, past, (), rng)
        of_the_round = [each for each in state.asked.values() if each.event.round == event.round]
        start, at_s = 1 + sum(len(each.ideas) for each in of_the_round), session.now_s
        session.record(
            *(
                IdeaProposed(at_s=at_s, idea=idea, number=i, expansion=event.number, of=len(ideas))
                for i, idea in enumerate(ideas, start)
            )
        )

    def _close_rounds(self) -> None:
        """Those that are over, in their order. The last one of a run that a stop has ended stays open."""
        session, state = self._session, self._session.state
        while session.work.stop is None:
            number = state.tree.rounds_closed + 1
            of = [asked for asked in state.asked.values() if asked.event.round == number]
            wanted = sum(each.event.ideas for each in of if not each.event.as_it_is)
            if not of or (self._asking and wanted < self._strategy.ideas):
                return
            if self._asking and any(
                state.is_pending(each) or self._pipeline.is_busy_with(each.ideas) for each in of
            ):
                return
            if self._asking and not of[-1].ideas and of[-1].event.number == len(state.asked) - 1:
                return  # its ideas are being had
            session.close_round(number)

    def _is_under_way(self, asked: Asked) -> bool:
        return self._session.state.is_pending(asked) or self._pipeline.is_busy_with(asked.ideas)


def _seeds(state: RunState, entries: Sequence[Seed]) -> dict[str, Seed]:
    return {each.id: each for each in entries} | {each.id: each.seed for each in state.tree.variants.values()}
