"""Where a run stands: folds its events into what the console, the plain log and W&B all show."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from evaluators.evaluation import Evaluation, Status
from search.events import (
    BestConfirmed,
    Event,
    IdeaProposed,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantStage,
    VariantWritten,
)
from search.tree import Idea, Variant, fastest


@dataclass(kw_only=True)
class VariantProgress:
    """One variant on its way: its latest stage, and its verdict in `variant.evaluation` when there is one."""

    variant: Variant
    number: int
    stage: str = "written"
    reused: bool = False


@dataclass(kw_only=True)
class IdeaProgress:
    """One idea and its variants by id. `idea` is None when it was proposed before this observer watched."""

    id: str
    round: int
    number: int
    idea: Idea | None = None
    variants: dict[str, VariantProgress] = field(default_factory=dict)

    @property
    def best(self) -> Variant | None:
        """The fastest correct variant so far."""
        return next(iter(fastest((item.variant for item in self.variants.values()), 1)), None)

    @property
    def statuses(self) -> Counter[Status]:
        """How many variants have which verdict, reused ones counted."""
        verdicts = (item.variant.evaluation for item in self.variants.values())
        return Counter(verdict.status for verdict in verdicts if verdict is not None)

    @property
    def open(self) -> bool:
        """Whether a variant has no verdict yet, or none is written."""
        return not self.variants or any(item.variant.evaluation is None for item in self.variants.values())


@dataclass(frozen=True, kw_only=True)
class RoundSummary:
    """What a round brought.

    `evaluations` leaves reused verdicts out, `statuses` has them; `correct_share` is None where no variant
    has a verdict. `best` is the run's best when the round closed; `improved` when this round gave it.
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

    @property
    def correct_share(self) -> float | None:
        """Correct variants over variants with a verdict."""
        verdicts = self.statuses.total()
        return self.statuses[Status.CORRECT] / verdicts if verdicts else None


class Progress:
    """The state of a run as its observers show it; `apply` takes the events in the order of the run.

    Limits are the budget's, None for no limit; rounds that are not given are those that the run started with.
    `clock` gives seconds from any origin, and carries the time on between two events. Tolerates what a
    journal's replay does not: a resumed run of which the earlier events are unknown, and events seen twice.
    """

    def __init__(
        self,
        *,
        rounds: int | None = None,
        evaluations: int | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        past: Iterable[Event] = (),
    ) -> None:
        self.evaluations_limit = evaluations
        self.seconds_limit = seconds
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.confirmed: dict[str, Evaluation] = {}
        """Final measurements, by kernel id."""
        self.ideas: dict[str, IdeaProgress] = {}
        self.rounds: dict[int, RoundSummary] = {}
        """The closed rounds, by number."""
        self.best: Variant | None = None
        self.statuses: Counter[Status] = Counter()
        """Of the evaluations that this observer knows of, reused ones not counted."""
        self.evaluations = 0
        self.reused = 0
        self.device_s = 0.0
        self._rounds_limit = rounds
        self._clock = clock
        self._last_at_s = 0.0
        self._last_clock_s = clock()
        self._round_began_s = 0.0
        for event in past:
            self.apply(event)

    @property
    def rounds_limit(self) -> int | None:
        """How many rounds there may be."""
        return self._rounds_limit or (self.started.rounds if self.started else None)

    @property
    def rounds_closed(self) -> int:
        """The number of the last closed round, 0 before the first."""
        return max(self.rounds, default=0)

    @property
    def elapsed_s(self) -> float:
        """Seconds of work on the run until now."""
        if self.finished or not self.started:
            return self._last_at_s
        return self._last_at_s + max(0.0, self._clock() - self._last_clock_s)

    @property
    def seconds_left(self) -> float | None:
        """What the budget has left of its seconds; None without such a limit."""
        return None if self.seconds_limit is None else max(0.0, self.seconds_limit - self.elapsed_s)

    @property
    def evaluations_left(self) -> int | None:
        """What the budget has left of its evaluations; None without such a limit."""
        limit = self.evaluations_limit
        return None if limit is None else max(0, limit - self.evaluations)

    @property
    def remaining_s(self) -> float | None:
        """The seconds until a limit ends the run, at its pace so far; None before there is an estimate."""
        elapsed_s, closed = self.elapsed_s, self.rounds_closed
        estimates = [] if self.seconds_left is None else [self.seconds_left]
        if closed and self.rounds_limit is not None:
            until = self.rounds[closed].elapsed_s
            estimates.append(max(0.0, until * self.rounds_limit / closed - elapsed_s))
        if self.evaluations_left is not None and self.evaluations:
            estimates.append(elapsed_s * self.evaluations_left / self.evaluations)
        return min(estimates, default=None)

    @property
    def fraction(self) -> float:
        """How much of the run is done, between 0 and 1, by whichever limit is nearest."""
        shares = [0.0]
        if self.rounds_limit:
            shares.append(self.rounds_closed / self.rounds_limit)
        if self.evaluations_limit:
            shares.append(self.evaluations / self.evaluations_limit)
        if self.seconds_limit:
            shares.append(self.elapsed_s / self.seconds_limit)
        return min(1.0, max(shares))

    @property
    def round(self) -> int:
        """The number of the open round; of the last one when the run is over."""
        proposed = max((item.round for item in self.ideas.values()), default=0)
        following = self.rounds_closed if self.finished else self.rounds_closed + 1
        return max(proposed, min(following, self.rounds_limit or following))

    @property
    def in_round(self) -> list[IdeaProgress]:
        """The ideas of the open round, in the order of their numbers."""
        if self.round in self.rounds:
            return []
        return self.ideas_of(self.round)

    def ideas_of(self, round: int) -> list[IdeaProgress]:
        """The ideas of a round, in the order of their numbers."""
        return sorted(
            (item for item in self.ideas.values() if item.round == round), key=lambda item: item.number
        )

    def idea_of(self, variant: Variant) -> Idea | None:
        """The idea that a variant was written for, where it is known."""
        item = self.ideas.get(variant.idea)
        return item.idea if item else None

    @property
    def summaries(self) -> list[RoundSummary]:
        """Of the closed rounds and, where the run stopped in the middle of one, of that one."""
        closed = [self.rounds[number] for number in sorted(self.rounds)]
        return [*closed, self._summary(self.round)] if self.in_round else closed

    def apply(self, event: Event) -> None:
        """Takes in the next event."""
        self._last_at_s = max(self._last_at_s, event.at_s)
        self._last_clock_s = self._clock()
        match event:
            case RunStarted():
                self.started, self.finished = event, None
                if not self.rounds:
                    self._round_began_s = event.at_s
            case IdeaProposed(idea=idea, number=number):
                item = self._item(idea.id, idea.round)
                item.idea, item.number = idea, number
            case VariantWritten(variant=variant, number=number):
                item = self._item(variant.idea, variant.round)
                item.variants.setdefault(variant.id, VariantProgress(variant=variant, number=number))
            case VariantStage(variant_id=variant_id, stage=stage):
                self._stage(variant_id, stage)
            case VariantEvaluated(variant=variant, reused=reused):
                self._verdict(variant, reused)
            case RoundClosed():
                self._close(event)
            case BestConfirmed(variant=variant, evaluation=evaluation):
                self.confirmed[variant.kernel.id] = evaluation
                self.device_s += evaluation.device_s
            case RunFinished(best=best):
                self.finished = event
                self.best = best or self.best

    def _item(self, idea_id: str, round: int) -> IdeaProgress:
        fresh = IdeaProgress(id=idea_id, round=round, number=len(self.ideas_of(round)) + 1)
        return self.ideas.setdefault(idea_id, fresh)

    def _stage(self, variant_id: str, stage: str) -> None:
        for item in self.ideas.values():
            cell = item.variants.get(variant_id)
            if cell is not None and cell.variant.evaluation is None:
                cell.stage = stage

    @property
    def first(self) -> Variant | None:
        """Where the run began: the best variant of its first idea (the playbook's is the naive kernel)."""
        began = min((item for item in self.ideas.values()), key=lambda i: (i.round, i.number), default=None)
        return began.best if began else None

    def _verdict(self, variant: Variant, reused: bool) -> None:
        variants, verdict = self._item(variant.idea, variant.round).variants, variant.evaluation
        before = variants.get(variant.id)
        if verdict is None or (before is not None and before.variant.evaluation is not None):
            return
        number = before.number if before else len(variants) + 1
        variants[variant.id] = VariantProgress(
            variant=variant, number=number, stage="evaluated", reused=reused
        )
        known = [] if self.best is None else [self.best]
        self.best = next(iter(fastest([*known, variant], 1)), None)
        self.reused += reused
        if not reused:
            self.evaluations += 1
            self.statuses[verdict.status] += 1
            self.device_s += verdict.device_s

    def _close(self, event: RoundClosed) -> None:
        if event.round in self.rounds:
            return
        # The engine's figures also hold for a run of which the beginning was not watched.
        self.best = event.best or self.best
        self.evaluations = max(self.evaluations, event.evaluations)
        self.rounds[event.round] = self._summary(event.round)
        self._round_began_s = event.at_s

    def _summary(self, round: int) -> RoundSummary:
        ideas = self.ideas_of(round)
        cells = [cell for item in ideas for cell in item.variants.values()]
        own = [cell.variant.evaluation for cell in cells if cell.variant.evaluation and not cell.reused]
        return RoundSummary(
            round=round,
            ideas=len(ideas),
            evaluations=len(own),
            statuses=sum((item.statuses for item in ideas), Counter()),
            best=self.best,
            improved=self.best is not None and self.best.round == round,
            evaluations_so_far=self.evaluations,
            wall_s=max(0.0, self._last_at_s - self._round_began_s),
            elapsed_s=self._last_at_s,
            device_s=sum(verdict.device_s for verdict in own),
        )
