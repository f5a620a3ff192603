"""Adds to a verdict what a session with other kernels says: the speedups over them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluators.records.evaluation import Evaluation, PairedSpeedup, Stage
from evaluators.records.timing import MIN_PAIRS, paired_speedup


def with_companions(verdict: Evaluation, own: Evaluation, others: Mapping[str, Evaluation]) -> Evaluation:
    """A correct kernel's verdict with its speedups over other kernels, by their ids. `own` and `others` are
    the evaluations of one session with all of them. One that failed there has no speedup, and the verdict
    stays what it was."""
    session_s = sum(each.device_s for each in (own, *others.values()))
    found = {id: paired(id, own, each) for id, each in others.items()}
    return replace(
        verdict,
        device_s=verdict.device_s + session_s,
        stages_s={**verdict.stages_s, Stage.COMPARING.value: session_s},
        paired=tuple(filter(None, found.values())),
    )


def paired(id: str, own: Evaluation, other: Evaluation) -> PairedSpeedup | None:
    """The speedup of one kernel of a session over another, whose id is given; None if it has none."""
    if own.timing is None or other.timing is None:
        return None
    samples_ms = own.timing.kernel_samples_ms, other.timing.kernel_samples_ms
    if len(samples_ms[0]) < MIN_PAIRS or len(samples_ms[0]) != len(samples_ms[1]):
        return None
    speedup, low, high = paired_speedup(*samples_ms)
    return PairedSpeedup(over=id, speedup=speedup, low=low, high=high)
