"""A candidate's answers on inputs that nobody has seen before: whether they are right."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evaluators import weights
from evaluators.arena import Spot
from evaluators.census import Looks
from evaluators.correctness import FAMILIES, Comparison
from evaluators.court import Court
from evaluators.evaluation import Status
from evaluators.side import Refused, Side
from evaluators.timing import Block, Plan

if TYPE_CHECKING:
    import torch

CHECKED_CALLS = 3
SLOW_MS = 50.0
"""Of a call: it need not be made once more for caches to be as before."""

Outputs = list["torch.Tensor"]


class Examination:
    """Asks one candidate, and remembers how right it was. What finds it wrong raises Refused."""

    def __init__(self, court: Court, side: Side) -> None:
        self._court, self._side = court, side
        self._families: dict[str, bool] = {}
        self._comparisons: list[Comparison] = []
        self._changed = False
        self._turns = itertools.cycle(weights.turns(len(court.weight_forms)))
        self._pending: list[Callable[[], None]] = []
        self.least_ms = math.inf
        """On a CPU: the shortest call that was timed."""
        self.timed: Block | None = None
        """The last block that was timed."""

    def begin(self, plan: Plan) -> float:
        """The problem's own inputs, other weights, then the families. Returns about how long a call takes in
        ms, of two the shorter."""
        capacity = self._court.capacity
        first = self._check_block(1)
        self.change_weights(everywhere=True)
        again = self._check_block(plan.calls(first, min(CHECKED_CALLS, capacity)))
        names = list(FAMILIES)
        for start in range(0, len(names), capacity):
            chosen = names[start : start + capacity]
            for family, seed, outputs in zip(chosen, *self._answered(chosen)[1:], strict=True):
                self._try_family(family, seed, outputs)
        return min(first, again)

    def change_weights(self, *, everywhere: bool = False) -> None:
        """A check with other weights, all or those whose turn it is: a kernel that leaves some out, or has
        kept something made of them, is wrong. Then, where calls are short, one to get used to the old ones
        again, which the next check is about."""
        if not self._court.weight_forms:
            return
        seed, turn = secrets.randbits(62), None if everywhere else next(self._turns)
        alike = self._side.change_weights(seed, turn, self._court.weight_forms)
        self._court.change_weights(seed, turn, alike=alike)
        self._changed = True
        call_ms = self._check_block(1)
        self._changed = False
        self._court.restore_weights()
        self._side.restore_weights()
        if call_ms < SLOW_MS:
            self._court.stage_fresh([""], self._side)
            self._side.block(1)

    def timed_block(self, calls: int) -> float:
        """ms a call in a block on fresh inputs, whose answers are checked by `settle`."""
        overhead_ms = self._court.overhead(calls).total_ms
        block, check = self.spot_check(calls)
        self._pending.append(check)
        self.timed = block
        self.least_ms = min(self.least_ms, block.least_ms - overhead_ms / calls)
        return block.call_ms(overhead_ms)

    def settle(self) -> None:
        """Does the checks that were put off, so that both sides' blocks come after the same work."""
        while self._pending:
            self._pending.pop()()

    def spot_check(self, calls: int, looks: Looks | None = None) -> tuple[Block, Callable[[], None]]:
        """A block on fresh inputs, and what checks one of its calls; the others are glanced at."""
        seeds = self._court.stage_fresh([""] * calls, self._side)
        block = self._side.block(calls, looks=looks)
        seen = self.seen(calls)
        return block, lambda: self.require(seeds[seen.call], seen.outputs, spot=True)

    def seen(self, calls: int) -> Spot:
        """A look at the last block, all of whose calls must have been answered."""
        spot = self._side.spot(calls)
        if spot.missing is not None:
            raise Refused(
                Status.INCORRECT,
                f"when the runner said it was done, call {spot.missing} had not been answered",
            )
        return spot

    def require(
        self, seed: int, outputs: Outputs, *, after: Outputs | None = None, spot: bool = False
    ) -> None:
        """The right outputs for the inputs of this seed (see `Court.check`)."""
        comparison = self._court.check(outputs, seed, after=after, spot=spot)
        if comparison is None:
            return
        self._comparisons.append(comparison)
        if comparison.problem:
            where = " after its weights were changed in place" if self._changed else ""
            where += " that depend on the answer before" if after is not None else ""
            raise Refused(Status.INCORRECT, f"wrong on fresh inputs{where}: {comparison.problem}")

    def is_right(self, outputs: Outputs, seed: int) -> bool:
        """Whether they are, of which nothing follows yet."""
        comparison = self._court.check(outputs, seed, spot=True)
        return comparison is None or not comparison.problem

    def correctness(self) -> dict[str, Any] | None:
        """What an evaluation says of it; None where no answer was comparable."""
        finite = [c for c in self._comparisons if c.error != float("inf")]
        if not finite:
            return None
        return {
            "checked_calls": len(self._comparisons),
            "normwise_error": max(c.error for c in finite),
            "eager_error": max(c.eager_error for c in finite),
            "families": self._families,
        }

    def remarks(self) -> list[str]:
        """What a correct kernel's log says of it."""
        failed = [name for name, passed in self._families.items() if not passed]
        return [f"outside the tolerance on inputs of the families: {', '.join(failed)}"] if failed else []

    def _check_block(self, calls: int) -> float:
        block, seeds, answers = self._answered([""] * calls)
        for seed, outputs in zip(seeds, answers, strict=True):
            self.require(seed, outputs)
        return block.call_ms(self._court.overhead(calls).total_ms)

    def _answered(self, families: list[str]) -> tuple[Block, list[int], list[Outputs]]:
        """A block with one fresh call a family: its secret seeds, and private copies of what came out."""
        seeds = self._court.stage_fresh(families, self._side)
        block = self._side.block(len(families))
        return block, seeds, [self._side.arena.snapshot(call) for call in range(len(families))]

    def _try_family(self, family: str, seed: int, outputs: Outputs) -> None:
        comparison = self._court.check(outputs, seed, family, spot=True)
        if comparison is None:
            return
        self._families[family] = not comparison.problem
        if comparison.problem and self._court.problem["tolerance"] == "strict":
            raise Refused(Status.INCORRECT, f"wrong on inputs of the family '{family}': {comparison.problem}")
