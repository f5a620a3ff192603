"""The proposer that asks language models: first for ideas, then, for each idea, for code."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

from evaluators.records.problem import Kernel, Problem
from evaluators.rewards.completions import read_kernel, read_kernels
from search.proposers.llm.answers import (
    ProbeSketch,
    Sketch,
    read_ideas,
    read_probes,
    read_ranking,
    read_reflection,
)
from search.proposers.llm.choice import Fixed, ModelChoice, ModelStanding, standings
from search.proposers.llm.novelty import comparable, repeated
from search.proposers.llm.prompts import Prompts
from search.proposers.llm.questions import Questions
from search.protocols import NoUsableAnswer, ProposerFailed, RunContext
from search.records.budget import BudgetSpent
from search.records.model_calls import LLM, CallFailed, OutOfService, Question
from search.records.probe_request import ProbeRequest
from search.records.tree import (
    Expansion,
    Idea,
    Outcome,
    Reflection,
    Seed,
    Variant,
    speedups_of,
)

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PAUSES_S = (15.0, 60.0)
"""Pauses after which all models are asked for ideas again, none of whose answers could be used."""


class LLMProposer:
    """Asks one or several language models. The model that had an idea also writes its code. `choice` knows
    the models by their names here; `name` marks the ideas. `examples`, `hardware`, `mistakes`, `edits`,
    `diversity`, `languages` and `prompts` (a folder): see `Prompts`. `library`: whether prompts show the
    library's kernels; `diagnoses`: whether they show the profiles of seeds; `reflection`: whether to
    reflect on each round, and to show the reflections; `together`: whether one question asks for all variants
    of an idea; `wave`: the number of variants of an idea to ask for at a time, each time with the results of
    the earlier ones, None for all at once; `screening`: how many times as many ideas to ask for, of which the
    model named by `screener` (None: the one that proposed most of them) chooses, None for no choice.

    A model that denies access is not asked again. If one is out of service, or gives no usable answer,
    another is asked. If all are out of service, questions of every kind wait, for at most `patience_s`
    seconds; after that the run ends and can be resumed. Raises ValueError without a model.
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
        diagnoses: bool = True,
        edits: bool = True,
        diversity: float = 0.25,
        together: bool = False,
        reflection: bool = True,
        wave: int | None = None,
        screening: int | None = None,
        screener: str | None = None,
        library: bool = True,
        languages: Sequence[str] | str | None = None,
        prompts: str | None = None,
        patience_s: float = 14400.0,
    ) -> None:
        if not models:
            raise ValueError("proposer=llm needs a model: llm=openai, llm=google, llm=[openai,google], …")
        if wave is not None and wave < 1:
            raise ValueError(f"proposer.wave is {wave}; it must be 1 or more, or null for all at once")
        if patience_s < 0:
            raise ValueError(f"proposer.patience_s is {patience_s}; it must be 0 or more")
        self.models = dict(models)
        self._choice = choice or Fixed()
        self._name = name
        self._library, self._together, self._reflection = library, together, reflection
        self._diagnoses = diagnoses
        if screening is not None and screening < 2:
            raise ValueError(f"proposer.screening is {screening}; it must be 2 or more, or null for none")
        if screener is not None and screener not in models:
            raise ValueError(f"proposer.screener is {screener!r}; it must be one of {', '.join(models)}")
        self.wave = wave or 0
        self._screening, self._screener = screening or 1, screener
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
        self._run: RunContext | None = None
        self._questions: Questions | None = None
        self._probes: list[ProbeRequest] = []

    def refusal(self, problem: Problem) -> str | None:
        """The refusal of the first model that cannot be called."""
        return next((reason for model in self.models.values() if (reason := model.refusal())), None)

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Accepts every kernel."""
        return True

    def begin(self, run: RunContext) -> None:
        """See `Proposer`."""
        self._run = run
        self._questions = Questions(
            run,
            self._prompts,
            library=self._library,
            diagnoses=self._diagnoses,
            reflection=self._reflection,
            wave=self.wave,
        )
        for model in self.models.values():
            model.begin(run.folder)

    @property
    def questions(self) -> Questions:
        """What it asks in the run that has begun."""
        assert self._questions is not None, "begin() comes first"
        return self._questions

    async def close(self) -> None:
        """Closes the models' connections."""
        for model in self.models.values():
            await model.close()

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """Asks the chosen models at the same time, each for its share; another model answers for one that
        cannot. Repeated ideas are replaced by asking once more. With screening, the most promising of several
        times as many ideas are returned."""
        earlier = self._earlier(expansion.seed)
        ideas: list[Idea] = []
        turned_down: list[str] = []
        again, pauses_s = True, iter(PAUSES_S)
        while missing := expansion.ideas * self._screening - len(ideas):
            shares = self._choice.pick(self._standings(self._names()), missing, rng)
            answers = await asyncio.gather(
                *(
                    self._sketches(name, count, problem, expansion, history, turned_down)
                    for name, count in shares.items()
                ),
                return_exceptions=True,
            )
            before = len(turned_down)
            failures: list[CallFailed | ProposerFailed | BudgetSpent] = []
            for answer in answers:
                if isinstance(answer, CallFailed | ProposerFailed | BudgetSpent):
                    failures.append(answer)
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    self._admit(*answer, expansion, history, earlier, ideas, turned_down)
            if failures and not ideas:
                await self._wait_or_give_up(failures, next(pauses_s, None))
            elif failures or len(turned_down) == before or not again:
                break  # a model had fewer ideas than requested
            else:
                again = False
        return await self._screened(problem, expansion, history, ideas)

    async def _screened(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], ideas: list[Idea]
    ) -> list[Idea]:
        """As many ideas as are wanted: the most promising by a model's ranking or, without a usable one, the
        first."""
        places: Sequence[int] = range(len(ideas))
        if len(ideas) > expansion.ideas:
            question = self.questions.screening(problem, expansion, history, ideas)
            had = Counter(idea.model for idea in ideas)
            model = max(self.models.values(), key=lambda each: had[each.name])
            asked = [self.models[self._screener] if self._screener else model]
            try:
                read = partial(read_ranking, count=len(ideas))
                _, places = await self._context.model_client.ask(asked, question, read)
            except (CallFailed, BudgetSpent) as error:
                logger.warning("the ideas of round %d are not screened: %s", expansion.round, error)
        return [ideas[place] for place in places[: expansion.ideas]]

    async def _wait_or_give_up(
        self, failures: Sequence[CallFailed | ProposerFailed | BudgetSpent], pause_s: float | None
    ) -> None:
        """Pauses before all models are asked again. Raises what forbids that: a failure that concerns more
        than this question or, if no model may give a usable answer to it later, NoUsableAnswer."""
        unusable: list[CallFailed] = []
        for failure in failures:
            if not isinstance(failure, CallFailed):
                raise failure
            unusable.append(failure)
        reason = "; ".join(str(each) for each in unusable)
        if pause_s is None or not any(each.cause.retryable for each in unusable):
            raise NoUsableAnswer(f"no model gives a usable answer to a question for ideas ({reason})")
        logger.warning(
            "no usable answer to a question for ideas (%s); asking again in %.0f s", reason, pause_s
        )
        await self._context.model_client.pause(pause_s)

    def _names(self) -> list[str]:
        """The names of the models to choose from."""
        asked = self._context.model_client.may_be_asked(self.models.values())
        return [name for name, model in self.models.items() if model in asked]

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        """Makes one call per variant, all at the same time, or one for all, and yields each kernel as soon as
        it arrives; those of a wave in the order of their numbers."""
        source = parent.kernel.source if parent else ""
        last = min(n, self.questions.wave_start(len(written) + 1) + self.wave) if self.wave else n
        missing = range(len(written) + 1, last + 1)
        calls = [
            asyncio.create_task(
                self._kernels(
                    idea, self.questions.code(problem, idea, parent, numbers, n), source, len(numbers)
                )
            )
            for numbers in ([missing] if self._together and missing else [[number] for number in missing])
        ]
        ended: BudgetSpent | ProposerFailed | None = None
        try:
            for call in calls if self.wave else asyncio.as_completed(calls):
                try:
                    for kernel in await call:
                        yield kernel
                except CallFailed as error:
                    logger.warning("a variant of idea %s was not written: %s", idea.id, error)
                except (BudgetSpent, ProposerFailed) as error:
                    ended = error
        finally:
            for task in calls:
                task.cancel()
        if ended is not None:
            raise ended

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        """Makes one call, to the model that had the idea or, if it is out of service, to another."""
        try:
            question = self.questions.repair(problem, idea, failed)
            return (await self._kernels(idea, question, failed.kernel.source, 1))[0]
        except CallFailed as error:
            logger.info("variant %s was not repaired: %s", failed.id, error)
            return None

    async def reflect(self, problem: Problem, round: int) -> Reflection | None:
        """Asks the model that had most of the round's ideas, once. Nothing is asked with `history=none`."""
        run = self._context
        by_model = Counter(idea.model for idea in run.state.tree.ideas.values() if idea.round == round)
        model = max(self.models.values(), key=lambda each: by_model[each.name])
        if not self._reflection or run.history == "none" or not by_model[model.name]:
            return None
        question = self.questions.reflection(problem, round)
        try:
            _, text = await run.model_client.ask([model], question, read_reflection)
        except CallFailed as error:
            logger.warning("no reflection on round %d: %s", round, error)
        except BudgetSpent as spent:
            logger.info("no reflection on round %d: %s", round, spent)
        else:
            return Reflection(round=round, text=text, model=model.name)
        return None

    def take_probes(self) -> list[ProbeRequest]:
        """See `ProbeProposer`."""
        taken, self._probes = self._probes, []
        return taken

    async def write_probe(self, problem: Problem, request: ProbeRequest, base: Seed | None) -> Kernel | None:
        """Makes one call, to the model that asked for the probe or, if it is out of service, to another."""
        source = base.kernel.source if base else ""
        question = self.questions.probe(problem, request, base)
        try:
            return (await self._ask(request.model, question, partial(read_kernel, seed=source)))[1]
        except CallFailed as error:
            logger.info("probe %s was not written: %s", request.id, error)
            return None

    async def _sketches(
        self,
        name: str,
        count: int,
        problem: Problem,
        expansion: Expansion,
        history: Sequence[Outcome],
        turned_down: Sequence[str],
    ) -> tuple[LLM, list[Sketch]]:
        """At most `count` ideas, and the model that proposed them: the named one or, if it cannot answer,
        another. Raises CallFailed, ProposerFailed or BudgetSpent."""
        question = self.questions.ideas(problem, expansion, history, count, turned_down)
        entries = [entry.id for entry in self._context.entries] if self._library else []
        wanted = self.models[name].name
        seed_id = expansion.seed.id if expansion.seed else ""

        def read(text: str) -> tuple[list[Sketch], list[ProbeSketch]]:
            return read_ideas(text, entries), read_probes(text, seed_id, entries)

        answered, (sketches, probes) = await self._ask(wanted, question, read)
        self._probes += [
            ProbeRequest(round=expansion.round, model=answered.name, **asdict(each)) for each in probes
        ]
        return answered, sketches[:count]

    def _admit(
        self,
        model: LLM,
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
                logger.info("%s repeats an idea: %s", model.name, sketch.text)
                turned_down.append(sketch.text)
                continue
            ideas.append(
                Idea(
                    text=sketch.text,
                    category=sketch.category,
                    parent=expansion.seed.id if expansion.seed else "",
                    round=expansion.round,
                    proposer=self._name,
                    model=model.name,
                    known_ideas=tuple(outcome.idea.id for outcome in history),
                    expected=sketch.expected,
                    predicted_gain=sketch.predicted_gain,
                    refuted_by=sketch.refuted_by,
                    variant_plans=sketch.variant_plans,
                    language=sketch.language,
                    builds_on=sketch.library_entry,
                )
            )

    async def _kernels(self, idea: Idea, question: Question, seed: str, count: int) -> list[Kernel]:
        """The kernels, at most `count`, in the answer of the model that had the idea or, if it cannot answer,
        of another; edits are those of the source `seed`. Raises CallFailed, ProposerFailed or BudgetSpent."""
        read = partial(read_kernels, seed=seed, count=count)
        return (await self._ask(idea.model, question, read))[1]

    async def _ask(
        self, wanted: str, question: Question, read: Callable[[str], Result]
    ) -> tuple[LLM, Result]:
        """Asks the model with this name or, if it cannot answer, another. Raises CallFailed if none gives a
        usable answer to this question, ProposerFailed if none answers any, and BudgetSpent."""
        models = sorted(self.models.values(), key=lambda model: model.name != wanted)
        try:
            return await self._context.model_client.ask(models, question, read, patience_s=self._patience_s)
        except OutOfService as error:
            raise ProposerFailed(f"{error}; resume the run once a model answers") from error

    def _standings(self, names: Sequence[str]) -> dict[str, ModelStanding]:
        state = self._context.state
        kernels, entries = state.tree.variants.values(), self._context.entries
        measured: list[Seed | Variant] = [*kernels, *entries]
        speedups = speedups_of(measured, state.tree.history())
        by_model = {self.models[name].name: name for name in names}
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
