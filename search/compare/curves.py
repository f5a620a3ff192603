"""The best speedup that a search had found, over the budget that it had spent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evaluators.records.evaluation import Status
from search.compare.language_gains import LanguageGain
from search.records.events import (
    BestConfirmed,
    Event,
    LeadersCompared,
    ModelCalled,
    RunFinished,
    VariantEvaluated,
    VariantJudgedInFull,
)
from search.records.journal import JOURNAL, replay
from search.run.winner_checks import HeldOutResult

UNITS = ("evaluations", "device_s", "tokens", "dollars")


@dataclass(frozen=True, kw_only=True)
class Point:
    """The best kernel so far, by the lower end of its interval, after a part of the budget. `speedup` is its
    speedup over eager PyTorch, below 1 if it is slower; 0 until there is a correct kernel."""

    evaluations: int = 0
    device_s: float = 0.0
    tokens: int = 0
    dollars: float = 0.0
    speedup: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Searched:
    """The result of one search of a comparison.

    Attributes:
        problem: the problem's name.
        arm: the name of the setting that is compared.
        seed: the seed of the search.
        reason: why the search ended, e.g. `evaluations`.
        final: the winner's speedup over eager PyTorch in the final measurement; 1 if no kernel is faster than
            eager, because a user can always keep eager.
        points: the best so far, at the start and after each evaluation.
        statuses: the number of evaluations with each status.
        languages: what each language of kernels gained.
        held_out: the winner's verdicts in configurations that no search saw.
    """

    problem: str
    arm: str
    seed: int
    reason: str
    final: float
    points: tuple[Point, ...]
    statuses: Mapping[str, int] = field(default_factory=dict)
    languages: Mapping[str, LanguageGain] = field(default_factory=dict)
    held_out: tuple[HeldOutResult, ...] = ()

    @property
    def weight(self) -> float:
        """All problems of a comparison weigh the same."""
        return 1.0

    @property
    def failed(self) -> bool:
        """Whether an error ended the search; a resumed comparison continues it."""
        return self.reason.startswith("error")

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str | bytes) -> Searched:
        """Raises ValueError, TypeError or KeyError for an invalid line."""
        fields: dict[str, Any] = json.loads(line)
        points = tuple(Point(**each) for each in fields["points"])
        held_out = tuple(HeldOutResult(**each) for each in fields.get("held_out", ()))
        gains = {name: LanguageGain(**each) for name, each in fields.get("languages", {}).items()}
        return cls(**{**fields, "points": points, "held_out": held_out, "languages": gains})


def read_searches(path: Path) -> list[Searched]:
    """The searches that have ended; the last line of each counts. Raises OSError."""
    found: dict[tuple[str, str, int], Searched] = {}
    for line in path.read_bytes().splitlines():
        try:
            each = Searched.from_json(line)
        except (ValueError, TypeError, KeyError, AttributeError):  # what a killed process or a full disk left
            continue
        found[each.problem, each.arm, each.seed] = each
    return list(found.values())


def searched(folder: Path, *, problem: str, arm: str, seed: int) -> Searched:
    """The result of the search in a run folder. Raises OSError and JournalError."""
    return of_events(replay(folder / JOURNAL), problem=problem, arm=arm, seed=seed)


def of_events(events: Iterable[Event], *, problem: str, arm: str, seed: int) -> Searched:
    """The result of the search with these events."""
    spent: dict[str, Any] = {"evaluations": 0, "device_s": 0.0, "tokens": 0, "dollars": 0.0}
    low, speedup, final, reason = 0.0, 0.0, None, ""
    points = [Point()]
    statuses: Counter[str] = Counter()
    languages: dict[str, LanguageGain] = {}
    for event in events:
        match event:
            case ModelCalled(call=call):
                spent["tokens"] += call.usage.tokens
                spent["dollars"] += float(call.dollars)
            case LeadersCompared(evaluations=found):
                spent["device_s"] += sum(each.device_s for each in found)
            case BestConfirmed(evaluation=evaluation):
                spent["device_s"] += evaluation.device_s
            case VariantEvaluated() | VariantJudgedInFull():
                judged = event.variant.evaluation
                assert judged is not None
                if not event.reused:
                    if isinstance(event, VariantEvaluated):
                        spent["evaluations"] += 1
                    else:
                        statuses[Status.OUTPACED.value] -= 1
                    statuses[judged.status.value] += 1
                    spent["device_s"] += judged.device_s
                language = event.variant.kernel.language
                languages[language] = languages.get(language, LanguageGain()).after(event)
                timing = judged.timing
                if judged.status is Status.CORRECT and timing is not None and timing.speedup_low > low:
                    low, speedup = timing.speedup_low, timing.speedup
                points.append(Point(**spent, speedup=speedup))
            case RunFinished(confirmed=confirmed):
                reason = event.reason
                final = confirmed.timing.speedup if confirmed and confirmed.timing else None
    return Searched(
        problem=problem,
        arm=arm,
        seed=seed,
        reason=reason,
        final=max(1.0, speedup if final is None else final),
        points=tuple(points),
        statuses=dict(+statuses),
        languages=languages,
    )


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The best so far of several searches: its median and quartiles when each has spent the `amounts`. Begins
    once half of the searches have a correct kernel; the lower quartile is nan until three quarters have."""

    amounts: tuple[float, ...]
    low: tuple[float, ...]
    median: tuple[float, ...]
    high: tuple[float, ...]


def curve(searches: Sequence[Searched], unit: str, amounts: Sequence[float]) -> Curve:
    """The curve of at least one search. A search that has ended keeps its last speedup."""
    import numpy

    found = numpy.array([best_at(each.points, unit, amounts) for each in searches])
    quartiles = numpy.quantile(found, (0.25, 0.5, 0.75), axis=0)
    below = numpy.quantile(found, (0.25, 0.5, 0.75), axis=0, method="lower")
    low, median, high = numpy.where(below > 0, quartiles, numpy.nan)  # 0: a search without a correct kernel
    drawn = ~numpy.isnan(median)
    return Curve(
        amounts=tuple(numpy.asarray(amounts, dtype=float)[drawn].tolist()),
        low=tuple(low[drawn].tolist()),
        median=tuple(median[drawn].tolist()),
        high=tuple(high[drawn].tolist()),
    )


def best_at(points: Iterable[Point], unit: str, amounts: Iterable[float]) -> list[float]:
    """The best speedup so far, when each of the amounts was spent; 0 while there is no correct kernel."""
    ordered, found, best = list(points), [], 0.0
    place = 0
    for amount in amounts:
        while place < len(ordered) and getattr(ordered[place], unit) <= amount:
            best = ordered[place].speedup
            place += 1
        found.append(best)
    return found


def spent_at_most(searches: Iterable[Searched], unit: str) -> Mapping[str, float]:
    """The most that a search has spent of the unit, by arm."""
    most: dict[str, float] = {}
    for each in searches:
        most[each.arm] = max(most.get(each.arm, 0.0), getattr(each.points[-1], unit))
    return most
