"""A verification in words: what the comparison found, and how long each way of running the model takes."""

from __future__ import annotations

from collections.abc import Iterator

from search.optimize.verification.launcher import way_title
from search.optimize.verification.record import (
    COMPILE,
    COMPILED_PAIRS,
    EAGER,
    OPTIMIZED,
    OPTIMIZED_GRAPH,
    REWRITTEN,
    LossCurves,
    Verification,
    interval_text,
)

SHARES = (
    (OPTIMIZED, EAGER, REWRITTEN),
    (f"{OPTIMIZED} {COMPILE}", COMPILE, f"{REWRITTEN} {COMPILE}"),
)
"""With the kernels, the original in the same way, and the rewritten forward without kernels."""


def report_lines(found: Verification) -> list[str]:
    """The whole verification, one line each."""
    lines = summary_lines(found)
    if len(found.shapes) > 1 and found.ways:
        for shape, weight in found.shapes.items():
            lines += [f"at {shape}, {weight:.0%} of the calls:", *_times(found, shape)]
        lines.append("weighted average:")
    lines += _times(found)
    if found.ways:
        lines.append(f"the fastest way: {way_title(found, found.fastest)}")
    lines += memory_lines(found)
    lines += [line for ways in SHARES if (line := _share_line(found, *ways))]
    return lines + [f"{way_title(found, way):<34} failed: {why}" for way, why in found.failed.items()]


def summary_lines(found: Verification) -> list[str]:
    """What the comparison found, one line each."""
    worst = max(found.checks, key=lambda each: each.error / each.allowed, default=None)
    lines = []
    if worst is not None:
        same = all(each.passes for each in found.checks)
        what = "outputs and gradients" if found.backward else "outputs"
        verdict = f"same {what}" if same else f"DIFFERENT {what}"
        reference = "float64" if worst.eager_error is not None else "eager"
        eager = f", eager's error {worst.eager_error:.1e}" if worst.eager_error is not None else ""
        lines.append(
            f"{verdict} on {len({each.seed for each in found.checks})} sets of weights and inputs"
            f"{f' at each of {len(found.shapes)} shapes' if len(found.shapes) > 1 else ''}: "
            f"error {worst.error:.1e}{f' of {worst.where}' if worst.where else ''} against "
            f"{reference}{eager}, {worst.allowed:.1e} allowed"
        )
    if found.curves is not None:
        lines += curve_lines(found.curves)
    tokens = [each.tokens for each in found.checks if each.tokens is not None]
    if tokens:
        lines.append(f"most likely tokens: {min(tokens):.2%} equal the original's")
    if found.other_sizes:
        lines.append(found.other_sizes)
    if found.as_graph:
        lines.append("it runs as a CUDA graph, which is faster")
    if OPTIMIZED in found.ways and not found.is_faster:
        lines.append("NOT significantly faster than the original: use the original model here")
    elif OPTIMIZED in found.ways:
        slow = [shape for shape in found.shapes if not found.speedup(found.delivered, shape=shape)[1] > 1]
        lines += [f"NOT significantly faster than the original at {shape}" for shape in slow]
    for way, own in found.in_place.items():
        names = (name for name in found.slower(way) if name not in found.left_out)
        if slower := [f"{name} {interval_text(own[name])}" for name in names]:
            where = "as a CUDA graph" if way == OPTIMIZED_GRAPH else "without a CUDA graph"
            lines.append(f"{where} the operators run instead of {', '.join(slower)}")
    if found.over_compiled or not found.compiled_pays or (found.backward and found.ways):
        lines.append(_compiled_line(found))
    return lines + [f"removed: {name}: {why}" for name, why in found.left_out.items()]


def curve_lines(curves: LossCurves) -> Iterator[str]:
    """What the training showed, one line each."""
    apart = max(curves.differences)
    steps = f"{len(curves.original)} steps of {curves.optimizer} at {curves.learning_rate:g}"
    yield (
        f"{'same loss curve' if curves.passes else 'DIFFERENT loss curves'} over {steps}: from "
        f"{curves.original[0]:.6g} to {curves.original[-1]:.6g}, with the kernels to "
        f"{curves.with_kernels[-1]:.6g}; {apart:.1e} apart at most, {max(curves.allowed):.1e} allowed, "
        f"rounding alone {max(curves.spread):.1e}"
    )
    if not curves.is_conclusive:
        yield "the loss curves say little: rounding alone moves them by a large part of their change"


def memory_lines(found: Verification) -> Iterator[str]:
    """The memory of a step of training, one line per way of running it."""
    for way, own in found.memory.items():
        kinds = {"step": "a step needs", "saved": "saved between the passes"}
        parts = ", ".join(f"{kinds[kind]} {size / 2**20:.4g} MiB" for kind, size in own.items())
        yield f"{way_title(found, way):<34} memory: {parts}"


def growth_lines(found: Verification) -> list[str]:
    """How the error grew from kernel to kernel, where kernels had to be removed."""
    lines = [f"  {each.error:.1e}  {each.kernel}  {each.site}" for each in found.growth]
    return ["errors of the kernels' results before any was removed, call by call:", *lines] if lines else []


def _compiled_line(found: Verification) -> str:
    """Which kernels run in compiled code."""
    timed = any(way in found.ways for _, way in COMPILED_PAIRS)
    if not found.compiled_pays:
        why = "it is no slower there" if found.backward else "it is faster there"
        return "in compiled code the original forward runs" + (f", because {why}" if timed else "")
    if found.backward:
        return "in compiled code all kernels run"
    used = [f"{name} {interval_text(found.over_compiled[name])}" for name in found.faster_compiled]
    left = len(found.over_compiled) - len(used)
    line = f"kernels in compiled code: {', '.join(used)}" if used else "in compiled code no kernel runs"
    return line + (f"; {left} no faster than the compiler's code" if left else "")


def _share_line(found: Verification, ours: str, base: str, rewritten: str) -> str:
    """What the kernels and what the rewritten forward gain in a way of running; "" where it was not timed,
    and in compiled code that runs the original forward."""
    if not {ours, base} <= {*found.ways} or (base == COMPILE and not found.compiled_pays):
        return ""
    title, gain = way_title(found, ours), interval_text(found.speedup(ours, base))
    if not found.runs_kernels(ours):
        return f"{title}: no kernel runs; {gain} over {way_title(found, base)} is the rewritten forward's"
    if rewritten not in found.ways:
        return ""
    kernels, code = (interval_text(found.speedup(*ways)) for ways in ((ours, rewritten), (rewritten, base)))
    return (
        f"{title}: {gain} over {way_title(found, base)}, "
        f"of which {kernels} is the kernels' and {code} the rewritten forward's"
    )


def _times(found: Verification, shape: str | None = None) -> Iterator[str]:
    """A line for each way of running the model."""
    for way in found.ways:
        speedup, low, high = found.speedup(way, shape=shape)
        over = "" if way == EAGER else f"  {speedup:.3f}x [{low:.3f}, {high:.3f}]"
        yield f"{way_title(found, way):<34} {found.ms(way, shape):9.3f} ms{over}"
