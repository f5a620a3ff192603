"""A race: kernels are judged in a quick stage first, and in full only if they are fast enough.

The quick stage builds a kernel, compares its answers to fresh inputs with the reference's, and times it
briefly next to eager. That proves nothing: what it finds right is `outpaced`, never `correct`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from evaluators.records.evaluation import Evaluation, QuickStage, Status

Threshold = float | None
"""The speedup over eager that the upper end of a kernel's interval must reach in the quick stage for the full
stage to follow at once. 0: the full stage takes place without a quick one. None: it does not take place."""
IN_FULL: Threshold = 0.0


def after_quick_stage(found: Evaluation, threshold: Threshold) -> Evaluation:
    """The verdict of a quick stage that measured `found`. A failure stays what it is. A kernel that seems
    right is outpaced, without the parts that call it correct; see `reaches` for one that is to be judged in
    full."""
    if found.status is not Status.CORRECT or (timing := found.timing) is None:
        return found
    calls = found.correctness.checked_calls if found.correctness else 0
    speedup = f"{timing.speedup:.3g}x eager [{timing.speedup_low:.3g}, {timing.speedup_high:.3g}]"
    why = "others were faster" if threshold is None else f"{threshold:.3g}x would have been needed"
    log = (
        f"{speedup} in the quick stage only: right in {calls} calls on fresh inputs, not tried on every "
        f"distribution of inputs and not checked for all cheats, because {why}"
    )
    short = replace(timing, kernel_samples_ms=(), eager_samples_ms=())
    return replace(
        found,
        status=Status.OUTPACED,
        timing=None,
        log=log,
        cases=(),
        configurations=(),
        quick=QuickStage(timing=short, threshold=threshold),
    )


def upper_end(found: Evaluation) -> float:
    """The upper end of an outpaced kernel's interval: its speedup is hardly larger. 0 for any other."""
    return found.quick.timing.speedup_high if found.quick else 0.0


def reaches(found: Evaluation, threshold: Threshold) -> bool:
    """Whether an outpaced kernel may be as fast as the threshold demands, so that it is judged in full."""
    return found.quick is not None and upper_end(found) >= _speedup(threshold)


def answers(found: Evaluation, threshold: Threshold) -> bool:
    """Whether a verdict may be reused for a request with this threshold. An outpaced kernel would be outpaced
    again if the verdict's own threshold was at least as strict, that is, not higher."""
    return found.quick is None or _speedup(found.quick.threshold) <= _speedup(threshold)


def with_quick_stage(full: Evaluation, quick: Evaluation) -> Evaluation:
    """The verdict of the full stage, with the seconds of the quick stage before it."""
    names = dict.fromkeys([*quick.stages_s, *full.stages_s])
    return replace(
        full,
        device_s=quick.device_s + full.device_s,
        build_s=quick.build_s + full.build_s,
        stages_s={name: quick.stages_s.get(name, 0.0) + full.stages_s.get(name, 0.0) for name in names},
    )


def _speedup(threshold: Threshold) -> float:
    return math.inf if threshold is None else threshold
