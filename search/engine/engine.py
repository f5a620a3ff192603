"""One search: a strategy chooses what to build on next, and the pipeline turns that into kernels and
verdicts. The engine knows protocols only.

It is one generic loop in named phases, with the policy as a parameter (after mctx's `search.py`). What every
search does, no matter who steers it, is in `session.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evaluators.base.usage_error import UsageError
from search.engine.diagnoses import Diagnoses
from search.engine.faults import plug_in
from search.engine.outside_watch import OutsideWatch
from search.engine.pipeline import NEXT_ROUND, SAME_ROUND, Pipeline, parent_of
from search.engine.race import hopeful, to_judge
from search.engine.session import Session
from search.engine.steady_state import SteadyState
from search.protocols import Diagnoser, Proposer, RunContext, Strategy, View, expansions_of_a_round
from search.records.events import RunFinished
from search.records.outside import Awaited
from search.records.tree import Expansion, Tree, drop_ins


def require_rounds(strategy: Strategy, repairs_in: str) -> None:
    """Raises ValueError if repairs are to wait for the next round and the strategy has no rounds."""
    if repairs_in == NEXT_ROUND and not strategy.synchronous:
        raise ValueError(
            f"repairs_in={repairs_in} needs rounds, and strategy {type(strategy).__name__} has none; set "
            f"repairs_in={SAME_ROUND}, or choose another strategy"
        )


class Engine:
    """A search of one problem; it continues from the journal's last state.

    The first round also measures the library's kernels for the problem, so that a search never ends below
    what was known before.

    Every choice draws from a generator seeded by `seed` and its place in the search, so that the result does
    not depend on the order in which work finishes.

    Args:
        session: The records, budget and evaluator of the search.
        strategy: Chooses the seeds to expand.
        proposer: Proposes the ideas and writes the code.
        seed: The seed of all random choices.
        history: What the proposer sees of earlier ideas; see `search.records.tree.shown_history`.
        repairs: How many times a failed variant returns to the proposer, with the evaluator's log.
        repairs_in: `same_round`, or `next_round`: the failed variants of a round are repaired while the next
            one is written, so that a round needs its devices once. Those of the last round are not repaired.
        writing: The number of variants being written at which the engine stops asking for more. It also
            pauses while the variants without a verdict number twice what the evaluator takes at a time.
        stops_when_blocked: Whether to end the run when only answers in a mailbox or verdicts of a queue can
            advance it.
        diagnoser: Profiles the best kernels and the seeds before each round of a synchronous strategy; None:
            nothing is profiled.
        probes: How many probes the proposer may ask for in a round: kernels that are only timed.

    Raises:
        ValueError: If a setting is invalid.
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
        stops_when_blocked: bool = False,
        diagnoser: Diagnoser | None = None,
        probes: int = 0,
        repairs_in: str = SAME_ROUND,
    ) -> None:
        self.session, self.strategy, self.proposer = session, strategy, proposer
        self.pipeline = Pipeline(
            session,
            proposer,
            seed=seed,
            history=history,
            repairs=repairs,
            writing=writing,
            probes=probes,
            repairs_in=repairs_in,
        )
        if session.requests.races and strategy.synchronous:
            self.pipeline.threshold_of = lambda idea: None  # decided once the round's verdicts are there
        require_rounds(strategy, repairs_in)
        self._diagnoses = None if diagnoser is None else Diagnoses(session, diagnoser)
        self._exhausted = False
        self._watch = OutsideWatch(session, stops=stops_when_blocked)
        session.plug_ins += [plug_in("strategy", strategy), plug_in("proposer", proposer)]

    async def run(self) -> RunFinished:
        """Searches until a limit, a stop or an error ends the run.

        Returns:
            The end of the run. After an error, also one of a plug-in, its reason reads `error: ...`.

        Raises:
            UsageError: If the journal belongs to another search.
            OSError: If the journal cannot be written.
        """
        try:
            async with self._watch.watching():
                return await self._run()
        finally:
            self.session.close()

    @property
    def blocked_on(self) -> Awaited | None:
        """What the run waited for, if it ended because only others can advance it."""
        return self._watch.blocked_on

    async def _run(self) -> RunFinished:
        session = self.session
        try:
            try:
                if (ended := await self._search()) is not None:
                    return ended
            finally:
                await self.proposer.close()
        except UsageError:
            raise
        except Exception as error:  # a plug-in may raise anything, and the run still has a winner to report
            if session.state.started is None:
                raise
            session.work.fail("the search", error)
            await session.work.drain(session.grace_s)
        if self.strategy.synchronous:
            await session.judge_winner()
        return await session.finish(lambda: self._reason() or "interrupted")

    async def _search(self) -> RunFinished | None:
        """Searches until nothing more may begin. Returns the end of a run that had ended already."""
        session, state = self.session, self.session.state
        strategy, proposer = type(self.strategy).__name__, type(self.proposer).__name__
        session.start(proposer=proposer, strategy=strategy, seed=self.pipeline.seed)
        finished = state.finished
        if finished is not None and finished.reason == self._reason() and not self._is_unconfirmed(finished):
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
                probes=self.pipeline.probes.most,
            )
        )
        self._check_settings()
        if self._continues():
            self.pipeline.probes.resume()
        if self.strategy.synchronous:
            while self._continues():
                await self._round(state.tree.rounds_closed + 1)
        elif self._continues():
            self._exhausted = await SteadyState(self.pipeline, self.strategy).run()
        return None

    def request_stop(self, reason: str) -> None:
        """Ends the run cleanly: nothing new is submitted. Call it in the event loop's thread (signal
        handlers)."""
        self.session.work.request_stop(reason)

    def _is_unconfirmed(self, finished: RunFinished) -> bool:
        """Whether the winner still has to be measured again."""
        return self.session.confirms and finished.best is not None and finished.confirmed is None

    def _check_settings(self) -> None:
        state = self.session.state
        if self.strategy.synchronous if state.asked else state.tree.ideas and not self.strategy.synchronous:
            raise UsageError(
                f"{self.session.journal.path} was started with strategy.synchronous="
                f"{str(not self.strategy.synchronous).lower()}; resume with that value, or start a new run"
            )

    async def _round(self, number: int) -> None:
        """Runs one round, or the rest of one. A stop leaves it open."""
        work, state = self.session.work, self.session.state
        begun = bool(state.proposed) or any(each.round == number for each in state.tree.variants.values())
        if not begun and self.session.compares_each_round:
            await self.session.compare_leaders(self.pipeline.usable)
        if work.stop is not None:
            return
        expansions = self._select(number)
        if not begun and self._diagnoses is not None:
            await self._diagnoses.take(expansions)
            if work.stop is not None:
                return
        work.spawn(self._propose_all(number, expansions), f"propose in round {number}")
        await work.drain(self.session.grace_s)
        await self._judge_fastest(number + 1)
        if work.stop is None and not state.proposed:
            self._exhausted = True
        elif work.stop is None:
            self.session.close_round(number)

    def _select(self, number: int) -> list[Expansion]:
        state = self.session.state
        entries = drop_ins(self.session.entries)
        known = entries if number == 1 else []
        chosen = self._chosen(state.tree.before(number, self.pipeline.usable), number)
        expansions = [Expansion(seed=seed, ideas=1, variants=1, as_it_is=True) for seed in known]
        expansions = [replace(expansion, round=number) for expansion in (*expansions, *chosen)]
        for index, ideas in state.proposed.items():
            if index >= len(expansions) or ideas[0].parent != parent_of(expansions[index]):
                raise UsageError(
                    f"{self.session.journal.path}: round {number} was started with other strategy settings; "
                    "resume with those, or start a new run"
                )
        return expansions

    def _chosen(self, tree: Tree, number: int) -> list[Expansion]:
        """What the strategy asks for in a round, given the tree before it."""
        usable = [seed for seed in drop_ins(self.session.entries) if self.pipeline.usable(seed.kernel)]
        view = View(tree=tree, entries=usable, round=number, exhausted=self.pipeline.exhausted(tree, number))
        return expansions_of_a_round(
            self.strategy, view, lambda index: self.pipeline.rng(number, index, "select")
        )

    async def _judge_fastest(self, following: int) -> None:
        """In a race, judges in full what may become a seed of the following round, or the best of the search
        (see `race.py`)."""
        session, work = self.session, self.session.work
        while session.requests.races and work.stop is None and not session.budget.timed_out:
            tree = session.state.tree.before(following, self.pipeline.usable)
            tree.rounds_closed = following - 1
            variants = to_judge(session.state.tree, self._chosen(hopeful(tree), following))
            if not variants:
                return
            for variant in variants:
                self.pipeline.judge_in_full(variant)
            await work.drain(session.grace_s)

    async def _propose_all(self, number: int, expansions: Sequence[Expansion]) -> None:
        """Starts the repairs that belong to the round. Asks for a reflection on the last round, then for
        ideas, one expansion after the other, and starts work on each idea at once."""
        state = self.session.state
        await self.pipeline.repair_earlier(number)
        past = state.tree.before(number).history()
        recorded = dict(state.proposed)
        if number > 1 and not recorded:
            await self.pipeline.reflect(number - 1)
        for index, expansion in enumerate(expansions):
            ideas = recorded.get(index, [])
            if index > max(recorded, default=-1):
                if not await self.pipeline.room(1):
                    return
                so_far = [idea for ideas in state.proposed.values() for idea in ideas]
                rng, start = self.pipeline.rng(number, index, "propose"), 1 + len(so_far)
                asked = await self.pipeline.ideas(expansion, past, so_far, rng, index=index, start=start)
                if asked is None:
                    return
                ideas = asked
            for idea in ideas:
                if not await self.pipeline.begin(idea, expansion):
                    return

    def _reason(self) -> str | None:
        """Why the run ends now; None while it continues."""
        session = self.session
        limit = session.budget.exhausted(session.state.tree.rounds_closed)
        if stopped := session.work.stop or limit:
            return stopped
        if self._exhausted and self.pipeline.unusable:
            return f"error: {self.pipeline.unusable[-1]}"
        return "exhausted" if self._exhausted else None

    def _continues(self) -> bool:
        """Whether to run another round. An open round continues after the evaluations or the time are used
        up, because it still has to be closed."""
        reason = self._reason()
        return reason is None or (reason in ("evaluations", "seconds") and bool(self.session.state.proposed))
