"""A search without barriers: the strategy is asked whenever there is room, while work is in flight. A round
is a fixed number of ideas. It closes when all its ideas, and those of earlier rounds, have their verdicts.

Each expansion is in the journal (`expansion_asked`) after everything that the strategy had seen. Replaying
the journal up to there and calling `view_of` gives the strategy's view.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from evaluators.records.problem import Kernel
from search.engine.pipeline import Pipeline, parent_of
from search.protocols import SetsThreshold, Strategy, View, ask
from search.records.events import ExpansionAsked
from search.records.run_state import Asked, RunState
from search.records.tree import Expansion, Idea, Seed, drop_ins


def view_of(state: RunState, ideas: int, entries: Sequence[Seed], usable: Callable[[Kernel], bool]) -> View:
    """What a strategy with rounds of `ideas` ideas sees now. Of the run's kernels and the library's `entries`
    it sees those that are `usable`."""
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
    """One run of such a search, or the rest of one."""

    def __init__(self, pipeline: Pipeline, strategy: Strategy) -> None:
        self._pipeline, self._strategy, self._session = pipeline, strategy, pipeline.session
        self._asking = True
        pipeline.ended = lambda idea: self._close_rounds()
        pipeline.threshold_of = self._threshold_of

    async def run(self) -> bool:
        """Searches until a limit or a stop; returns whether it ended because there were no more ideas."""
        work = self._session.work
        asking = work.spawn(self._ask_repeatedly(), "ask for ideas")
        await work.drain(self._session.grace_s)
        self._asking = False
        self._close_rounds()
        return not asking.cancelled() and asking.exception() is None and asking.result()

    async def _ask_repeatedly(self) -> bool:
        """Asks until nothing more may begin; returns whether there were no more ideas."""
        session, state = self._session, self._session.state
        for asked in list(state.asked.values()):
            is_last = asked.event.number == len(state.asked) - 1
            if (asked.ideas or is_last) and not await self._carry_out(asked):
                return False
        for seed in drop_ins(session.entries) if not state.asked else ():
            known = Expansion(seed=seed, ideas=1, variants=1, round=1, as_it_is=True)
            if not await self._carry_out(self._recorded(known)):
                return False
        fruitless = seen = 0
        while await self._room():
            if (
                fruitless >= self._strategy.ideas
                and seen == self._verdicts
                and not await self._wait_for_any()
            ):
                return True
            seen = self._verdicts
            view = view_of(state, self._strategy.ideas, session.entries, self._pipeline.usable)
            view = replace(view, exhausted=self._pipeline.exhausted(view.tree))
            if session.budget.rounds is not None and view.round > session.budget.rounds:
                return False
            expansion = ask(self._strategy, view, self._pipeline.rng(len(state.asked), "ask"))
            if expansion is not None:
                ideas = min(expansion.ideas, view.left)
                expansion = replace(expansion, ideas=ideas, round=view.round)
                asked = self._recorded(expansion, self._threshold(view))
                if not await self._carry_out(asked):
                    return False
                fruitless = 0 if asked.ideas else fruitless + ideas
            elif not await self._wait_for_any():
                return True
        return False

    @property
    def _verdicts(self) -> int:
        """The number of variants with a verdict."""
        return sum(each.evaluation is not None for each in self._session.state.tree.variants.values())

    async def _room(self) -> bool:
        """Whether more may be asked for. Waits while the evaluator has all it may have, because a strategy
        that is asked later knows more."""
        session = self._session
        while session.work.stop is None and session.budget.reserved >= session.outstanding:
            await session.work.changed()
        return await self._pipeline.room(1)

    async def _wait_for_any(self) -> bool:
        """Waits for a task to end; returns False if none is in flight."""
        if self._pipeline.is_busy:
            await self._session.work.changed()
            return True
        return False

    def _threshold(self, view: View) -> float:
        """In a race, the speedup that the next kernels must be able to reach to be judged in full."""
        strategy = self._strategy
        if self._session.requests.races and isinstance(strategy, SetsThreshold):
            return strategy.threshold(view)
        return 0.0

    def _threshold_of(self, idea: Idea) -> float:
        asked = self._session.state.asked.values()
        return next(each.event.threshold for each in asked if any(own.id == idea.id for own in each.ideas))

    def _recorded(self, expansion: Expansion, threshold: float = 0.0) -> Asked:
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
                threshold=threshold,
            )
        )
        return session.state.asked[number]

    async def _carry_out(self, asked: Asked) -> bool:
        """Asks for the expansion's ideas, unless they are recorded already, and starts each; returns False if
        a limit or a stop forbids more."""
        expansion = asked.expansion(_seeds(self._session.state, self._session.entries))
        if not asked.ideas and not await self._ask_for_ideas(asked.event, expansion):
            return False
        for idea in asked.ideas:
            if not await self._pipeline.begin(idea, expansion):
                return False
        self._close_rounds()
        return True

    async def _ask_for_ideas(self, event: ExpansionAsked, expansion: Expansion) -> bool:
        state, index = self._session.state, event.number
        past = state.tree.history()
        so_far = sum(len(each.ideas) for each in state.asked.values() if each.event.round == event.round)
        rng = self._pipeline.rng(index, "propose")
        while True:
            ideas = await self._pipeline.ideas(expansion, past, (), rng, index=index, start=1 + so_far)
            if ideas is None:
                return False
            if ideas or so_far or not self._pipeline.unusable:
                return True  # a round without a single idea would be lost

    def _close_rounds(self) -> None:
        """Closes the rounds that are complete, in order. The last round of a stopped run stays open."""
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
                return  # its ideas are being proposed
            session.close_round(number)
            if self._asking:
                session.work.spawn(self._pipeline.reflect(number), f"reflect on round {number}")


def _seeds(state: RunState, entries: Sequence[Seed]) -> dict[str, Seed]:
    return {each.id: each for each in entries} | {each.id: each.seed for each in state.tree.variants.values()}
