"""Times several functions in turn, so that noise on the machine affects all of them equally."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from evaluators.records.timing import interval

BLOCK_MS = {"cpu": 30.0, "cuda": 20.0}
"""Minimum length of the block of calls between two readings of the clock."""
WARM = 3
Key = TypeVar("Key", bound=Hashable)


def warm(run: Callable[[], Any]) -> None:
    """Warms `run` up: the first calls compile and allocate. Raises what `run` raises."""
    for _ in range(WARM):
        run()


@dataclass(frozen=True, kw_only=True)
class TimedPair:
    """Two implementations of the same work at one input shape, and the shape's weight."""

    weight: float
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def interleaved_speedup(cases: Sequence[TimedPair], device: str, turns: int) -> tuple[float, float, float]:
    """The speedup of `ours` over `theirs` with its 95 % interval, from the weighted mean time of all cases.
    Raises what the functions raise."""
    ways = [[each.ours for each in cases], [each.theirs for each in cases]]
    runs = {(way, case): run for way, own in enumerate(ways) for case, run in enumerate(own)}
    for run in runs.values():
        warm(run)
    ms = time_interleaved(runs, turns, device)
    ours, theirs = (
        [sum(each.weight * ms[way, case][turn] for case, each in enumerate(cases)) for turn in range(turns)]
        for way in range(2)
    )
    return interval([slow / fast for fast, slow in zip(ours, theirs, strict=True)])


def time_interleaved(
    runs: Mapping[Key, Callable[[], Any]],
    turns: int,
    device: str,
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> dict[Key, list[float]]:
    """Milliseconds per call of each function, one reading per turn. Each turn shuffles the order."""
    calls = {
        key: max(1, math.ceil(BLOCK_MS[device] / _ms_per_call(run, 1, device))) for key, run in runs.items()
    }
    ms: dict[Key, list[float]] = {key: [] for key in runs}
    order = list(runs)
    shuffled = random.Random(seed)
    for turn in range(turns):
        shuffled.shuffle(order)
        for key in order:
            ms[key].append(_ms_per_call(runs[key], calls[key], device))
        if turn in (0, turns // 2):
            say(f"turn {turn + 1} of {turns}")
    return ms


def _ms_per_call(run: Callable[[], Any], calls: int, device: str) -> float:
    """Milliseconds per call, over this number of calls back to back."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / calls
