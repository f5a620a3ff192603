"""The events of a run: the lines of its journal, and what observers receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation
from evaluators.records.probe import Probe
from evaluators.records.problem import Kernel, Problem
from search.records.model_calls import ModelCall
from search.records.probe_request import ProbeRequest
from search.records.ranking import LOWER_END
from search.records.tree import Idea, Reflection, Seed, Variant


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run.

    Attributes:
        at_s: Seconds of work since the run began; pauses between a stop and a resume do not count.
    """

    at_s: float


ASSUMED = "assumed"
"""The name of the fact which says that an environment's facts are shipped ones of the device that the run is
pinned to, because no worker has described it yet."""

RATES = ("_per_s", "_kernel_us")
"""How the names of those facts end that are measured, and differ a little each time."""
MODEL_AND_SOFTWARE = ("device", "architecture", "instructions", "torch", "cuda")
"""The facts that say whether two environments are of the same kind of device."""


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """The first line of a journal, written again at each resume, and when a worker has described the device.

    Attributes:
        problem: The problem of the run.
        proposer: The class name of the proposer.
        strategy: The class name of the strategy.
        rounds: The limit of rounds; 0 for none.
        seed: The seed of the run's random choices.
        environment: Facts that are the same for all evaluations: the device's name, software versions. See
            also `ASSUMED`.
        entries: The library's hits when the run began; a resumed run keeps them.
        ranking: How the run ranks its kernels (see `search.records.ranking`); a resumed run keeps it.
    """

    problem: Problem
    proposer: str
    strategy: str
    rounds: int
    seed: int
    environment: dict[str, str]
    entries: tuple[Seed, ...] = ()
    ranking: str = LOWER_END

    @property
    def is_described(self) -> bool:
        """Whether the device itself was asked for the facts."""
        return ASSUMED not in self.environment

    def rates_on(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The device's rates as prompts stated them after this start; {} if `environment` is of another
        device or other software."""
        mine = self.environment
        if not self.is_described or any(mine.get(n) != environment.get(n) for n in MODEL_AND_SOFTWARE):
            return {}
        return {name: value for name, value in mine.items() if name.endswith(RATES)}


@dataclass(frozen=True, kw_only=True)
class ExpansionAsked(Event):
    """A strategy without synchronous rounds has requested an expansion, having seen everything before it in
    the journal.

    Attributes:
        number: Counts the expansions of the run from 0.
        seed: The id of the expansion's seed, "" for the reference.
        ideas: The number of ideas requested.
        variants: The number of variants per idea.
        round: The round that the ideas belong to.
        as_it_is: Whether the seed itself is to be measured, without new ideas.
        threshold: In a race, the speedup that its kernels must be able to reach to be judged in full.
    """

    number: int
    seed: str
    ideas: int
    variants: int
    round: int
    as_it_is: bool = False
    threshold: float = 0.0


@dataclass(frozen=True, kw_only=True)
class IdeaProposed(Event):
    """The proposer had an idea.

    Attributes:
        idea: The idea.
        number: Counts the ideas of the round from 1.
        expansion: The number of its expansion, from 0: within the run after an `ExpansionAsked`, otherwise
            within the round.
        of: The number of ideas that the expansion got in the same answer.
    """

    idea: Idea
    number: int
    expansion: int
    of: int = 1


@dataclass(frozen=True, kw_only=True)
class SeedExhausted(Event):
    """The proposer, asked in this round, had no new idea for the seed. `seed` is its id, "" for the
    reference."""

    seed: str
    round: int


@dataclass(frozen=True, kw_only=True)
class VariantWritten(Event):
    """A kernel was written. `number` counts the variants of its idea from 1."""

    variant: Variant
    number: int


@dataclass(frozen=True, kw_only=True)
class IdeaImplemented(Event):
    """The proposer will write no more variants of the idea unless asked for a repair; it has written
    `variants`."""

    idea_id: str
    variants: int


@dataclass(frozen=True, kw_only=True)
class ModelCalled(Event):
    """A call to a language model has ended, with or without an answer."""

    call: ModelCall


@dataclass(frozen=True, kw_only=True)
class VariantStage(Event):
    """Where a variant is on its way to a verdict: `queued`, `waiting` (for the worker of a queue),
    `building` or `measuring`. Not in the journal."""

    variant_id: str
    stage: str


@dataclass(frozen=True, kw_only=True)
class VariantEvaluated(Event):
    """A variant has its verdict. `reused`: the verdict is that of an equal kernel evaluated before."""

    variant: Variant
    reused: bool = False


@dataclass(frozen=True, kw_only=True)
class VariantJudgedInFull(Event):
    """A variant that was `outpaced` has a verdict on all checks, because it may become a seed or the winner.
    Its seconds are those of the full stage. `reused`: the verdict is that of an equal kernel."""

    variant: Variant
    reused: bool = False


@dataclass(frozen=True, kw_only=True)
class RoundClosed(Event):
    """All variants of the round have their verdicts, or the budget ran out.

    Attributes:
        round: The number of the round, from 1.
        best: The fastest variant of the run so far; None if none is correct.
        evaluations: Verdicts of the run so far, not counting reused ones.
    """

    round: int
    best: Variant | None
    evaluations: int


@dataclass(frozen=True, kw_only=True)
class LeadersCompared(Event):
    """The variants that may be the fastest were measured against one another in one session, before a round
    starts from them or one of them is confirmed. `evaluations` has the same order as `variants`."""

    variants: tuple[Variant, ...]
    evaluations: tuple[Evaluation, ...]

    @property
    def by_kernel(self) -> dict[str, Evaluation]:
        """The evaluations by kernel id."""
        found = zip(self.variants, self.evaluations, strict=True)
        return {variant.kernel.id: evaluation for variant, evaluation in found}


@dataclass(frozen=True, kw_only=True)
class KernelDiagnosed(Event):
    """A kernel was profiled, apart from any measurement: before a round, or when an agent asked for it.

    Attributes:
        seed: The id of the variant or of the library's entry.
        kernel: The id of its kernel.
        diagnosis: What the profile means. If the kernel could not be profiled, it has no level, and says why.
    """

    seed: str
    kernel: str
    diagnosis: Diagnosis


@dataclass(frozen=True, kw_only=True)
class ProbeRequested(Event):
    """A language model asked for a probe, next to its ideas."""

    request: ProbeRequest


@dataclass(frozen=True, kw_only=True)
class ProbeWritten(Event):
    """The kernel of a probe was written. `request_id` is the id of the request."""

    request_id: str
    kernel: Kernel


@dataclass(frozen=True, kw_only=True)
class ProbeMeasured(Event):
    """A probe was timed, or could not be written. This is no evaluation, but its device time counts.

    Attributes:
        request_id: The id of the request.
        kernel: The kernel that was timed; None if the model gave no usable answer.
        probe: The result; None without a kernel.
    """

    request_id: str
    kernel: Kernel | None
    probe: Probe | None


@dataclass(frozen=True, kw_only=True)
class RoundReflected(Event):
    """The proposer has put into words what the measurements of a closed round say."""

    reflection: Reflection


@dataclass(frozen=True, kw_only=True)
class BestConfirmed(Event):
    """The final measurement of a winner, in a new process with new inputs."""

    variant: Variant
    evaluation: Evaluation


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """The run has ended.

    Attributes:
        reason: Why it ended: `rounds`, `evaluations`, `seconds`, `interrupted`, `exhausted`, `blocked`, ...
        best: The winner; None if no kernel was correct.
        confirmed: The winner's final measurement; None if there was none.
    """

    reason: str
    best: Variant | None
    confirmed: Evaluation | None
