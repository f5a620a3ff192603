"""Readings of the clock in turn, so that whatever else the machine does meets all that is compared."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

BLOCK_MS = {"cpu": 30.0, "cuda": 20.0}
"""Of the calls between two readings of the clock, at least."""
WARM = 3
Key = TypeVar("Key", bound=Hashable)


def warm(run: Callable[[], Any]) -> None:
    """Calls it until what is made in the first calls is there. Raises whatever it raises."""
    for _ in range(WARM):
        run()


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
