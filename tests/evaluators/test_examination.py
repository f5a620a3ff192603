"""What an examination remembers of the calls that it has timed, without a runner."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from evaluators.arena import Spot
from evaluators.census import Looks
from evaluators.examination import Examination
from evaluators.timing import Block, Overhead


class Court:
    weight_forms = ()

    def overhead(self, calls: int) -> Overhead:
        return Overhead(total_ms=0.1 * calls, delivery_ms=0.0)

    def stage_fresh(self, families: list[str], side: Side) -> list[int]:
        return [0] * len(families)


@dataclass
class Side:
    """Its next block's fastest call takes `least_ms`, with what one costs besides."""

    least_ms: float

    def block(self, calls: int, *, looks: Looks | None) -> Block:
        return Block(calls=calls, wall_ms=calls * 0.5, walls_ms=(0.6, self.least_ms))

    def spot(self, calls: int) -> Spot:
        return Spot(call=0, outputs=[], missing=None)


def test_of_single_calls_the_fastest_is_remembered() -> None:
    side = Side(0.4)
    examination = Examination(Court(), side)  # type: ignore[arg-type]
    for side.least_ms in (0.4, 0.15, 0.4):  # a busy machine adds to most of them
        assert examination.timed_block(3) == pytest.approx(0.4)
    assert examination.least_ms == pytest.approx(0.05)
