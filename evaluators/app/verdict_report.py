"""A verdict in words: the finding, its uncertainty, where it was measured, and how long it took."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from evaluators.base.compiler_messages import reports_error
from evaluators.records.configurations import configuration_lines
from evaluators.records.evaluation import Evaluation, Status, share_text
from evaluators.records.five_stages import five_stages
from evaluators.records.resources import resource_lines

LOG_LINES = (12, 28)
"""Numbers of lines shown from the beginning and the end of a long log."""
ERROR_LINES, MIDDLE_LINES = 3, 36
"""Numbers of lines shown of each compile error in the middle, with its source and its place, and of all."""
LINE_CHARACTERS = 200


def verdict(evaluation: Evaluation, *, libraries: str = "any") -> list[str]:
    """The whole verdict, one labelled fact per line, then its configurations; a failure's log comes last.
    `libraries`: the problem's policy."""
    lines = [f"{label + ':':<12}{text}" for label, text in _facts(evaluation, libraries)]
    if table := configuration_lines(evaluation.configurations):
        lines += ["configurations:", *(f"  {line}" for line in table)]
    if evaluation.log.strip():
        lines += ["log:", *(f"  {line}" for line in cut(evaluation.log.strip()))]
    return lines


def one_line(evaluation: Evaluation) -> str:
    """Status, time and speedups, or the cause of a failure."""
    timing = evaluation.timing
    if timing is None:
        rule = f" ({evaluation.rule})" if evaluation.rule else ""
        return f"{evaluation.status}{rule}  {evaluation.cause}".strip()
    return f"{evaluation.status}  {_ms(timing.kernel_ms)}  {'; '.join(_speedups(evaluation))}"


def summary(evaluations: Sequence[Evaluation]) -> list[str]:
    """Of repeated measurements: how many were correct, and the median and spread of their speedups."""
    correct = [each.timing for each in evaluations if each.timing is not None]
    lines = [f"correct {len(correct)} of {len(evaluations)}"]
    against = {
        "eager": [timing.speedup for timing in correct],
        "torch.compile": [each for timing in correct if (each := timing.speedup_vs_compile) is not None],
    }
    for baseline, speedups in against.items():
        if speedups:
            middle, low, high = statistics.median(speedups), min(speedups), max(speedups)
            lines.append(
                f"median {middle:.2f}x against {baseline}, from {low:.2f}x to {high:.2f}x "
                f"(spread {(high - low) / middle:.1%})"
            )
    return lines


def cut(text: str) -> list[str]:
    """The lines of a text. Of the middle of a long one, only what compilers report as errors."""
    lines = ["".join(c if c.isprintable() or c == "\t" else "?" for c in line) for line in text.splitlines()]
    lines = [line[:LINE_CHARACTERS] + ("…" if len(line) > LINE_CHARACTERS else "") for line in lines]
    first, last = LOG_LINES
    if len(lines) <= first + last:
        return lines
    end = len(lines) - last
    errors = [number for number in range(first, end) if reports_error(lines[number].lstrip())]
    shown = sorted({each for number in errors for each in range(number, min(number + ERROR_LINES, end))})
    found, at = lines[:first], first
    for number in [*shown[:MIDDLE_LINES], end]:
        if number > at:
            found.append(f"[… {number - at} lines …]")
        found += lines[number : number + 1] if number < end else lines[end:]
        at = number + 1
    return found


def _facts(evaluation: Evaluation, libraries: str) -> Iterator[tuple[str, str]]:
    about = evaluation.environment
    yield "status", evaluation.status.value
    if evaluation.status is Status.REJECTED:
        yield "rule", evaluation.rule
    if (timing := evaluation.timing) is not None:
        compiled = f", torch.compile {_ms(timing.compile_ms)}" if timing.compile_ms is not None else ""
        yield "time", f"{_ms(timing.kernel_ms)}; eager {_ms(timing.eager_ms)}{compiled}"
        yield "speedup", "; ".join(_speedups(evaluation))
    if (passes := evaluation.passes) is not None and timing is not None:
        own_ms, eager_ms = passes.backward_ms(timing)
        yield "forward", f"{_ms(passes.forward_ms)}; eager {_ms(passes.eager_forward_ms)}"
        yield "backward", f"{_ms(own_ms)}; eager {_ms(eager_ms)}"
        saved = [f"{each / 2**20:.3g} MiB" for each in (passes.saved_bytes, passes.eager_saved_bytes)]
        yield "saved", f"{saved[0]} between the passes; eager {saved[1]}"
    if (roofline := evaluation.roofline) is not None:
        share = evaluation.roofline_share
        reached = f"{share_text(share)} of it; " if share is not None else ""
        yield "roofline", f"{reached}floor {_ms(roofline.floor_ms)}, bound by {roofline.bound}"
    if (correctness := evaluation.correctness) is not None:
        if correctness.statistic is not None:
            yield "statistics", f"at most {correctness.statistic:.0%} of the limit for random outputs"
        else:
            errors = f"{correctness.normwise_error:.2g}; eager's own {correctness.eager_error:.2g}"
            worst = f"the worst of {correctness.checked_calls} calls"
            yield "error", f"{errors} (normwise, against float64, {worst})"
        if correctness.distributions:
            wrong = [name for name, right in correctness.distributions.items() if not right]
            tried = f"{len(correctness.distributions)} further input distributions"
            yield "inputs", f"wrong on {', '.join(wrong)}, of {tried}" if wrong else f"right on {tried}"
        if correctness.spread is not None:
            differ = f"differ by {correctness.spread:.2g} (normwise)"
            yield "repeats", f"two answers to the same inputs {differ if correctness.spread else 'are equal'}"
        for name, why in correctness.untried.items():
            yield "not tried", f"{name}: {why}"
        if correctness.benchmark_rules:
            rules = [f"{rule} {_passes(each)}" for rule, each in correctness.benchmark_rules.items()]
            yield "allclose", f"with eager on the problem's own inputs: {', '.join(rules)}"
    yield "stages", "; ".join(f"{name} {found}" for name, found in five_stages(evaluation).items())
    if evaluation.own_share is not None:
        yield "own share", f"{evaluation.own_share:.0%} of the computing was the kernel's own"
    elif libraries == "no_library" and timing is not None:
        yield "own share", "unknown: too few samples to attribute the computing"
    for line in resource_lines(evaluation.resources):
        yield "compiled", line
    if about.get("isolation"):
        yield "isolation", "; ".join(filter(None, (about["isolation"], about.get("isolation_missing"))))
    if about.get("device"):
        software = [f"{name} {about[name]}" for name in ("torch", "cuda") if about.get(name)]
        yield "device", ", ".join([about["device"], *software])
    stages = ", ".join(f"{stage} {s:.1f}" for stage, s in evaluation.stages_s.items() if s >= 0.05)
    yield (
        "took",
        f"build {evaluation.build_s:.1f} s; device {evaluation.device_s:.1f} s"
        + (f" ({stages})" if stages else ""),
    )


def _passes(passes: bool) -> str:
    return "passes" if passes else "fails"


def _speedups(evaluation: Evaluation) -> list[str]:
    timing = evaluation.timing
    assert timing is not None
    low, high = timing.speedup_low, timing.speedup_high
    found = [f"{timing.speedup:.2f}x [{low:.2f}, {high:.2f}] against eager"]
    if (compiled := timing.speedup_vs_compile) is not None:
        found.append(f"{compiled:.2f}x against torch.compile")
    return found


def _ms(ms: float) -> str:
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:#.3g} ms"
