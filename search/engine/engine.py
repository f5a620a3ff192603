"""One search: a strategy says what is built on next, the pipeline makes kernels and verdicts of it. Knows
protocols only.

One generic loop in named phases, the policy a parameter (after mctx's `search.py`). What every search does
whoever steers it is the session's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from search.engine.pipeline import Pipeline, parent_of
from search.engine.session import Session
from search.engine.steady_state import SteadyState
from search.protocols import Proposer, ProposerFailed, RunContext, Strategy, View, asked_in_a_round
from search.records.budget import BudgetSpent
from search.records.events import IdeaProposed, RunFinished
from search.records.tree import Expansion, Idea, Outcome, drop_ins

logger = logging.getLogger(__name__)


class Engine:
    """A search of one problem; goes on from whatever the journal holds.

    Its first round measures the library's kernels for the problem, too, so that a search never ends below
    what was known.

    `history` says what a proposer is shown of earlier ideas (see `search.records.tree.shown_history`), `repairs` how
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
        self.session, self.strategy, self.proposer = session, strategy, proposer
        self.pipeline = Pipeline(
            session, proposer, seed=seed, history=history, repairs=repairs, writing=writing
        )
        self._dry = False

    async def run(self) -> RunFinished:
        """Searches until a limit, a stop or an error ends it; an error is in the reason (`error: ...`).

        Raises ValueError for a journal of another search, OSError when it cannot be written, and whatever the
        strategy or library raises.
        """
        session, state = self.session, self.session.state
        try:
            strategy, proposer = type(self.strategy).__name__, type(self.proposer).__name__
            session.start(proposer=proposer, strategy=strategy, seed=self.pipeline.seed)
            finished = state.finished
            if (
                finished is not None
                and finished.reason == self._reason()
                and not self._is_unconfirmed(finished)
            ):
                return finished
            session.announce()
            self.proposer.begin(
                RunContext(
                    problem=session.problem,
                    folder=session.journal.path.parent,
                    state=state,
                    entries=session.entries,
                    facts=session.environment,
                    model_client=session.model_client,
                    history=self.pipeline.history,
                )
            )
            self._check_settings()
            if self.strategy.synchronous:
                while self._goes_on():
                    await self._round(state.tree.rounds_closed + 1)
            elif self._goes_on():
                self._dry = await SteadyState(self.pipeline, self.strategy).run()
            return await session.finish(lambda: self._reason() or "interrupted")
        finally:
            session.close()
            await self.proposer.close()

    def request_stop(self, reason: str) -> None:
        """Ends the run in order: nothing new is submitted. For the event loop's thread (signal handlers)."""
        self.session.work.request_stop(reason)

    def _is_unconfirmed(self, finished: RunFinished) -> bool:
        """Whether the winner has not been measured again, and is to be."""
        return self.session.confirms and finished.best is not None and finished.confirmed is None

    def _check_settings(self) -> None:
        state = self.session.state
        if self.strategy.synchronous if state.asked else state.tree.ideas and not self.strategy.synchronous:
            raise ValueError(
                f"{self.session.journal.path} was begun with strategy.synchronous="
                f"{str(not self.strategy.synchronous).lower()}; resume with that, or start a new run"
            )

    async def _round(self, number: int) -> None:
        """One round, or what is left of it. It stays open when a stop cuts it short."""
        work, state = self.session.work, self.session.state
        if not state.proposed and self.session.compares_each_round:
            await self.session.compare_leaders(self.pipeline.usable)
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
        usable = [seed for seed in entries if self.pipeline.usable(seed.kernel)]
        tree = state.tree.before(number, self.pipeline.usable)
        view = View(tree=tree, entries=usable, round=number, exhausted=self.pipeline.exhausted(tree, number))
        chosen = asked_in_a_round(
            self.strategy, view, lambda index: self.pipeline.rng(number, index, "select")
        )
        expansions = [Expansion(seed=seed, ideas=1, variants=1, as_it_is=True) for seed in known]
        expansions = [replace(expansion, round=number) for expansion in (*expansions, *chosen)]
        for index, ideas in state.proposed.items():
            if index >= len(expansions) or ideas[0].parent != parent_of(expansions[index]):
                raise ValueError(
                    f"{self.session.journal.path}: round {number} was begun with other settings of the "
                    "strategy; resume with those, or start a new run"
                )
        return expansions

    async def _propose_all(self, number: int, expansions: Sequence[Expansion]) -> None:
        """Asks for ideas, one expansion after the other, and begins each idea as it comes."""
        state = self.session.state
        past = state.tree.before(number).history()
        recorded = dict(state.proposed)
        for index, expansion in enumerate(expansions):
            ideas = recorded.get(index, [])
            if index > max(recorded, default=-1):
                if not await self.pipeline.room(1):
                    return
                try:
                    ideas = await self._ideas(index, expansion, past)
                except BudgetSpent as spent:
                    logger.info("no more ideas: %s", spent)
                    return
                except ProposerFailed as error:
                    self.request_stop(f"error: {error}")
                    return
            for idea in ideas:
                if not await self.pipeline.begin(idea, expansion):
                    return

    async def _ideas(self, index: int, expansion: Expansion, past: Sequence[Outcome]) -> list[Idea]:
        """New ideas of an expansion, recorded, and numbered on from those that the round has had."""
        session = self.session
        so_far = [idea for ideas in session.state.proposed.values() for idea in ideas]
        rng = self.pipeline.rng(expansion.round, index, "propose")
        ideas = await self.pipeline.ideas(expansion, past, so_far, rng)
        at_s, of, start = session.now_s, len(ideas), 1 + len(so_far)
        session.record(
            *(
                IdeaProposed(at_s=at_s, idea=idea, number=i, expansion=index, of=of)
                for i, idea in enumerate(ideas, start)
            )
        )
        return ideas

    def _reason(self) -> str | None:
        """Why the run ends now; None while it goes on."""
        session = self.session
        limit = session.budget.exhausted(session.state.tree.rounds_closed)
        return session.work.stop or limit or ("exhausted" if self._dry else None)

    def _goes_on(self) -> bool:
        """Also when a limit was met in a round that is still open: it remains to be closed."""
        reason = self._reason()
        return reason is None or (reason in ("evaluations", "seconds") and bool(self.session.state.proposed))
