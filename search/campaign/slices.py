"""The progress of one search of a campaign, and the rules that stop it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from evaluators.records.evaluation import share_text
from search.run.winner_checks import HeldOutResult

NOTHING = 0.1
"""The speedup that a search without a correct kernel counts as."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A part of a search: what it used, and the best kernel at its end. `speedup` is over eager PyTorch, 0
    without a correct kernel; `low` is the lower end of its interval."""

    evaluations: int
    seconds: float = 0.0
    device_s: float = 0.0
    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0
    speedup: float = 0.0
    low: float = 0.0
    failures: int = 0
    """Incorrect kernels since the last correct one."""


def key_of(problem: str, arm: str) -> str:
    """The key of a search in its campaign."""
    return f"{problem} {arm}"


@dataclass(frozen=True, kw_only=True)
class SearchProgress:
    """The progress of one search.

    Attributes:
        problem: the problem's name.
        arm: the name of the setting that is compared.
        weight: the problem's weight in its suite.
        slices: the slices so far.
        ceiling: the speedup that the problem's roofline allows; None: unknown.
        stopped: why the search has stopped; "": it may continue.
        unfit: why the problem cannot be searched, e.g. because the proposer has no ideas for it.
        final: the winner's speedup over eager PyTorch in the final measurement; None before.
        final_low: the lower end of its 95 % interval; None in campaigns from before it was kept.
        final_compile: the same over `torch.compile`.
        final_share: the share of the roofline that the winner reaches in it.
        final_sol: its SOL score (see `Evaluation.sol_score`).
        final_rival: how many times as fast as the suite's rival the winner is, from one session; None
            without a rival.
        final_rival_low: the lower end of its 95 % interval.
        final_rival_high: the upper end of its 95 % interval.
        compiled: whether any kernel compiled.
        final_bound: of a problem with cases, the number that are bound by the overhead of a call.
        final_beyond: the winner's speedup over the other cases; None without such cases.
        held_out: the winner's verdicts in configurations that no search saw.
    """

    problem: str
    arm: str
    weight: float = 1.0
    slices: Sequence[Slice] = ()
    ceiling: float | None = None
    stopped: str = ""
    unfit: str = ""
    final: float | None = None
    final_low: float | None = None
    final_compile: float | None = None
    compiled: bool = False
    final_bound: int | None = None
    final_beyond: float | None = None
    final_share: float | None = None
    final_sol: float | None = None
    final_rival: float | None = None
    final_rival_low: float | None = None
    final_rival_high: float | None = None
    held_out: Sequence[HeldOutResult] = ()

    @property
    def key(self) -> str:
        """The search's key in its campaign."""
        return key_of(self.problem, self.arm)

    @property
    def failed(self) -> bool:
        """Whether an error ended the search."""
        return self.stopped.startswith("error")

    @property
    def evaluations(self) -> int:
        """The evaluations so far."""
        return sum(each.evaluations for each in self.slices)

    @property
    def speedup(self) -> float:
        """The speedup of the best kernel so far; 0 without a correct one."""
        return self.slices[-1].speedup if self.slices else 0.0

    @property
    def gains(self) -> list[float]:
        """The gain of each slice, in the logarithm of the speedup."""
        levels = [math.log(max(NOTHING, each.speedup)) for each in self.slices]
        return [max(0.0, b - a) for a, b in zip([math.log(NOTHING), *levels], levels, strict=False)]

    @property
    def share(self) -> float | None:
        """The share of the roofline that the best kernel reaches. 0: none is correct. None: unknown."""
        if not self.speedup:
            return 0.0
        if self.final is not None:
            return self.final_share
        return self.speedup / self.ceiling if self.ceiling else None

    def without_final(self) -> SearchProgress:
        """The search without the final measurement of an earlier winner."""
        nothing: dict[str, Any] = dict.fromkeys(FINAL)
        return replace(self, held_out=(), **nothing)

    @property
    def headroom(self) -> float:
        """The largest possible further gain, in the logarithm of the speedup; infinite if unknown."""
        if self.ceiling is None:
            return math.inf
        return max(0.0, math.log(self.ceiling) - math.log(max(NOTHING, self.speedup)))

    def total(self, unit: str) -> float:
        """The amount used of `evaluations`, `seconds`, `device_s`, `calls`, `tokens` or `dollars`."""
        return float(sum(getattr(each, unit) for each in self.slices))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, from which `from_json` restores an equal record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SearchProgress:
        """Restores a record that `to_json` wrote. Raises TypeError for other data."""
        slices = tuple(Slice(**each) for each in data["slices"])
        held_out = tuple(HeldOutResult(**each) for each in data.get("held_out", ()))
        return cls(**{**data, "slices": slices, "held_out": held_out})


FINAL = tuple(each.name for each in fields(SearchProgress) if each.name.startswith("final"))
"""The figures of a final measurement."""


@dataclass(frozen=True, kw_only=True)
class StopRules:
    """When a search stops: after `patience` consecutive slices that each gain less than `gain` in the
    logarithm of the speedup, at the share `roofline` of its ceiling, after `failures` consecutive incorrect
    kernels, or after a number of `evaluations` or `seconds`."""

    patience: int = 4
    gain: float = 0.01
    roofline: float = 0.95
    failures: int = 40
    evaluations: int | None = None
    seconds: float | None = None

    def why(self, search: SearchProgress) -> str:
        """The rule that stops the search, in words; "" if it may continue."""
        last = search.gains[-self.patience :]
        if search.ceiling is not None and search.speedup >= self.roofline * search.ceiling:
            return f"{share_text(search.speedup / search.ceiling)} of the roofline"
        if search.slices and search.slices[-1].failures >= self.failures:
            return f"{search.slices[-1].failures} failures in a row"
        if len(last) == self.patience and max(last) < self.gain:
            return f"no gain in {self.patience} slices"
        if self.evaluations is not None and search.evaluations >= self.evaluations:
            return f"{search.evaluations} evaluations"
        if self.seconds is not None and search.total("seconds") >= self.seconds:
            return f"{search.total('seconds'):.0f} s"
        return ""
