"""How far one search of a campaign has come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

NOTHING = 0.1
"""The speedup at which a search without a correct kernel is taken to stand."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A part of a search that was done in one go: what it used, and what the best kernel was worth at its
    end. `speedup` is that over eager, 0 where there was no correct kernel yet; `low` the lower end of its
    interval."""

    evaluations: int
    seconds: float = 0.0
    device_s: float = 0.0
    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0
    speedup: float = 0.0
    low: float = 0.0
    failures: int = 0
    """Consecutive evaluations at the end that were not correct."""


def key_of(problem: str, arm: str) -> str:
    """Names a search in its campaign."""
    return f"{problem} {arm}"


@dataclass(frozen=True, kw_only=True)
class SearchProgress:
    """One search: a problem and an arm, its slices so far, and why it is not gone on with ("" where it is).

    `ceiling` is the speedup that the problem's roofline allows, None where that is not known. `unfit`
    says why there is no search at all: the reference cannot judge, or the proposer has nothing for the
    problem. `final` is the winner's speedup in the final measurement, `final_compile` that over
    `torch.compile`; None before. `compiled`: whether any of its kernels did. Of a problem with cases
    `final_bound` counts those that take what any call takes, and `final_beyond` is the speedup over the
    others, None where there are none.
    """

    problem: str
    arm: str
    weight: float = 1.0
    slices: Sequence[Slice] = ()
    ceiling: float | None = None
    stopped: str = ""
    unfit: str = ""
    final: float | None = None
    final_compile: float | None = None
    compiled: bool = False
    final_bound: int | None = None
    final_beyond: float | None = None

    @property
    def key(self) -> str:
        """Names the search in its campaign."""
        return key_of(self.problem, self.arm)

    @property
    def evaluations(self) -> int:
        """Used so far."""
        return sum(each.evaluations for each in self.slices)

    @property
    def speedup(self) -> float:
        """Of the best kernel so far, 0 for none."""
        return self.slices[-1].speedup if self.slices else 0.0

    @property
    def gains(self) -> list[float]:
        """By how much each slice has raised the logarithm of the speedup."""
        levels = [math.log(max(NOTHING, each.speedup)) for each in self.slices]
        return [max(0.0, b - a) for a, b in zip([math.log(NOTHING), *levels], levels, strict=False)]

    @property
    def headroom(self) -> float:
        """How much the logarithm of the speedup can still rise; infinite where that is not known."""
        if self.ceiling is None:
            return math.inf
        return max(0.0, math.log(self.ceiling) - math.log(max(NOTHING, self.speedup)))

    def total(self, unit: str) -> float:
        """What it has used: `evaluations`, `seconds`, `device_s`, `calls`, `tokens` or `dollars`."""
        return float(sum(getattr(each, unit) for each in self.slices))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, from which `from_json` restores an equal record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SearchProgress:
        """Raises TypeError when `data` is not what `to_json` writes."""
        return cls(**{**data, "slices": tuple(Slice(**each) for each in data["slices"])})


@dataclass(frozen=True, kw_only=True)
class StopRules:
    """When a search is not gone on with. `patience`: slices in a row that gain less than `gain` in the
    logarithm of the speedup; `roofline`: the share of the ceiling that is enough; `failures`: evaluations
    in a row that are not correct; `evaluations` and `seconds`: of one search."""

    patience: int = 4
    gain: float = 0.01
    roofline: float = 0.95
    failures: int = 40
    evaluations: int | None = None
    seconds: float | None = None

    def why(self, search: SearchProgress) -> str:
        """The rule by which a search stops, in words; "" where it may go on."""
        last = search.gains[-self.patience :]
        if search.ceiling is not None and search.speedup >= self.roofline * search.ceiling:
            return f"{search.speedup / search.ceiling:.0%} of the roofline"
        if search.slices and search.slices[-1].failures >= self.failures:
            return f"{search.slices[-1].failures} failures in a row"
        if len(last) == self.patience and max(last) < self.gain:
            return f"no gain in {self.patience} slices"
        if self.evaluations is not None and search.evaluations >= self.evaluations:
            return f"{search.evaluations} evaluations"
        if self.seconds is not None and search.total("seconds") >= self.seconds:
            return f"{search.total('seconds'):.0f} s"
        return ""
