"""The proposer that asks language models: first for ideas, then, for each idea, for code."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from evaluators.records.problem import Kernel, Problem
from search.proposers.llm.answers import Sketch, ideas_schema, read_ideas, read_kernel
from search.proposers.llm.choice import Fixed, ModelChoice, ModelStanding, standings
from search.proposers.llm.measured_history import MeasuredHistory
from search.proposers.llm.novelty import comparable, repeated
from search.proposers.llm.prompts import Prompts
from search.protocols import ProposerFailed, RunContext
from search.records.budget import BudgetSpent
from search.records.model_calls import LLM, CallFailed, Cause, Purpose, Question
from search.records.tree import Expansion, Idea, Outcome, Seed, Variant, shown_history, speedups_of

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

FIRST_WAIT_S, LONGEST_WAIT_S = 15.0, 300.0
"""Pauses while all providers are out of service, in addition to the pauses after each call."""


class LLMProposer:
    """Asks one or several language models. The model that had an idea also writes its code. `choice` knows
    the models by their names here; `name` marks the ideas. `examples`, `hardware`, `mistakes`, `edits`,
    `diversity`, `languages` and `prompts` (a folder): see `Prompts`. `library`: whether prompts show the
    library's kernels.

    A model that denies access is not asked again; if one cannot answer, another is asked. If all providers
    are out of service, they are asked again after a pause, for at most `patience_s` seconds. Raises
    ValueError without a model.
    """

    def __init__(
        self,
        models: Mapping[str, LLM],
        *,
        choice: ModelChoice | None = None,
        name: str = "llm",
        examples: bool = True,
        hardware: bool = True,
        mistakes: bool = True,
        edits: bool = True,
        diversity: float = 0.25,
        library: bool = True,
        languages: Sequence[str] | str | None = None,
        prompts: str | None = None,
        patience_s: float = 14400.0,
    ) -> None:
        if not models:
            raise ValueError("proposer=llm needs a model: llm=openai, llm=google, llm=[openai,google], …")
        if patience_s < 0:
            raise ValueError(f"proposer.patience_s is {patience_s}; it must be 0 or more")
        self._models = dict(models)
        self._choice = choice or Fixed()
        self._name = name
        self._library = library
        self._patience_s = patience_s
        self._prompts = Prompts(
            folder=Path(prompts) if prompts else None,
            examples=examples,
            hardware=hardware,
            mistakes=mistakes,
            edits=edits,
            diversity=diversity,
            languages=[languages] if isinstance(languages, str) else languages or (),
        )
        self._denied: dict[str, str] = {}
        self._run: RunContext | None = None

    def refusal(self, problem: Problem) -> str | None:
        """The refusal of the first model that cannot be called."""
        return next((reason for model in self._models.values() if (reason := model.refusal())), None)

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Accepts every kernel."""
        return True

    def begin(self, run: RunContext) -> None:
        """See `Proposer`."""
        self._run = run
        for model in self._models.values():
            model.begin(run.folder)

    async def close(self) -> None:
        """Closes the models' connections."""
        for model in self._models.values():
            await model.close()

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """Asks the chosen models at the same time, each for its share. Repeated ideas are replaced by asking
        once more, failed answers by asking other models."""
        wanted = expansion.ideas
        earlier = self._earlier(expansion.seed)
        ideas: list[Idea] = []
        turned_down: list[str] = []
        failed: dict[str, CallFailed] = {}
        again, waited_s = True, 0.0
        while missing := wanted - len(ideas):
            names = [name for name in self._models if name not in {*self._denied, *failed}]
            if not names:
                out_of_service = any(each.cause.outage for each in failed.values())
                if ideas or not out_of_service or waited_s >= self._patience_s:
                    break
                waited_s += await self._wait_out(failed, waited_s)
                failed = {name: each for name, each in failed.items() if not each.cause.outage}
                continue
            shares = self._choice.pick(self._standings(names), missing, rng)
            answers = await asyncio.gather(
                *(
                    self._sketches(name, count, problem, expansion, history, turned_down)
                    for name, count in shares.items()
                ),
                return_exceptions=True,
            )
            before = len(turned_down)
            for name, answer in zip(shares, answers, strict=True):
                if isinstance(answer, CallFailed):
                    failed[name] = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    self._admit(name, answer, expansion, history, earlier, ideas, turned_down)
            if not any(isinstance(answer, CallFailed) for answer in answers):
                if len(turned_down) == before or not again:
                    break  # a model had fewer ideas than requested
                again = False
        if not ideas and len({*self._denied, *failed}) == len(self._models):
            raise ProposerFailed(f"no model has an idea ({self._reasons(failed)})")
        return ideas[:wanted]

    async def _wait_out(self, failed: Mapping[str, CallFailed], waited_s: float) -> float:
        """Pauses for as long as all pauses before, within limits; returns the seconds. Raises BudgetSpent."""
        pause_s = min(max(waited_s, FIRST_WAIT_S), LONGEST_WAIT_S, self._patience_s - waited_s)
        logger.warning(
            "no model answers (%s); asking again in %.0f s, giving up after %.3g h (proposer.patience_s)",
            self._reasons(failed),
            pause_s,
            self._patience_s / 3600,
        )
        await self._context.model_client.pause(pause_s)
        return pause_s

    def _reasons(self, failed: Mapping[str, CallFailed]) -> str:
        return "; ".join(f"{name}: {reason}" for name, reason in {**self._denied, **failed}.items())

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        """Makes one call per variant, all at the same time, and yields each kernel as soon as it arrives."""
        read = partial(read_kernel, seed=parent.kernel.source if parent else "")
        calls = [
            asyncio.create_task(
                self._ask(idea.model, self.code_question(problem, idea, parent, number, n), read)
            )
            for number in range(len(written) + 1, n + 1)
        ]
        spent: BudgetSpent | None = None
        try:
            for call in asyncio.as_completed(calls):
                try:
                    yield await call
                except CallFailed as error:
                    logger.info("a variant of idea %s was not written: %s", idea.id, error)
                except BudgetSpent as error:
                    spent = error
        finally:
            for task in calls:
                task.cancel()
        if spent is not None:
            raise spent

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        """Makes one call, to the model that had the idea."""
        try:
            read = partial(read_kernel, seed=failed.kernel.source)
            return await self._ask(idea.model, self.repair_question(problem, idea, failed), read)
        except CallFailed as error:
            logger.info("variant %s was not repaired: %s", failed.id, error)
            return None

    def ideas_question(
        self,
        problem: Problem,
        expansion: Expansion,
        history: Sequence[Outcome],
        count: int,
        turned_down: Sequence[str] = (),
    ) -> Question:
        """The question for `count` ideas."""
        run = self._context
        entries = run.entries if self._library else ()
        seed = expansion.seed
        evidence = MeasuredHistory(history, run.entries, run.state.tree.before(expansion.round).ranking)
        prompt = self._prompts.ideas(
            problem,
            run.facts,
            seed,
            evidence,
            entries,
            count,
            expansion.variants,
            turned_down,
            summary=run.history == "summary",
        )
        return Question(
            purpose=Purpose.IDEAS,
            system=self._prompts.system(),
            prompt=prompt,
            about=f"round {expansion.round}",
            schema=ideas_schema(seed.id if seed else "", [entry.id for entry in entries]),
        )

    def code_question(
        self, problem: Problem, idea: Idea, parent: Seed | None, number: int, of: int
    ) -> Question:
        """The question for variant `number` of `of` of an idea."""
        run = self._context
        entry = next((each for each in run.entries if each.id == idea.builds_on), None)
        there = run.state.tree.variants_of(idea.id) if idea.id in run.state.tree.ideas else ()
        failed = [v for v in there if v.evaluation is not None and v.evaluation.timing is None]
        evidence = self._evidence(idea)
        prompt = self._prompts.code(problem, run.facts, idea, parent, entry, evidence, failed, number, of)
        return Question(
            purpose=Purpose.CODE, system=self._prompts.system(), prompt=prompt, about=f"idea {idea.id}"
        )

    def repair_question(self, problem: Problem, idea: Idea, failed: Variant) -> Question:
        """The question about a failed variant."""
        evidence = self._evidence(idea)
        prompt = self._prompts.repair(problem, self._context.facts, idea, failed, evidence)
        return Question(
            purpose=Purpose.REPAIR, system=self._prompts.system(), prompt=prompt, about=f"variant {failed.id}"
        )

    def _evidence(self, idea: Idea) -> MeasuredHistory:
        """The evidence of the rounds before the idea's, so that a prompt does not depend on which kernel of a
        round is measured first."""
        run = self._context
        earlier = run.state.tree.before(idea.round)
        return MeasuredHistory(shown_history(earlier.history(), run.history), run.entries, earlier.ranking)

    async def _sketches(
        self,
        name: str,
        count: int,
        problem: Problem,
        expansion: Expansion,
        history: Sequence[Outcome],
        turned_down: Sequence[str],
    ) -> list[Sketch]:
        """At most `count` ideas from one model. Raises CallFailed or BudgetSpent."""
        question = self.ideas_question(problem, expansion, history, count, turned_down)
        entries = [entry.id for entry in self._context.entries] if self._library else []
        try:
            sketches = await self._context.model_client.ask(
                self._models[name], question, lambda text: read_ideas(text, entries)
            )
        except CallFailed as error:
            self._note(name, error)
            raise
        return sketches[:count]

    def _admit(
        self,
        name: str,
        sketches: Sequence[Sketch],
        expansion: Expansion,
        history: Sequence[Outcome],
        earlier: Sequence[str],
        ideas: list[Idea],
        turned_down: list[str],
    ) -> None:
        """Adds a model's new ideas to `ideas`, and the texts of repeated ones to `turned_down`."""
        for sketch in sketches:
            if repeated(sketch.text, [*earlier, *(idea.text for idea in ideas)]):
                logger.info("%s repeats an idea: %s", name, sketch.text)
                turned_down.append(sketch.text)
                continue
            ideas.append(
                Idea(
                    text=sketch.text,
                    category=sketch.category,
                    parent=expansion.seed.id if expansion.seed else "",
                    round=expansion.round,
                    proposer=self._name,
                    model=self._models[name].name,
                    known_ideas=tuple(outcome.idea.id for outcome in history),
                    expected=sketch.expected,
                    predicted_gain=sketch.predicted_gain,
                    refuted_by=sketch.refuted_by,
                    variant_plans=sketch.variant_plans,
                    builds_on=sketch.library_entry,
                )
            )

    async def _ask(self, wanted: str, question: Question, read: Callable[[str], Result]) -> Result:
        """Asks the model with this name or, if it denies access, another. Raises the last CallFailed, or
        BudgetSpent."""
        names = [name for name in self._models if name not in self._denied]
        names.sort(key=lambda name: self._models[name].name != wanted)
        last: CallFailed | None = None
        for name in names:
            try:
                return await self._context.model_client.ask(self._models[name], question, read)
            except CallFailed as error:
                self._note(name, error)
                last = error
                if name not in self._denied:
                    break
        raise last or CallFailed(Cause.DENIED, "; ".join(self._denied.values()))

    def _note(self, name: str, error: CallFailed) -> None:
        """Removes a model that denies access for the rest of the run."""
        if error.cause is Cause.DENIED and name not in self._denied:
            self._denied[name] = str(error)
            logger.warning("model %s is not asked again: %s", name, error)

    def _standings(self, names: Sequence[str]) -> dict[str, ModelStanding]:
        state = self._context.state
        kernels, entries = state.tree.variants.values(), self._context.entries
        measured: list[Seed | Variant] = [*kernels, *entries]
        speedups = speedups_of(measured, state.tree.history())
        by_model = {self._models[name].name: name for name in names}
        dollars = {model: float(each.dollars) for model, each in state.spending.items()}
        found = standings(list(by_model), state.tree.history(), dollars, speedups)
        return {by_model[model]: standing for model, standing in found.items()}

    def _earlier(self, seed: Seed | None) -> list[str]:
        """The texts of ideas that a new idea for the seed must not repeat."""
        tree = self._context.state.tree
        parent = seed.id if seed else ""
        variant = tree.variants.get(parent)
        lineage = tree.lineage(variant) if variant else []
        return comparable(tree.ideas.values(), parent, (each.idea for each in lineage))

    @property
    def _context(self) -> RunContext:
        assert self._run is not None, "begin() comes first"
        return self._run
