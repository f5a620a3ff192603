"""A search steered from outside, idea by idea and kernel by kernel: the MCP server's tools call it.

It is the engine's counterpart: it never asks for ideas or code, and checks what it is given. Each new idea
belongs to the open round. An idea that builds on a variant of the open round closes that round first, because
a child always belongs to a later round than its parent.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from evaluators.base.cause import printable
from evaluators.base.languages import LANGUAGES, language_of
from evaluators.base.nearest import nearest
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel
from search.engine.diagnoses import Diagnoses
from search.engine.session import Session
from search.protocols import Diagnoser
from search.records.events import (
    Event,
    IdeaImplemented,
    IdeaProposed,
    RunFinished,
    VariantStage,
    VariantWritten,
)
from search.records.tree import Category, Idea, Seed, Variant, drop_ins, fit_to_show, too_long

PROPOSER, STRATEGY = "Agent", "agent"
NAMED = 6
"""The number of known ids, latest first, that an error lists when none resembles the unknown one. It also
suffices for the six categories."""
MOST_NAME, MOST_SOURCE = 100, 500_000
"""The longest name of a client, and the longest kernel that one may submit, in characters."""

OnStage = Callable[[str], None]


class AgentRefused(Exception):
    """The request cannot be carried out. The message is one line: the reason, and what to do instead."""


class Agent:
    """A search of one problem, steered by the caller; it continues from the journal's last state.

    It observes the `session`, whose `grace_s` and `confirm_s` should be 0: after a stop, no caller is left to
    wait. `diagnoser`: profiles kernels when the caller asks for it; None: nothing does.
    """

    def __init__(self, session: Session, diagnoser: Diagnoser | None = None) -> None:
        self.session = session
        self._diagnoses = None if diagnoser is None else Diagnoses(session, diagnoser)
        session.observe(self)
        self.stages: dict[str, str] = {}
        """The stage of each variant in flight, by variant id."""
        self._under_way: dict[str, asyncio.Task[Variant | None]] = {}
        self._profiles: set[asyncio.Task[None]] = set()
        """The profile under way, if there is one: nothing is measured next to it."""
        self._listeners: defaultdict[str, list[OnStage]] = defaultdict(list)
        self._one_idea_at_a_time = asyncio.Lock()
        self._finishing: asyncio.Task[RunFinished] | None = None

    @property
    def round(self) -> int:
        """The number of the open round, from 1."""
        return self.session.state.tree.rounds_closed + 1

    @property
    def busy(self) -> bool:
        """Whether the evaluator still works for this search."""
        return bool(self._under_way) or (self._finishing is not None and not self._finishing.done())

    def start(self) -> None:
        """Starts or resumes the run; kernels without a verdict go to the evaluator again. Raises ValueError
        if the journal belongs to another search."""
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
        """Adds an idea to the open round, or returns the equal idea proposed in this round before.

        If the round has to be closed first, this waits for its evaluations. Raises AgentRefused.
        """
        tree = self.session.state.tree
        entries = [entry.id for entry in self.session.entries]
        if not printable(text):
            raise AgentRefused(
                "the idea has no text; say in one or two sentences what to change and why it should help"
            )
        if why := too_long("the idea", text) or too_long("the expected effect", expected):
            raise AgentRefused(why)
        kind = _one_of("category", category.strip().lower(), [each.value for each in Category])
        if parent:
            seeds = [entry.id for entry in drop_ins(self.session.entries)]
            _one_of("parent", parent, [*tree.variants, *seeds], 'or "" for the reference itself')
            self._check_parent(parent)
        if builds_on:
            _one_of("builds_on", builds_on, entries, 'or "" for none')
        async with self._one_idea_at_a_time:
            follows = parent in tree.variants and tree.variants[parent].round == self.round
            self._check(rounds_closed=tree.rounds_closed + follows)
            if follows:
                on_stage(f"waiting for the evaluations of round {self.round}")
                await self._until_idle()
                self._check_parent(parent)
                self._check(rounds_closed=tree.rounds_closed + 1)
                self._close_round()
            idea = fit_to_show(
                Idea(
                    text=text.strip(),
                    category=Category(kind),
                    parent=parent,
                    round=self.round,
                    proposer="agent",
                    model=printable(model)[:MOST_NAME],
                    known_ideas=tuple(tree.ideas),
                    expected=expected.strip(),
                    builds_on=builds_on,
                )
            )
            if idea.id not in tree.ideas:
                number = 1 + len(self.session.state.proposed)
                at_s = self.session.now_s
                self._record(IdeaProposed(at_s=at_s, idea=idea, number=number, expansion=number - 1))
            return tree.ideas[idea.id]

    def submit(self, *, idea: str, source: str, language: str = "", repairs: str = "") -> Variant:
        """Sends a kernel for an idea of the open round to the evaluator, and returns its variant. A kernel
        that the idea already has is not evaluated again. An empty `language` is guessed from the source.
        Raises AgentRefused."""
        tree = self.session.state.tree
        of = tree.ideas[_one_of("idea", idea, list(tree.ideas), "propose_idea makes one")]
        if language:
            _one_of("language", language, tuple(LANGUAGES))
        if len(source) > MOST_SOURCE:
            limit = f"more than {MOST_SOURCE:,}; submit a shorter source"
            raise AgentRefused(f"the kernel has {len(source):,} characters, {limit}")
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
                    f"idea {idea} belongs to round {of.round}, which is closed; propose a new idea with its "
                    "best variant as parent"
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
        """Waits for a variant's evaluation and returns the variant. Raises AgentRefused if there will be
        none."""
        tree = self.session.state.tree
        _one_of("variant", variant_id, list(tree.variants))
        if (task := self._under_way.get(variant_id)) is not None:
            with self._listening(variant_id, on_stage):
                # Not awaited directly: a caller that stops waiting must not cancel the evaluation.
                await asyncio.wait({task})
        variant = tree.variants[variant_id]
        if variant.evaluation is None:
            why = self.session.work.stop or "the budget ran out before its turn"
            raise AgentRefused(f"variant {variant_id} was not evaluated: {why}")
        return variant

    async def diagnosis(self, kernel_id: str, on_stage: OnStage = lambda stage: None) -> Diagnosis:
        """The diagnosis of a variant or a library kernel. One that was not taken before is taken now, while
        nothing is measured. Raises AgentRefused."""
        seed = self._profilable(kernel_id)
        known = self.session.state.diagnoses
        while (found := known.get(seed.kernel.id)) is None:
            if self._diagnoses is None:
                raise AgentRefused(
                    f"kernel {kernel_id} has no diagnosis, and this server takes none: it was started with "
                    "profile=off, or its devices are on another machine"
                )
            self._check_open()
            if self.session.state.finished is not None:
                raise AgentRefused("the run has ended; propose_idea reopens it")
            if self._under_way or self._profiles:
                on_stage("waiting for the evaluations under way")
                await self._until_idle()
                continue  # something else may have begun meanwhile
            on_stage("profiling")
            task = self.session.work.spawn(self._diagnoses.one(seed), f"profile {kernel_id}")
            self._profiles.add(task)
            task.add_done_callback(self._profiles.discard)
            # Not awaited directly: a caller that stops waiting must not cancel the profile.
            await asyncio.wait({task})
        if not found.reached:
            why = "; ".join(found.missing.values())
            raise AgentRefused(f"kernel {kernel_id} could not be profiled: {why}")
        return found

    async def finish(self) -> RunFinished:
        """Waits for the evaluations, closes the round, measures the best kernel again, and ends the run.

        The work continues if the caller stops waiting; the next call returns its result. A later idea reopens
        the run.
        """
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish(), name="finish")
        return await asyncio.shield(self._finishing)

    async def stop(self, reason: str) -> RunFinished:
        """Ends the run now: cancels work in flight and leaves the round open, so that it can be resumed.

        A best kernel that has not been measured again is reported as unconfirmed.
        """
        self.session.work.request_stop(reason)
        await self.session.work.drain(0.0)
        return await self.finish()

    def on_event(self, event: Event) -> None:
        """Tracks the stages of variants and passes them on to the listeners."""
        if isinstance(event, VariantStage) and self.stages.get(event.variant_id) not in (None, event.stage):
            self.stages[event.variant_id] = event.stage
            for tell in self._listeners.get(event.variant_id, ()):
                tell(event.stage)

    def close(self) -> None:
        """Does nothing; part of the observer protocol."""

    async def _finish(self) -> RunFinished:
        session = self.session
        await self._until_idle()
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
        """Raises AgentRefused when no idea and no kernel may be added, given the number of closed rounds."""
        self._check_open()
        if limit := self.session.budget.exhausted(rounds_closed):
            raise AgentRefused(
                f"budget.{limit} is used up; call finish to have the best kernel measured again"
            )

    def _check_open(self) -> None:
        """Raises AgentRefused when nothing new may begin."""
        if (stop := self.session.work.stop) is not None:
            raise AgentRefused(f"the run was stopped ({stop}); call finish to get its best kernel")
        if self._finishing is not None and not self._finishing.done():
            raise AgentRefused("the run is finishing; call finish to wait for the result")

    def _profilable(self, kernel_id: str) -> Seed:
        """The kernel with this id. Raises AgentRefused if it is not known to be correct here."""
        entries = {entry.id: entry for entry in self.session.entries}
        variants = self.session.state.tree.variants
        _one_of("kernel", kernel_id, [*entries, *variants])
        seed = entries.get(kernel_id) or variants[kernel_id].seed
        if seed.evaluation is None:
            raise AgentRefused(f"kernel {kernel_id} has no verdict here yet; read_kernel waits for it")
        if not seed.drop_in or seed.evaluation.timing is None:
            status = seed.evaluation.status.value if seed.drop_in else "it solves another problem"
            raise AgentRefused(
                f"kernel {kernel_id} is not correct for this problem ({status}), so it is not profiled"
            )
        return seed

    def _check_parent(self, parent: str) -> None:
        """Raises AgentRefused for a variant that failed, before its round is closed and it can no longer be
        repaired."""
        variant = self.session.state.tree.variants.get(parent)
        verdict = variant.evaluation if variant else None
        if variant is not None and verdict is not None and verdict.status is not Status.CORRECT:
            raise AgentRefused(
                f"variant {parent} is no kernel to start from: {verdict.status.value}; to correct it, submit "
                f"a kernel for idea {variant.idea} with repairs={parent}, or choose another parent"
            )

    def _check_repair(self, idea: str, repairs: str) -> None:
        variants = {variant.id: variant for variant in self.session.state.tree.variants_of(idea)}
        failed = variants[_one_of(f"variant of idea {idea} to repair", repairs, list(variants))]
        if failed.evaluation is not None and failed.evaluation.status is Status.CORRECT:
            raise AgentRefused(f"variant {repairs} is correct and needs no repair; leave repairs empty")

    def _reserve(self) -> None:
        """Raises AgentRefused when the remaining evaluations are all in flight."""
        if not self.session.budget.reserve(1):
            raise AgentRefused(
                "the remaining budget.evaluations are all in flight; wait for a verdict, or call finish"
            )

    def _record(self, event: Event) -> None:
        """Records an event, and reopens the run if it was finished."""
        if self.session.state.finished is not None:
            self._finishing = None
            self.session.announce()
        self.session.record(event)

    def _evaluate(self, variant: Variant) -> None:
        """Sends a variant, whose evaluation is reserved, to the evaluator."""
        task = self.session.work.spawn(self._evaluated(variant), f"evaluate variant {variant.id}")
        self._under_way[variant.id], self.stages[variant.id] = task, "queued"
        task.add_done_callback(lambda task: self._ended(variant.id))

    async def _evaluated(self, variant: Variant) -> Variant | None:
        if self._profiles:
            await asyncio.wait(self._profiles)
        return await self.session.evaluate(variant)

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

    async def _until_idle(self) -> None:
        """Returns when neither an evaluation nor a profile is in flight."""
        while tasks := {*self._under_way.values(), *self._profiles}:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # let the tasks' callbacks run first

    @contextmanager
    def _listening(self, variant_id: str, on_stage: OnStage) -> Iterator[None]:
        """Calls `on_stage` with each stage of a variant, starting with the current one."""
        if stage := self.stages.get(variant_id):
            on_stage(stage)
        self._listeners[variant_id].append(on_stage)
        try:
            yield
        finally:
            self._listeners[variant_id].remove(on_stage)


def _one_of(what: str, value: str, known: Collection[str], otherwise: str = "") -> str:
    """Returns the value if it is known. Otherwise raises AgentRefused, naming the nearest known value."""
    if value in known:
        return value
    if near := nearest(value, known):
        hint = f"did you mean {near}?"
    else:
        hint = f"known: {', '.join([*known][-NAMED:])}" if known else "none exists yet"
        hint += f", {otherwise}" if otherwise else ""
    raise AgentRefused(f"unknown {what} {value!r}; {hint}")
