"""Readings of the clock in turn, so that whatever else the machine does meets all that is compared."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from evaluators.records.timing import interval

BLOCK_MS = {"cpu": 30.0, "cuda": 20.0}
"""Of the calls between two readings of the clock, at least."""
WARM = 3
Key = TypeVar("Key", bound=Hashable)


def warm(run: Callable[[], Any]) -> None:
    """Calls it until what is made in the first calls is there. Raises whatever it raises."""
    for _ in range(WARM):
        run()


@dataclass(frozen=True, kw_only=True)
class WayPair:
    """Two ways of the same work at one shape, which has this weight."""

    weight: float
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def speedup_in_turn(cases: Sequence[WayPair], device: str, turns: int) -> tuple[float, float, float]:
    """How many times as fast ours is as theirs, the mean of all cases by their weights, with its 95 %
    interval. Raises whatever they raise."""
    ways = [[each.ours for each in cases], [each.theirs for each in cases]]
    runs = {(way, case): run for way, own in enumerate(ways) for case, run in enumerate(own)}
    for run in runs.values():
        warm(run)
    ms = in_turn(runs, turns, device)
    ours, theirs = (
        [sum(each.weight * ms[way, case][turn] for case, each in enumerate(cases)) for turn in range(turns)]
        for way in range(2)
    )
    return interval([slow / fast for fast, slow in zip(ours, theirs, strict=True)])


def in_turn(
    runs: Mapping[Key, Callable[[], Any]],
    turns: int,
    device: str,
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> dict[Key, list[float]]:
    """Times of one call of each in ms, one a turn; each turn has an order of its own."""
    calls = {key: max(1, math.ceil(BLOCK_MS[device] / _block(run, 1, device))) for key, run in runs.items()}
    ms: dict[Key, list[float]] = {key: [] for key in runs}
    order = list(runs)
    shuffled = random.Random(seed)
    for turn in range(turns):
        shuffled.shuffle(order)
        for key in order:
            ms[key].append(_block(runs[key], calls[key], device))
        if turn in (0, turns // 2):
            say(f"turn {turn + 1} of {turns}")
    return ms


def _block(run: Callable[[], Any], calls: int, device: str) -> float:
    """Of one call, in ms, of so many back to back."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / calls
