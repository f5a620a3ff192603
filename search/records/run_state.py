"""The state that the events of a run add up to. Searches, journal replays and observers all use it."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel
from search.records.events import (
    BestConfirmed,
    Event,
    ExpansionAsked,
    IdeaImplemented,
    IdeaProposed,
    KernelDiagnosed,
    LeadersCompared,
    ModelCalled,
    ProbeMeasured,
    ProbeRequested,
    ProbeWritten,
    RoundClosed,
    RoundReflected,
    RunFinished,
    RunStarted,
    SeedExhausted,
    VariantEvaluated,
    VariantJudgedInFull,
    VariantWritten,
)
from search.records.model_calls import Spending
from search.records.probe_request import ProbeRequest
from search.records.ranking import Ranking
from search.records.time_use import TimeUse
from search.records.tree import Expansion, Idea, Reflection, Seed, Tree, Variant


@dataclass
class Asked:
    """An expansion requested by a strategy without synchronous rounds, and its ideas."""

    event: ExpansionAsked
    ideas: list[Idea] = field(default_factory=list)

    def expansion(self, seeds: Mapping[str, Seed]) -> Expansion:
        """The expansion, with its seed taken from `seeds`."""
        asked = self.event
        return Expansion(
            seed=seeds[asked.seed] if asked.seed else None,
            ideas=asked.ideas,
            variants=asked.variants,
            round=asked.round,
            as_it_is=asked.as_it_is,
        )


@dataclass
class RunState:
    """The state of a run: the tree, and what the engine needs to continue."""

    tree: Tree = field(default_factory=Tree)
    started: RunStarted | None = None
    """The first start, which says what the run searches, with the facts of the first that has the device's
    own."""
    finished: RunFinished | None = None
    """How the run ended; None while it is running."""
    proposed: dict[int, list[Idea]] = field(default_factory=dict)
    """The ideas of the open round, by the index of their expansion."""
    asked: dict[int, Asked] = field(default_factory=dict)
    """The requested expansions, by their numbers."""
    answers: dict[str, dict[int, bool]] = field(default_factory=dict)
    """By kernel id ("" for the reference) and round: whether the proposer's last answer had an idea for
    it."""
    implemented: set[str] = field(default_factory=set)
    """Ids of the ideas whose variants are all written."""
    spending: dict[str, Spending] = field(default_factory=dict)
    """The cost of model calls, by model."""
    calls: set[str] = field(default_factory=set)
    """The ids of all model calls."""
    verdicts: dict[str, Evaluation] = field(default_factory=dict)
    """Verdicts by the id of the kernel as written, for equal kernels to reuse, without infrastructure
    errors."""
    quick: dict[str, Evaluation] = field(default_factory=dict)
    """Verdicts of the quick stage of a race by the id of the kernel, also of kernels judged in full later."""
    diagnoses: dict[str, Diagnosis] = field(default_factory=dict)
    """Diagnoses by kernel id."""
    probes: dict[str, ProbeRequest] = field(default_factory=dict)
    """The probes that models asked for, by id."""
    probe_kernels: dict[str, Kernel] = field(default_factory=dict)
    """The kernels of probes, by the id of their request."""
    probed: dict[str, ProbeMeasured] = field(default_factory=dict)
    """The results of probes, by the id of their request."""
    reflections: dict[int, Reflection] = field(default_factory=dict)
    """Reflections by round."""
    confirmed: dict[str, Evaluation] = field(default_factory=dict)
    """Final measurements by kernel id, without infrastructure errors."""
    statuses: Counter[Status] = field(default_factory=Counter)
    """Counts of the statuses of all evaluations, not counting reused verdicts."""
    evaluations: int = 0
    device_s: float = 0.0
    time: TimeUse = field(default_factory=TimeUse)
    """Where the time of all measurements went."""
    used_s: float = 0.0

    @property
    def spent(self) -> Spending:
        """The cost of all model calls."""
        return Spending.total(self.spending.values())

    @property
    def compared_s(self) -> float:
        """The part of `device_s` that went into comparing leaders."""
        found = (each.evaluations.values() for each in self.tree.ranking.comparisons)
        return sum(each.device_s for each in itertools.chain.from_iterable(found))

    def apply(self, event: Event) -> None:
        """Applies the next event. Raises ValueError or KeyError if it cannot follow the earlier ones."""
        self.used_s = max(self.used_s, event.at_s)
        match event:
            case RunStarted():
                if self.started is None:
                    self.started, self.tree.ranking = event, Ranking(event.ranking)
                elif not self.started.is_described:
                    self.started = replace(self.started, environment=event.environment)
                self.finished = None
            case ExpansionAsked(number=number):
                self.asked[number] = Asked(event=event)
            case IdeaProposed(idea=idea, expansion=expansion):
                self.tree.add_idea(idea)
                asked = self.asked.get(expansion)
                (self.proposed.setdefault(expansion, []) if asked is None else asked.ideas).append(idea)
                self._take_answer(idea.parent, idea.round, had=True)
            case SeedExhausted(seed=seed, round=number):
                self._take_answer(seed, number, had=False)
            case ModelCalled(call=call):
                self.calls.add(call.id)
                self.spending.setdefault(call.model, Spending()).add(call)
            case VariantWritten(variant=variant):
                self.tree.add_variant(variant)
            case IdeaImplemented(idea_id=idea_id):
                self.implemented.add(idea_id)
            case VariantEvaluated(variant=variant, reused=reused):
                self._take_verdict(variant, reused)
            case VariantJudgedInFull(variant=variant, reused=reused):
                self._take_full_verdict(variant, reused)
            case RoundClosed(round=number):
                self.tree.rounds_closed = number
                self.proposed = {}
            case LeadersCompared(evaluations=evaluations):
                self._take_time(*evaluations)
                self.tree.compare(event.by_kernel)
            case KernelDiagnosed(kernel=kernel, diagnosis=diagnosis):
                self.diagnoses[kernel] = diagnosis
            case ProbeRequested(request=request):
                self.probes[request.id] = request
            case ProbeWritten(request_id=request_id, kernel=written):
                self.probe_kernels[request_id] = written
            case ProbeMeasured(request_id=request_id, probe=probe):
                self.probed[request_id] = event
                if probe is not None:
                    self.device_s += probe.device_s
                    self.time.add_probe(probe)
            case RoundReflected(reflection=reflection):
                self.reflections[reflection.round] = reflection
            case BestConfirmed(variant=variant, evaluation=evaluation):
                self._take_time(evaluation)
                if evaluation.status.is_of_the_kernel:
                    self.confirmed[variant.kernel.id] = evaluation
            case RunFinished():
                self.finished = event

    def knows(self, event: Event) -> bool:
        """Whether the event was applied before, and would be refused or counted twice if applied again."""
        match event:
            case ModelCalled(call=call):
                return call.id in self.calls
            case ExpansionAsked(number=number):
                return number in self.asked
            case IdeaProposed(idea=idea):
                return idea.id in self.tree.ideas
            case VariantWritten(variant=variant):
                return variant.id in self.tree.variants
            case VariantEvaluated(variant=variant):
                known = self.tree.variants.get(variant.id)
                return known is not None and known.evaluation is not None
            case VariantJudgedInFull(variant=variant):
                known = self.tree.variants.get(variant.id)
                return known is not None and known.evaluation is not None and not known.is_outpaced
            case RoundClosed(round=number):
                return number <= self.tree.rounds_closed
            case LeadersCompared(by_kernel=found):
                return any(found == each.evaluations for each in self.tree.ranking.comparisons)
            case KernelDiagnosed(kernel=kernel):
                return kernel in self.diagnoses
            case ProbeRequested(request=request):
                return request.id in self.probes
            case ProbeWritten(request_id=request_id):
                return request_id in self.probe_kernels
            case ProbeMeasured(request_id=request_id):
                return request_id in self.probed
            case RoundReflected(reflection=reflection):
                return reflection.round in self.reflections
        return False

    def is_pending(self, asked: Asked) -> bool:
        """Whether the tree lacks some verdicts of the expansion's ideas."""
        return any(
            idea.id not in self.implemented
            or any(each.evaluation is None for each in self.tree.variants_of(idea.id))
            for idea in asked.ideas
        )

    def exhausted(self, before: int = sys.maxsize) -> frozenset[str]:
        """Ids of the kernels ("" for the reference) for which the proposer had no idea when last asked in a
        round before this one."""
        found = []
        for kernel, by_round in self.answers.items():
            last = max((number for number in by_round if number < before), default=None)
            if last is not None and not by_round[last]:
                found.append(kernel)
        return frozenset(found)

    def _take_answer(self, seed: str, round: int, *, had: bool) -> None:
        variant = self.tree.variants.get(seed)
        entries = self.started.entries if self.started else ()
        entry = next((each for each in entries if each.id == seed), None)
        kernel = variant.kernel.id if variant else entry.kernel.id if entry else ""
        self.answers.setdefault(kernel, {})[round] = had

    def _take_verdict(self, variant: Variant, reused: bool) -> None:
        evaluation = variant.evaluation
        if evaluation is None:
            raise ValueError(f"variant {variant.id} was evaluated but has no evaluation")
        self.tree.evaluate(variant.id, evaluation)
        if reused:
            return
        self.evaluations += 1
        self._count(variant, evaluation)

    def _take_full_verdict(self, variant: Variant, reused: bool) -> None:
        before, evaluation = self.tree.variants[variant.id].evaluation, variant.evaluation
        if before is None or evaluation is None:
            raise ValueError(f"variant {variant.id} was judged in full but has no evaluation")
        self.tree.evaluate(variant.id, evaluation)
        if not reused:
            self.statuses -= Counter([before.status])
            self._count(variant, evaluation)

    def _count(self, variant: Variant, evaluation: Evaluation) -> None:
        self.statuses[evaluation.status] += 1
        self._take_time(evaluation)
        if evaluation.status.is_of_the_kernel:
            self.verdicts[variant.written.id] = evaluation
            if evaluation.status is Status.OUTPACED:
                self.quick[variant.written.id] = evaluation

    def _take_time(self, *evaluations: Evaluation) -> None:
        for each in evaluations:
            self.device_s += each.device_s
            self.time.add(each)


def rebuild(events: Iterable[Event]) -> RunState:
    """The state of a run after these events. Raises ValueError or KeyError if they cannot belong to one
    run."""
    state = RunState()
    for event in events:
        state.apply(event)
    return state
