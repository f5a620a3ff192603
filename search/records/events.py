"""What happens in a run, as records: the journal's lines and what observers see."""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Problem
from search.records.model_calls import ModelCall
from search.records.ranking import LOWER_END
from search.records.tree import Idea, Seed, Variant


@dataclass(frozen=True, kw_only=True)
class Event:
    """`at_s` is seconds of work since the run began, pauses between stop and resume not counted."""

    at_s: float


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """First line of a journal, and again at every resume."""

    problem: Problem
    proposer: str
    strategy: str
    rounds: int
    seed: int
    environment: dict[str, str]
    """What is the same for all evaluations: device's name, versions."""
    entries: tuple[Seed, ...] = ()
    """The library's hits when the run began; a resumed run keeps to them."""
    ranking: str = LOWER_END
    """What the run ranks its kernels by (see `search.records.ranking`); a resumed run keeps to that."""


@dataclass(frozen=True, kw_only=True)
class ExpansionAsked(Event):
    """A strategy without synchronous rounds has asked for an expansion, having seen all that comes before
    in the journal. `number` counts them from 0 in the run; `seed` is the id of its seed, "" for the
    reference."""

    number: int
    seed: str
    ideas: int
    variants: int
    round: int
    as_it_is: bool = False


@dataclass(frozen=True, kw_only=True)
class IdeaProposed(Event):
    """`number` counts the ideas of the round from 1; `expansion` is the number of its expansion, from 0 in
    the round or, where it was recorded (`ExpansionAsked`), in the run; `of` is how many ideas that
    expansion brought in the same answer."""

    idea: Idea
    number: int
    expansion: int
    of: int = 1


@dataclass(frozen=True, kw_only=True)
class SeedExhausted(Event):
    """The proposer, asked in this round, had no new idea on the seed: its id, "" for the reference."""

    seed: str
    round: int


@dataclass(frozen=True, kw_only=True)
class VariantWritten(Event):
    """`number` counts the variants of the idea from 1."""

    variant: Variant
    number: int


@dataclass(frozen=True, kw_only=True)
class IdeaImplemented(Event):
    """The proposer will write no more variants of the idea by itself: it has written so many."""

    idea_id: str
    variants: int


@dataclass(frozen=True, kw_only=True)
class ModelCalled(Event):
    """A call of a model has ended, with an answer or without."""

    call: ModelCall


@dataclass(frozen=True, kw_only=True)
class VariantStage(Event):
    """Not journaled: where a variant is on its way to a verdict: `queued`, `building`, `measuring`."""

    variant_id: str
    stage: str


@dataclass(frozen=True, kw_only=True)
class VariantEvaluated(Event):
    """`reused` when an equal kernel had been evaluated before and its verdict was taken over."""

    variant: Variant
    reused: bool = False


@dataclass(frozen=True, kw_only=True)
class RoundClosed(Event):
    """All variants of the round have their verdicts, or the budget ran out. `best` is the run's so far."""

    round: int
    best: Variant | None
    evaluations: int
    """Verdicts so far, reused ones not counted."""


@dataclass(frozen=True, kw_only=True)
class LeadersCompared(Event):
    """The variants that may be the fastest were measured against one another in one session, before a round
    starts from them or one is confirmed. `evaluations` are theirs, in the same order."""

    variants: tuple[Variant, ...]
    evaluations: tuple[Evaluation, ...]

    @property
    def by_kernel(self) -> dict[str, Evaluation]:
        """What was found, by kernel id."""
        found = zip(self.variants, self.evaluations, strict=True)
        return {variant.kernel.id: evaluation for variant, evaluation in found}


@dataclass(frozen=True, kw_only=True)
class BestConfirmed(Event):
    """The final re-measurement of a winner, in a fresh process with new inputs."""

    variant: Variant
    evaluation: Evaluation


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """`reason`: why it ended (`rounds`, `evaluations`, `seconds`, `interrupted`, `exhausted`, ...)."""

    reason: str
    best: Variant | None
    confirmed: Evaluation | None
