"""The parts of a `Progress`: its ideas with their variants, its models, and its closed rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluators.records.evaluation import Status
from search.records.model_calls import Spending
from search.records.tree import Idea, Variant, fastest


@dataclass(kw_only=True)
class VariantProgress:
    """One variant: its latest stage, and its verdict in `variant.evaluation` once there is one."""

    variant: Variant
    number: int
    stage: str = "written"
    reused: bool = False


@dataclass(kw_only=True)
class IdeaProgress:
    """One idea and its variants by id. `idea` is None if it was proposed before this observer watched.
    `implemented`: the proposer will write no more variants of it, except repairs."""

    id: str
    round: int
    number: int
    idea: Idea | None = None
    implemented: bool = False
    variants: dict[str, VariantProgress] = field(default_factory=dict)

    @property
    def best(self) -> Variant | None:
        """The fastest correct variant so far."""
        return next(iter(fastest((item.variant for item in self.variants.values()), 1)), None)

    @property
    def open(self) -> bool:
        """Whether variants are still to be written or evaluated."""
        return not self.implemented or any(item.variant.evaluation is None for item in self.variants.values())


@dataclass(kw_only=True)
class ModelProgress:
    """One model: the cost of its calls, the number of its ideas, and the fastest of their variants."""

    spending: Spending = field(default_factory=Spending)
    ideas: int = 0
    best: Variant | None = None


@dataclass(frozen=True, kw_only=True)
class RoundSummary:
    """The results of a round.

    `evaluations` does not count reused verdicts, `statuses` does. `correct_share` is None if no variant has a
    verdict. `best` is the run's best variant when the round closed; `improved` says whether it came from this
    round. `models`, by name, covers the whole run until then.
    """

    round: int
    ideas: int
    evaluations: int
    statuses: Counter[Status]
    best: Variant | None
    improved: bool
    evaluations_so_far: int
    wall_s: float
    elapsed_s: float
    device_s: float
    models: Mapping[str, ModelProgress]

    @property
    def correct_share(self) -> float | None:
        """Correct variants divided by variants with a verdict, without those that a race left undecided."""
        verdicts = self.statuses.total() - self.statuses[Status.OUTPACED]
        return self.statuses[Status.CORRECT] / verdicts if verdicts else None
