"""The records of a search: ideas, variants, and the tree they form. Pure: no I/O, no clock, no randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from evaluators.records.configurations import judged_kernel
from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel, content_id
from search.records.ranking import LeaderComparison, Ranking

HISTORY = ("all", "best", "summary", "none")
BEST_SHOWN = 8
LIBRARY = "library"
"""The proposer of the ideas that measure a library kernel unchanged."""
MOST_CHARACTERS = 2000
"""The longest text of an idea, and of the effect that it expects: later prompts show them all."""


class Category(StrEnum):
    """The six categories of optimisation ideas, as defined by the method's authors."""

    MEMORY = "memory access"
    LATENCY = "asynchrony and latency hiding"
    PRECISION = "data type and precision"
    COMPUTE = "compute and instructions"
    PARALLELISM = "parallelism and occupancy"
    CONTROL_FLOW = "control flow and loops"


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A kernel that a round starts from: a variant of an earlier round or a library entry.

    Attributes:
        id: The id of the variant or the entry.
        kernel: The kernel.
        evaluation: Its evaluation; None for an entry that was not measured on this machine.
        why: Why the library suggested the entry.
        drop_in: Whether it solves this problem. Other entries are shown to the proposer but never expanded.
    """

    id: str
    kernel: Kernel
    evaluation: Evaluation | None = None
    why: str = ""
    drop_in: bool = True


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """A strategy's request for ideas.

    Attributes:
        seed: The kernel that the ideas start from; None for the reference.
        ideas: The number of ideas, 1 or more.
        variants: The number of variants per idea, 1 or more.
        round: The round, from 1. The engine sets it; strategies leave it at 0.
        as_it_is: Whether to measure the seed itself instead of asking for ideas.

    Raises:
        ValueError: If `ideas` or `variants` is less than 1.
    """

    seed: Seed | None
    ideas: int
    variants: int
    round: int = 0
    as_it_is: bool = False

    def __post_init__(self) -> None:
        if self.ideas < 1 or self.variants < 1:
            raise ValueError(f"an expansion needs at least one idea and one variant, not {self}")


@dataclass(frozen=True, kw_only=True)
class Idea:
    """One optimisation hypothesis.

    Attributes:
        text: The hypothesis, in one or two sentences.
        category: Its category.
        parent: The id of the kernel that it starts from, "" for the reference.
        round: The round in which it was proposed, from 1.
        proposer: The name of the proposer.
        model: The language model that had the idea, if any.
        known_ideas: Ids of the ideas that the proposer was shown.
        expected: The effect that the proposer expects, in its words.
        predicted_gain: The gain that it expects: how many times as fast as the parent; 0 if it gave none.
        refuted_by: The result that would refute the idea; "" if it named none.
        variant_plans: What distinguishes each of its variants.
        language: The language that its kernels should be in; "" for any.
        builds_on: The id of a library entry that the idea uses in addition to its parent; "" for none.
        plan: Private notes of the proposer for `implement`.
    """

    text: str
    category: Category
    parent: str
    round: int
    proposer: str
    model: str = ""
    known_ideas: tuple[str, ...] = ()
    expected: str = ""
    predicted_gain: float = 0.0
    refuted_by: str = ""
    variant_plans: tuple[str, ...] = ()
    language: str = ""
    builds_on: str = ""
    plan: str = ""

    @cached_property
    def id(self) -> str:
        """Derived from the content and the place in the tree."""
        return content_id("idea", self.text, self.category, self.parent, str(self.round), self.proposer)


@dataclass(frozen=True, kw_only=True)
class Reflection:
    """What the measurements of a closed round say about its hypotheses, in the words of a model.

    Attributes:
        round: The round.
        text: The words: one line.
        model: The language model.
    """

    round: int
    text: str
    model: str


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kernel written for one idea.

    Attributes:
        kernel: The kernel. If it declares configurations, its verdict fills in the values of the best one.
        idea: The id of the idea.
        parent: The id of the kernel that the idea starts from, "" for the reference.
        round: The round in which it was written, from 1; of a repair, it may be a later one than its idea's.
        repairs: The id of the failed variant that this one repairs; "" for none.
        evaluation: The verdict; None until there is one.
        declared: The kernel as it was written, if `kernel` has values filled in; otherwise None.
    """

    kernel: Kernel
    idea: str
    parent: str
    round: int
    repairs: str = ""
    evaluation: Evaluation | None = None
    declared: Kernel | None = None

    @cached_property
    def id(self) -> str:
        """Derived from the idea and the written kernel: an idea never has the same kernel twice."""
        return content_id("variant", self.idea, self.written.id)

    @property
    def written(self) -> Kernel:
        """The kernel as it was written."""
        return self.declared or self.kernel

    def judged(self, evaluation: Evaluation) -> Variant:
        """This variant with a verdict, and with the values of its best configuration if it declares any."""
        kernel = judged_kernel(self.kernel, evaluation)
        declared = self.declared if kernel is self.kernel else self.kernel
        return replace(self, kernel=kernel, declared=declared, evaluation=evaluation)

    @property
    def timing(self) -> Timing | None:
        """The timing of a correct kernel."""
        return self.evaluation.timing if self.evaluation else None

    @property
    def is_outpaced(self) -> bool:
        """Whether it was only judged in the quick stage of a race."""
        return self.evaluation is not None and self.evaluation.status is Status.OUTPACED

    @property
    def seed(self) -> Seed:
        """This variant as the seed of a later round."""
        return Seed(id=self.id, kernel=self.kernel, evaluation=self.evaluation)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An idea with its variants and the best of them; None if none is correct."""

    idea: Idea
    best: Variant | None
    variants: tuple[Variant, ...]


def too_long(what: str, text: str) -> str:
    """Why a text of an idea is refused; "" if it is short enough."""
    if len(text) <= MOST_CHARACTERS:
        return ""
    limit = f"more than {MOST_CHARACTERS:,}; state it in one or two sentences"
    return f"{what} has {len(text):,} characters, {limit}"


def fit_to_show(idea: Idea) -> Idea:
    """The idea without control characters, and with texts that are too long cut; its plan is never shown."""
    shown = {
        each.name: getattr(idea, each.name) for each in fields(idea) if each.name not in ("category", "plan")
    }
    texts = {name: value for name, value in shown.items() if isinstance(value, str | tuple)}
    return replace(idea, **{name: _fit(value) for name, value in texts.items()})


def _fit(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_fit, value))
    if not isinstance(value, str):
        return value
    text = "".join(char if char.isprintable() or char in "\n\t" else " " for char in value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def drop_ins(entries: Sequence[Seed]) -> list[Seed]:
    """The entries that a round may start from."""
    return [entry for entry in entries if entry.drop_in]


def library_idea(seed: Seed, round: int) -> Idea:
    """The idea of measuring a library kernel unchanged, so that the search has its speed to beat."""
    why = f" ({seed.why})" if seed.why else ""
    return Idea(
        text=f"Take over the library's {seed.id} as it is{why}.",
        category=Category.CONTROL_FLOW,
        parent=seed.id,
        round=round,
        proposer=LIBRARY,
    )


def shown_history(history: Sequence[Outcome], how: str, under_way: Iterable[Idea] = ()) -> list[Outcome]:
    """The earlier ideas that a proposer is shown, oldest first.

    Args:
        history: the ideas of closed rounds with their outcomes.
        how: the search's key `history`. `all` and `summary` show every idea (a language model gets a
            `summary` worded by category), `best` the eight that led to the fastest kernels, `none` nothing.
        under_way: ideas without a result yet. They come last, unless `how` is `none`.
    """
    if how == "none":
        return []
    shown = list(history)
    if how == "best":
        best = {v.idea for v in fastest((o.best for o in history if o.best is not None), BEST_SHOWN)}
        shown = [outcome for outcome in history if outcome.idea.id in best]
    return [*shown, *(Outcome(idea=idea, best=None, variants=()) for idea in under_way)]


class Tree:
    """Everything tried so far, in the order in which it was proposed.

    Only the engine and the journal's replay add to it; strategies and proposers read it. `best` and `history`
    return variants with the evaluations that they are ranked by: the last comparison of leaders, if there was
    one, instead of the variant's own verdict.

    Attributes:
        ideas: All ideas by id.
        variants: All variants by id, with their own verdicts.
        rounds_closed: The number of closed rounds.
        ranking: The order of the kernels.
    """

    def __init__(self) -> None:
        self.ideas: dict[str, Idea] = {}
        self.variants: dict[str, Variant] = {}
        self.rounds_closed = 0
        self.ranking = Ranking()
        self._compared_after: list[int] = []
        """For each comparison of the ranking, the number of rounds closed before it."""
        self._variants_of: dict[str, list[str]] = {}
        self._outpaced: dict[str, tuple[Variant, int]] = {}
        """For each variant that was judged in full later: what it was before, and the number of rounds closed
        before that. The next round had been selected without its full verdict."""

    def add_idea(self, idea: Idea) -> None:
        """Adds an idea. Raises ValueError if it is already in the tree."""
        if idea.id in self.ideas:
            raise ValueError(f"idea {idea.id} is already in the tree")
        self.ideas[idea.id] = idea
        self.expect_idea(idea.id)

    def expect_idea(self, idea_id: str) -> None:
        """Allows variants of an idea that is not in the tree (yet), for callers that saw only a part of the
        run."""
        self._variants_of.setdefault(idea_id, [])

    def add_variant(self, variant: Variant) -> None:
        """Adds a variant. Raises ValueError if it is already in the tree, KeyError if its idea is not."""
        if variant.id in self.variants:
            raise ValueError(f"variant {variant.id} is already in the tree")
        self._variants_of[variant.idea].append(variant.id)
        self.variants[variant.id] = variant

    def evaluate(self, variant_id: str, evaluation: Evaluation) -> Variant:
        """Gives a variant its verdict. Raises ValueError if it already has one other than `outpaced`."""
        variant = self.variants[variant_id]
        if variant.is_outpaced:
            self._outpaced[variant_id] = variant, self.rounds_closed
        elif variant.evaluation is not None:
            raise ValueError(f"variant {variant_id} already has an evaluation")
        self.variants[variant_id] = variant.judged(evaluation)
        return self.variants[variant_id]

    def compare(self, evaluations: Mapping[str, Evaluation]) -> None:
        """Adds the result of measuring several kernels, by their ids, against one another. Raises ValueError
        if their numbers of samples differ."""
        self.ranking.add(LeaderComparison(evaluations=evaluations))
        self._compared_after.append(self.rounds_closed)

    @property
    def comparisons_since_round(self) -> int:
        """The number of comparisons of leaders since the last round closed."""
        return self._compared_after.count(self.rounds_closed)

    def variants_of(self, idea_id: str) -> tuple[Variant, ...]:
        """The variants of an idea, in the order in which they were written."""
        return tuple(self.variants[id] for id in self._variants_of[idea_id])

    def best(self, k: int = 1) -> list[Variant]:
        """The k fastest correct variants with different kernels, fastest first; ties by id."""
        return fastest(self.variants.values(), k, self.ranking)

    def leaders(self, usable: Callable[[Kernel], bool] = lambda kernel: True) -> list[Variant]:
        """The variants with `usable` kernels to measure against one another before one of them is relied on;
        none if the best is clear (see `search.records.ranking`)."""
        found = _by_kernel(self.variants.values())
        found = {id: variant for id, variant in found.items() if usable(variant.kernel)}
        own = _evaluations(found)
        return [_ranked(found[kernel], self.ranking) for kernel in self.ranking.leaders(own)]

    def lineage(self, variant: Variant) -> list[Variant]:
        """The variants that led to this one, oldest first, and this one last."""
        line = [variant]
        while (parent := self.variants.get(line[0].parent)) is not None:
            line.insert(0, parent)
        return line

    def history(self) -> list[Outcome]:
        """All ideas with their variants, oldest first."""
        outcomes = []
        for idea in self.ideas.values():
            variants = self.variants_of(idea.id)
            best = fastest(variants, 1, self.ranking)
            outcomes.append(Outcome(idea=idea, best=best[0] if best else None, variants=variants))
        return outcomes

    def before(self, round: int, usable: Callable[[Kernel], bool] = lambda kernel: True) -> Tree:
        """The tree as it was when `round` (counted from 1) began, without kernels that are not `usable`.

        Its variants are in the order of their ideas, no matter when they were written.
        """
        earlier = Tree()
        earlier.ranking = Ranking(self.ranking.by)
        for comparison, closed in zip(self.ranking.comparisons, self._compared_after, strict=True):
            if closed < round:
                earlier.ranking.add(comparison)
                earlier._compared_after.append(closed)
        earlier.rounds_closed = min(self.rounds_closed, round - 1)
        for idea in self.ideas.values():
            if idea.round < round:
                earlier.add_idea(idea)
                for variant in self.variants_of(idea.id):
                    if variant.round < round and usable(variant.kernel):
                        quick, closed = self._outpaced.get(variant.id, (variant, -1))
                        earlier.add_variant(variant if closed + 1 < round else quick)
        return earlier


def fastest(variants: Iterable[Variant], k: int, ranking: Ranking | None = None) -> list[Variant]:
    """The k fastest correct variants with different kernels, fastest first, by the ranking or, without one,
    by the lower ends of their intervals. Each has the evaluation that it is ranked by.

    The result does not depend on the order of `variants`: ties go to the earlier round, then by id.
    """
    ranking = ranking or Ranking()
    found = _by_kernel(variants)
    own = _evaluations(found)
    return [_ranked(found[kernel], ranking) for kernel in ranking.order(own)[:k]]


def _ranked(variant: Variant, ranking: Ranking) -> Variant:
    """The variant with the evaluation that it is ranked by."""
    assert variant.evaluation is not None
    counts = ranking.evaluation(variant.kernel.id, variant.evaluation)
    return variant if counts is variant.evaluation else replace(variant, evaluation=counts)


def _by_kernel(variants: Iterable[Variant]) -> dict[str, Variant]:
    """The correct variants by kernel id; of equal kernels, the one of the earliest round."""
    found: dict[str, Variant] = {}
    for variant in sorted(variants, key=lambda each: (each.round, each.id)):
        if variant.evaluation is not None and variant.evaluation.status is Status.CORRECT:
            found.setdefault(variant.kernel.id, variant)
    return found


def _evaluations(variants: Mapping[str, Variant]) -> dict[str, Evaluation]:
    return {kernel: each.evaluation for kernel, each in variants.items() if each.evaluation is not None}


def speedups_of(measured: Iterable[Seed | Variant], history: Iterable[Outcome] = ()) -> dict[str, float]:
    """Speedups over eager by id; 0 if not correct. A library entry has this search's measurement of it, and
    the best variants of the ideas in `history` have their last measurement."""
    found = {each.id: each.evaluation.speedup for each in measured if each.evaluation is not None}
    for outcome in history:
        if outcome.best is not None and outcome.best.evaluation:
            found[outcome.best.id] = outcome.best.evaluation.speedup
            if outcome.idea.proposer == LIBRARY:
                found[outcome.idea.parent] = outcome.best.evaluation.speedup
    return found
