"""A search that is steered from outside, idea by idea and kernel by kernel: what the MCP server's tools do.

The engine's counterpart: it asks nobody, but checks what it is told. An idea belongs to the open round; an
idea on a variant of the open round closes that round first, since a child is always of a later round.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from evaluators.base.nearest import nearest
from evaluators.records.evaluation import Status
from evaluators.records.problem import LANGUAGES, Kernel, language_of
from search.engine.session import Session
from search.records.events import (
    Event,
    IdeaImplemented,
    IdeaProposed,
    RunFinished,
    VariantStage,
    VariantWritten,
)
from search.records.tree import Category, Idea, Variant, drop_ins

PROPOSER, STRATEGY = "Agent", "agent"
NAMED = 6
"""So many ids, the latest, are named where an unknown one resembles none; there are six categories, too."""

OnStage = Callable[[str], None]


class AgentRefused(Exception):
    """What was asked for cannot be done. The message is one line: why, and what can be done instead."""


class Agent:
    """A search of one problem for whoever steers it; goes on from whatever the journal holds.

    It watches the `session`, whose `grace_s` and `confirm_s` are best 0: who could wait after a stop is gone.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        session.observe(self)
        self.stages: dict[str, str] = {}
        """Where the variants are that are under way, by id."""
        self._under_way: dict[str, asyncio.Task[Variant | None]] = {}
        self._listeners: defaultdict[str, list[OnStage]] = defaultdict(list)
        self._one_idea_at_a_time = asyncio.Lock()
        self._finishing: asyncio.Task[RunFinished] | None = None

    @property
    def round(self) -> int:
        """The number of the open round, from 1."""
        return self.session.state.tree.rounds_closed + 1

    @property
    def busy(self) -> bool:
        """Whether anything is with the evaluator."""
        return bool(self._under_way) or (self._finishing is not None and not self._finishing.done())

    def start(self) -> None:
        """Begins, or goes on: kernels without a verdict go to the evaluator again. Raises ValueError for a
        journal of another search."""
        self.session.start(proposer=PROPOSER, strategy=STRATEGY, seed=0)
        self.session.announce()
        for variant in list(self.session.state.tree.variants.values()):
            if variant.evaluation is None and self.session.budget.reserve(1):
                self._evaluate(variant)

    async def propose(
        self,
        *,
        text: str,
        category: str,
        parent: str = "",
        expected: str = "",
        builds_on: str = "",
        model: str = "",
        on_stage: OnStage = lambda stage: None,
    ) -> Idea:
        """A new idea of the open round; the one that is there when it was proposed in this round before.

        Waits for the round's evaluations where the round has to be closed first. Raises Refused.
        """
        tree = self.session.state.tree
        entries = [entry.id for entry in self.session.entries]
        if not text.strip():
            raise AgentRefused(
                "the idea has no text; say in one or two sentences what is changed, and why it helps"
            )
        kind = _one_of("category", category.strip().lower(), [each.value for each in Category])
        if parent:
            seeds = [entry.id for entry in drop_ins(self.session.entries)]
            _one_of("parent", parent, [*tree.variants, *seeds], 'or "" for the reference itself')
        if builds_on:
            _one_of("builds_on", builds_on, entries, 'or "" for none')
        async with self._one_idea_at_a_time:
            follows = parent in tree.variants and tree.variants[parent].round == self.round
            self._check(rounds_closed=tree.rounds_closed + follows)
            if follows:
                on_stage(f"waiting for the evaluations of round {self.round}")
                await self._until_judged()
                self._check(rounds_closed=tree.rounds_closed + 1)
                self._close_round()
            idea = Idea(
                text=text.strip(),
                category=Category(kind),
                parent=parent,
                round=self.round,
                proposer="agent",
                model=model,
                known_ideas=tuple(tree.ideas),
                expected=expected.strip(),
                builds_on=builds_on,
            )
            if idea.id not in tree.ideas:
                number = 1 + len(self.session.state.proposed)
                at_s = self.session.now_s
                self._record(IdeaProposed(at_s=at_s, idea=idea, number=number, expansion=number - 1))
            return tree.ideas[idea.id]

    def submit(self, *, idea: str, source: str, language: str = "", repairs: str = "") -> Variant:
        """A kernel for an idea of the open round, on its way to the evaluator; the variant that is there
        where the idea has this kernel already. `language` "" is guessed. Raises Refused."""
        tree = self.session.state.tree
        of = tree.ideas[_one_of("idea", idea, list(tree.ideas), "propose_idea makes one")]
        if language:
            _one_of("language", language, LANGUAGES)
        try:
            kernel = Kernel(source=source, language=language or language_of(source))
        except ValueError as error:
            raise AgentRefused(str(error)) from error
        if repairs:
            self._check_repair(idea, repairs)
        variant = Variant(kernel=kernel, idea=idea, parent=of.parent, round=of.round, repairs=repairs)
        if (there := tree.variants.get(variant.id)) is None:
            self._check(rounds_closed=tree.rounds_closed)
            if of.round != self.round:
                raise AgentRefused(
                    f"idea {idea} is of round {of.round}, which is closed; propose an idea that goes on from "
                    "it, with the best of its variants as parent"
                )
            self._reserve()
            number = len(tree.variants_of(idea)) + 1
            self._record(VariantWritten(at_s=self.session.now_s, variant=variant, number=number))
            self._evaluate(variant)
        elif there.evaluation is None and there.id not in self._under_way:
            self._check(rounds_closed=tree.rounds_closed)
            self._reserve()
            self._evaluate(there)
        return tree.variants[variant.id]

    async def verdict(self, variant_id: str, on_stage: OnStage = lambda stage: None) -> Variant:
        """The variant with its evaluation, which is waited for. Raises Refused when there will be none."""
        tree = self.session.state.tree
        _one_of("variant", variant_id, list(tree.variants))
        if (task := self._under_way.get(variant_id)) is not None:
            with self._listening(variant_id, on_stage):
                # Not awaited itself: who stops waiting does not stop the evaluation.
                await asyncio.wait({task})
        variant = tree.variants[variant_id]
        if variant.evaluation is None:
            why = self.session.work.stop or "the budget was used up before its turn came"
            raise AgentRefused(f"variant {variant_id} was not evaluated: {why}")
        return variant

    async def finish(self) -> RunFinished:
        """Waits for the evaluations, closes the round, measures the best kernel again, and ends the run.

        Goes on when its caller stops waiting; the next call then has the result. An idea after it takes the
        run up again.
        """
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish(), name="finish")
        return await asyncio.shield(self._finishing)

    async def stop(self, reason: str) -> RunFinished:
        """Ends the run now: work in flight is cancelled, and the round stays open to be gone on with.

        The best kernel is reported unconfirmed where it has not been measured again yet.
        """
        self.session.work.request_stop(reason)
        await self.session.work.drain(0.0)
        return await self.finish()

    def on_event(self, event: Event) -> None:
        """Keeps track of the stages, and passes them on to those who wait."""
        if isinstance(event, VariantStage) and self.stages.get(event.variant_id) not in (None, event.stage):
            self.stages[event.variant_id] = event.stage
            for tell in self._listeners.get(event.variant_id, ()):
                tell(event.stage)

    def close(self) -> None:
        """An observer's end: nothing is left to do."""

    async def _finish(self) -> RunFinished:
        session = self.session
        await self._until_judged()
        if session.state.finished is not None:
            return session.state.finished
        if session.work.stop is None and session.state.proposed:
            self._close_round()
        return await session.finish(self._reason)

    def _reason(self) -> str:
        session = self.session
        limit = session.budget.exhausted(session.state.tree.rounds_closed)
        return session.work.stop or limit or "finished"

    def _check(self, *, rounds_closed: int) -> None:
        """Raises Refused when nothing new may begin, with so many rounds closed."""
        if (stop := self.session.work.stop) is not None:
            raise AgentRefused(f"the run was stopped ({stop}); call finish for its best kernel")
        if self._finishing is not None and not self._finishing.done():
            raise AgentRefused("the run is being finished; call finish to wait for the result")
        if limit := self.session.budget.exhausted(rounds_closed):
            raise AgentRefused(
                f"budget.{limit} is used up; call finish to have the best kernel measured again"
            )

    def _check_repair(self, idea: str, repairs: str) -> None:
        variants = {variant.id: variant for variant in self.session.state.tree.variants_of(idea)}
        failed = variants[_one_of(f"variant of idea {idea} to repair", repairs, list(variants))]
        if failed.evaluation is not None and failed.evaluation.status is Status.CORRECT:
            raise AgentRefused(
                f"variant {repairs} is correct: there is nothing to repair; leave repairs empty"
            )

    def _reserve(self) -> None:
        """Raises Refused where the evaluations that are left are all under way."""
        if not self.session.budget.reserve(1):
            raise AgentRefused(
                "what budget.evaluations has left is under way; wait for a verdict, or call finish"
            )

    def _record(self, event: Event) -> None:
        """Takes the run up again where it was finished."""
        if self.session.state.finished is not None:
            self._finishing = None
            self.session.announce()
        self.session.record(event)

    def _evaluate(self, variant: Variant) -> None:
        """Sends a variant to the evaluator; its evaluation is reserved."""
        task = self.session.work.spawn(self.session.evaluate(variant), f"evaluate variant {variant.id}")
        self._under_way[variant.id], self.stages[variant.id] = task, "queued"
        task.add_done_callback(lambda task: self._ended(variant.id))

    def _ended(self, variant_id: str) -> None:
        del self._under_way[variant_id]
        del self.stages[variant_id]

    def _close_round(self) -> None:
        at_s, state = self.session.now_s, self.session.state
        ideas = [idea for ideas in state.proposed.values() for idea in ideas]
        self.session.record(
            *(
                IdeaImplemented(at_s=at_s, idea_id=idea.id, variants=len(state.tree.variants_of(idea.id)))
                for idea in ideas
            )
        )
        self.session.close_round(self.round)

    async def _until_judged(self) -> None:
        """Returns when no evaluation is under way."""
        while self._under_way:
            await asyncio.wait(set(self._under_way.values()))
            await asyncio.sleep(0)  # the tasks' own callbacks come first

    @contextmanager
    def _listening(self, variant_id: str, on_stage: OnStage) -> Iterator[None]:
        """`on_stage` is told of the stages of a variant, the present one first."""
        if stage := self.stages.get(variant_id):
            on_stage(stage)
        self._listeners[variant_id].append(on_stage)
        try:
            yield
        finally:
            self._listeners[variant_id].remove(on_stage)


def _one_of(what: str, value: str, known: Collection[str], otherwise: str = "") -> str:
    """The value. Raises Refused, with the nearest that there is, when it is not a known one."""
    if value in known:
        return value
    if near := nearest(value, known):
        hint = f"did you mean {near}?"
    else:
        hint = f"there are {', '.join([*known][-NAMED:])}" if known else "there is none yet"
        hint += f", {otherwise}" if otherwise else ""
    raise AgentRefused(f"unknown {what} {value!r}; {hint}")
