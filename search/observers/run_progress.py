"""The state of a run, as the console, the plain log and W&B show it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

from evaluators.records.evaluation import Evaluation, Status
from search.observers.progress_items import IdeaProgress, ModelProgress, RoundSummary, VariantProgress
from search.records.events import (
    BestConfirmed,
    Event,
    IdeaImplemented,
    IdeaProposed,
    LeadersCompared,
    ModelCalled,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantJudgedInFull,
    VariantStage,
    VariantWritten,
)
from search.records.model_calls import Cause, ModelCall, Spending
from search.records.run_state import RunState
from search.records.tree import Idea, Variant, fastest

FAILURE_SHOWN_S = 10.0
"""Seconds for which a model's last failure is shown."""


class Progress:
    """The state of a run as its observers show it; `apply` takes the events in order.

    The limits are the budget's, None for no limit; without `rounds`, the run's first event gives that limit.
    `recorded`: the verdicts come from a recording, so their pace means nothing. `clock` returns seconds from
    any origin and advances the time between two events; `past` has the events of earlier processes of the
    run. The events' sum is in `state`. In addition, this handles a resumed run whose earlier events are
    unknown, and events seen twice. Each event takes constant time; only a comparison of the leaders goes
    through all variants.
    """

    def __init__(
        self,
        *,
        rounds: int | None = None,
        evaluations: int | None = None,
        seconds: float | None = None,
        calls: int | None = None,
        tokens: int | None = None,
        dollars: float | None = None,
        recorded: bool = False,
        clock: Callable[[], float] = time.monotonic,
        past: Iterable[Event] = (),
    ) -> None:
        self.evaluations_limit = evaluations
        self.seconds_limit = seconds
        self.model_limits = {"calls": calls, "tokens": tokens, "dollars": dollars}
        self.recorded = recorded
        self.state = RunState()
        self.started: RunStarted | None = None
        """The last start; a resumed run may have other limits."""
        self.confirmed: dict[str, Evaluation] = {}
        """Final measurements by kernel id, including infrastructure errors."""
        self.ideas: dict[str, IdeaProgress] = {}
        self.rounds: dict[int, RoundSummary] = {}
        """The closed rounds, by number."""
        self.best: Variant | None = None
        """The best variant by the run's ranking, with its last measurement."""
        self.reused = 0
        self.repairs = 0
        """The number of variants that repair others, evaluated or not."""
        self.models: dict[str, ModelProgress] = {}
        """The models that were called or had ideas, by name."""
        self.causes: Counter[Cause] = Counter()
        """The causes of failed calls."""
        self.clock = clock
        self._rounds_limit = rounds
        self._of_round: defaultdict[int, list[IdeaProgress]] = defaultdict(list)
        self._cells: dict[str, VariantProgress] = {}
        self._failure: tuple[float, ModelCall] | None = None
        self._unknown_evaluations = 0
        """Evaluations from before this observer watched."""
        self._last_clock_s = clock()
        self._round_began_s = 0.0
        for event in past:
            self.apply(event)

    @property
    def finished(self) -> RunFinished | None:
        """How the run ended; None while it is running."""
        return self.state.finished

    @property
    def statuses(self) -> Counter[Status]:
        """Counts of the statuses of known evaluations, not counting reused verdicts."""
        return self.state.statuses

    @property
    def evaluations(self) -> int:
        """Evaluations of the whole run, not counting reused verdicts."""
        return self.state.evaluations + self._unknown_evaluations

    @property
    def device_s(self) -> float:
        """Device seconds of the known measurements."""
        return self.state.device_s

    @property
    def rounds_limit(self) -> int | None:
        """The limit of rounds."""
        return self._rounds_limit or (self.started.rounds if self.started else None) or None

    @property
    def rounds_closed(self) -> int:
        """The number of the last closed round, 0 before the first."""
        return max(self.rounds, default=0)

    @property
    def elapsed_s(self) -> float:
        """Seconds of work on the run until now."""
        if self.finished or not self.started:
            return self.state.used_s
        return self.state.used_s + max(0.0, self.clock() - self._last_clock_s)

    @property
    def seconds_left(self) -> float | None:
        """The seconds left in the budget; None without a time limit."""
        return None if self.seconds_limit is None else max(0.0, self.seconds_limit - self.elapsed_s)

    @property
    def remaining_s(self) -> float | None:
        """The estimated seconds until a limit ends the run; None before there is an estimate."""
        elapsed_s, closed = self.elapsed_s, self.rounds_closed
        estimates = [] if self.seconds_left is None else [self.seconds_left]
        if closed and self.rounds_limit is not None:
            until = self.rounds[closed].elapsed_s
            estimates.append(max(0.0, until * self.rounds_limit / closed - elapsed_s))
        estimates += [elapsed_s * max(0.0, limit - used) / used for used, limit in self._used() if used]
        return min(estimates, default=None)

    @property
    def fraction(self) -> float:
        """The part of the run that is done, between 0 and 1, by the nearest limit."""
        shares = [0.0]
        if self.rounds_limit:
            shares.append(self.rounds_closed / self.rounds_limit)
        shares += [used / limit for used, limit in self._used()]
        if self.seconds_limit:
            shares.append(self.elapsed_s / self.seconds_limit)
        return min(1.0, max(shares))

    def _used(self) -> list[tuple[float, float]]:
        """What is used of each limit on a count, other than rounds, and the limit."""
        spent, limits = self.spent, self.model_limits
        pairs = (
            (self.evaluations, self.evaluations_limit),
            (spent.calls, limits["calls"]),
            (spent.tokens, limits["tokens"]),
            (float(spent.dollars), limits["dollars"]),
        )
        return [(used, limit) for used, limit in pairs if limit]

    @property
    def round(self) -> int:
        """The number of the open round, or of the last round when the run is over."""
        proposed = max(self._of_round, default=0)
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
        return sorted(self._of_round.get(round, ()), key=lambda item: item.number)

    def idea_of(self, variant: Variant) -> Idea | None:
        """The idea that a variant was written for, if known."""
        item = self.ideas.get(variant.idea)
        return item.idea if item else None

    @property
    def summaries(self) -> list[RoundSummary]:
        """Summaries of the closed rounds and, if the run stopped in the middle of one, of that one."""
        closed = [self.rounds[number] for number in sorted(self.rounds)]
        return [*closed, self._summary(self.round)] if self.in_round else closed

    @property
    def several_models(self) -> bool:
        """Whether more than one model takes part."""
        return len(self.models) > 1

    @property
    def spent(self) -> Spending:
        """The cost of all model calls."""
        return self.state.spent

    @property
    def failure(self) -> ModelCall | None:
        """The last failed call, for a short while and only while the run lasts."""
        if self._failure is None or self.finished:
            return None
        at_s, call = self._failure
        return call if self.elapsed_s < at_s + FAILURE_SHOWN_S else None

    def apply(self, event: Event) -> None:
        """Takes the next event."""
        self._last_clock_s = self.clock()
        if self.state.knows(event):
            return
        self._fill_in(event)
        self.state.apply(event)
        match event:
            case RunStarted():
                self.started = event
                if not self.rounds:
                    self._round_began_s = event.at_s
            case ModelCalled(call=call):
                self._call(event.at_s, call)
            case IdeaProposed(idea=idea, number=number):
                self._idea(idea, number)
            case VariantWritten(variant=variant, number=number):
                self._cell(variant, number)
            case IdeaImplemented(idea_id=idea_id) if idea_id in self.ideas:
                self.ideas[idea_id].implemented = True
            case VariantStage(variant_id=variant_id, stage=stage):
                cell = self._cells.get(variant_id)
                if cell is not None and cell.variant.evaluation is None:
                    cell.stage = stage
            case VariantEvaluated(variant=variant, reused=reused):
                self._verdict(variant, reused)
            case VariantJudgedInFull(variant=variant):
                self._judged(variant)
            case RoundClosed():
                self._close(event)
            case LeadersCompared(variants=variants):
                known = [cell.variant for cell in self._cells.values()]
                self.best = next(iter(fastest([*variants, *known], 1, self.state.tree.ranking)), self.best)
            case BestConfirmed(variant=variant, evaluation=evaluation):
                self.confirmed[variant.kernel.id] = evaluation
            case RunFinished(best=best):
                self.best = best or self.best

    def _fill_in(self, event: Event) -> None:
        """Adds what must have happened before this event but was not seen."""
        tree = self.state.tree
        if isinstance(event, VariantWritten | VariantEvaluated) and event.variant.idea not in tree.ideas:
            tree.expect_idea(event.variant.idea)
        if isinstance(event, VariantEvaluated) and event.variant.id not in tree.variants:
            written = replace(event.variant, evaluation=None)
            number = len(tree.variants_of(written.idea)) + 1
            self.apply(VariantWritten(at_s=event.at_s, variant=written, number=number))

    def _item(self, idea_id: str, round: int) -> IdeaProgress:
        if idea_id not in self.ideas:
            there = self._of_round[round]
            self.ideas[idea_id] = IdeaProgress(id=idea_id, round=round, number=len(there) + 1)
            there.append(self.ideas[idea_id])
        return self.ideas[idea_id]

    def _cell(self, variant: Variant, number: int) -> None:
        cell = VariantProgress(variant=variant, number=number)
        self._cells[variant.id] = self._item(variant.idea, variant.round).variants[variant.id] = cell
        self.repairs += bool(variant.repairs)

    def _idea(self, idea: Idea, number: int) -> None:
        item = self._item(idea.id, idea.round)
        if idea.model:
            self._model(idea.model).ideas += 1
        item.idea, item.number = idea, number

    def _model(self, name: str) -> ModelProgress:
        spending = self.state.spending.setdefault(name, Spending())
        return self.models.setdefault(name, ModelProgress(spending=spending))

    def _call(self, at_s: float, call: ModelCall) -> None:
        self._model(call.model)
        if call.cause is not None:
            self.causes[call.cause] += 1
            self._failure = at_s, call

    @property
    def first(self) -> Variant | None:
        """The run's starting point: the best variant of its first idea (the playbook's is the naive
        kernel)."""
        began = min((item for item in self.ideas.values()), key=lambda i: (i.round, i.number), default=None)
        return began.best if began else None

    def _verdict(self, variant: Variant, reused: bool) -> None:
        cell = self._cells[variant.id]
        cell.stage, cell.reused = "evaluated", reused
        self.reused += reused
        self._judged(variant)

    def _judged(self, variant: Variant) -> None:
        self._cells[variant.id].variant = variant
        self.best = self._faster(self.best, variant)
        idea = self.idea_of(variant)
        if idea is not None and idea.model:
            model = self._model(idea.model)
            model.best = self._faster(model.best, variant)

    def _faster(self, best: Variant | None, other: Variant) -> Variant | None:
        """The faster of the two; None if neither is correct."""
        known = [other] if best is None else [best, other]
        return next(iter(fastest(known, 1, self.state.tree.ranking)), None)

    def _close(self, event: RoundClosed) -> None:
        # The engine's figures are right even if this observer missed the beginning of the run.
        self.best = event.best or self.best
        unknown = event.evaluations - self.state.evaluations
        self._unknown_evaluations = max(self._unknown_evaluations, unknown)
        self.rounds[event.round] = self._summary(event.round)
        self._round_began_s = event.at_s

    def _summary(self, round: int) -> RoundSummary:
        cells = [cell for cell in self._cells.values() if cell.variant.round == round]
        own = [cell.variant.evaluation for cell in cells if cell.variant.evaluation and not cell.reused]
        judged = (cell.variant for cell in cells if not cell.reused and not cell.variant.is_outpaced)
        known = self.state.quick  # the quick stages of variants that were judged in full later
        quick = [known[each.written.id] for each in judged if each.written.id in known]
        return RoundSummary(
            round=round,
            ideas=len(self.ideas_of(round)),
            evaluations=len(own),
            statuses=Counter(each.status for cell in cells if (each := cell.variant.evaluation) is not None),
            best=self.best,
            improved=self.best is not None and self.best.round == round,
            evaluations_so_far=self.evaluations,
            wall_s=max(0.0, self.state.used_s - self._round_began_s),
            elapsed_s=self.state.used_s,
            device_s=sum(verdict.device_s for verdict in own) + sum(each.device_s for each in quick),
            models={
                name: replace(model, spending=replace(model.spending)) for name, model in self.models.items()
            },
        )
