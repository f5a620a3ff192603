"""Which of many workloads of a problem are timed, only checked, or kept for held-out cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

TIMED, CHECKED, RESERVED = 4, 8, 4
"""How many workloads of a problem are timed, are only checked, and are kept for held-out cases."""

Workload = TypeVar("Workload")


def chosen(
    workloads: Sequence[Workload],
    *,
    timed_workloads: int,
    checked_workloads: int,
    size: Callable[[Workload], float],
    weight: Callable[[Workload], float | None],
) -> tuple[list[Workload], list[Workload], list[Workload]]:
    """The workloads that are timed, from the largest to the smallest; those that are only checked; and those
    that are kept for held-out cases. The timed ones are those with the largest weights, if workloads have
    weights, and are spread over the sizes otherwise."""
    ordered = sorted(workloads, key=size)
    weighted = sorted(ordered, key=lambda each: weight(each) or 0.0, reverse=True)[:timed_workloads]
    heaviest = [each for each in ordered if each in weighted and weight(each)]
    timed = heaviest or _spread(ordered, timed_workloads)
    rest = [each for each in ordered if each not in timed]
    checked = _spread(rest, checked_workloads)
    reserved = _spread([each for each in rest if each not in checked], RESERVED)
    return timed[::-1], checked, reserved


def _spread(values: Sequence[Workload], count: int) -> list[Workload]:
    """At most `count` of the values at equal distances, with the first and the last."""
    if len(values) <= count:
        return list(values)
    if count < 2:
        return list(values[len(values) - count :])
    return [values[round(number * (len(values) - 1) / (count - 1))] for number in range(count)]
