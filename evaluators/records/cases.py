"""Cases of a problem: drawing held-out ones, and combining the verdicts on all cases into one. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from evaluators.records.evaluation import (
    CLOCKS_AFTER,
    CaseResult,
    Correctness,
    Evaluation,
    Roofline,
    Status,
    Timing,
    summed_stages,
)
from evaluators.records.problem import Case, Problem, Size
from evaluators.records.time_spent import summed
from evaluators.records.timing import timing_of

HELD_OUT = 2
"""Number of held-out cases that are drawn in addition to a problem's own."""
MOST_FAILURES = 3
"""Number of failed cases after which the rest are not tried."""


def held_out(
    problem: Problem, generator: random.Random, own: Callable[[Case], Mapping[str, Size]] | None = None
) -> Iterator[Case]:
    """Endless held-out cases, each like one of the problem's. If the reference draws sizes itself, `own`
    draws those for a case. Otherwise sizes that differ between the problem's cases are changed: by one, to a
    prime or to a number in between."""
    varying = _varying(problem.cases)
    while True:
        like = generator.choice(problem.cases)
        sizes = dict(like.sizes)
        if own is not None:
            yield replace(like, sizes={**sizes, **own(like)}, weight=0.0, held_out=True)
            continue
        for name, values in varying.items():
            if name in sizes and generator.random() < 0.75:
                sizes[name] = moved(int(sizes[name]), values, generator)  # type: ignore[arg-type]
        yield replace(like, sizes=sizes, weight=0.0, held_out=True)


def _varying(cases: Sequence[Case]) -> dict[str, list[int]]:
    """For each size that differs between the cases, its whole-number values, sorted."""
    values: dict[str, set[Size]] = {}
    for case in cases:
        for name, value in case.sizes.items():
            values.setdefault(name, set()).add(value)
    whole = {name: [each for each in found if type(each) is int] for name, found in values.items()}
    return {name: sorted(found) for name, found in whole.items() if len(found) > 1}


def moved(size: int, values: Sequence[int], generator: random.Random) -> int:
    """Another size: off by one, a prime, or a number between the first and the last of the sorted
    `values`."""
    between = generator.randint(values[0], values[-1])
    return max(1, generator.choice((size - 1, size + 1, _prime_from(size), between, _prime_from(between))))


def _prime_from(number: int) -> int:
    """The smallest prime that is at least `number`."""
    while number < 2 or any(number % each == 0 for each in range(2, math.isqrt(number) + 1)):
        number += 1
    return number


def summed_up(results: Sequence[CaseResult]) -> Evaluation:
    """Combines the verdicts on one or more cases. A kernel is correct if it passes all cases and does not
    decline all of them. Otherwise the status is the first failure's, and the log names all failures. Cases
    whose reference cannot judge appear in the log and in `cases`, but do not count."""
    judged = [each for each in results if each.passes or each.fails]
    found = [each.evaluation for each in judged]
    failures = [each for each in judged if each.fails]
    measured = [each for each in judged if each.evaluation.timing is not None and each.weight]
    log = "\n".join(in_lines(results))
    status, rule = Status.CORRECT, ""
    if failures:
        first = failures[0].evaluation
        status, rule = first.status, first.rule
        log = "\n".join([log, *(f"\n{each.title}:\n{each.evaluation.log}" for each in failures)])
    elif not any(each.weight and each.evaluation.status is Status.CORRECT for each in judged):
        status = Status.DECLINED
    shares = [each.own_share for each in found if each.own_share is not None]
    plain = [
        replace(each, evaluation=replace(each.evaluation, environment={}, resources=())) for each in results
    ]
    return Evaluation(
        status=status,
        timing=_timing(judged) if status is Status.CORRECT and measured else None,
        correctness=_correctness([each.correctness for each in found if each.correctness is not None]),
        log=log,
        rule=rule,
        environment={**found[0].environment, **_last_clocks(found[-1])},
        device_s=sum(each.device_s for each in found),
        build_s=max(each.build_s for each in found),
        stages_s=summed_stages(each.stages_s for each in found),
        lease=summed([each.lease for each in found]),
        roofline=_roofline(measured),
        own_share=min(shares, default=None),
        cases=tuple(plain),
        resources=found[0].resources,
    )


def in_lines(results: Sequence[CaseResult]) -> list[str]:
    """A table with one line per case."""
    rows = []
    for each in results:
        timing = each.evaluation.timing
        text = each.evaluation.status.value
        if timing is not None and each.weight:
            speedup = f"{timing.speedup:.2f}x [{timing.speedup_low:.2f}, {timing.speedup_high:.2f}]"
            text = f"{text}  {speedup}  {timing.kernel_ms:#.3g} ms, eager {timing.eager_ms:#.3g} ms"
        elif each.evaluation.status is Status.DECLINED and each.weight:
            text = f"{text}: counts as 1.00x"
        elif each.evaluation.cause and not each.passes:
            text = f"{text}: {each.evaluation.cause}"
        rows.append((each.title, text))
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def _timing(results: Sequence[CaseResult]) -> Timing:
    """Weighted geometric means over the cases, turn by turn. A declined case runs eager PyTorch: it has no
    times and counts as a speedup of 1.0."""
    weighted = [each for each in results if each.weight]
    timed = [(each.weight, timing) for each in weighted if (timing := each.evaluation.timing) is not None]
    whole, part = sum(each.weight for each in weighted), sum(weight for weight, _ in timed)
    kernel = _means([(weight, each.kernel_samples_ms) for weight, each in timed])
    eager = _means([(weight, each.eager_samples_ms) for weight, each in timed])
    speedups = [(of / by) ** (part / whole) for of, by in zip(eager, kernel, strict=True)]
    compiled = [(weight, (each.compile_ms,)) for weight, each in timed if each.compile_ms is not None]
    return timing_of(
        [of / speedup for of, speedup in zip(eager, speedups, strict=True)],
        eager,
        _means(compiled) if len(compiled) == len(weighted) else (),
    )


def _means(samples: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """The weighted geometric mean of each turn that all cases have."""
    whole = sum(weight for weight, _ in samples)
    turns = zip(*(values for _, values in samples), strict=False)
    weights = [weight / whole for weight, _ in samples]
    return [math.exp(sum(w * math.log(ms) for w, ms in zip(weights, turn, strict=True))) for turn in turns]


def _correctness(found: Sequence[Correctness]) -> Correctness | None:
    """The worst of each figure."""
    if not found:
        return None
    names = {name for each in found for name in each.distributions}
    rules = {name for each in found for name in each.benchmark_rules}
    return Correctness(
        checked_calls=sum(each.checked_calls for each in found),
        normwise_error=max(each.normwise_error for each in found),
        eager_error=max(each.eager_error for each in found),
        largest_error=_largest(each.largest_error for each in found),
        distributions={name: all(each.distributions.get(name, True) for each in found) for name in names},
        untried={name: why for each in found for name, why in each.untried.items() if name not in names},
        benchmark_rules={name: all(each.benchmark_rules.get(name, True) for each in found) for name in rules},
        spread=_largest(each.spread for each in found),
        statistic=_largest(each.statistic for each in found),
    )


def _largest(found: Iterable[float | None]) -> float | None:
    """The largest that is not None."""
    return max((each for each in found if each is not None), default=None)


def _roofline(measured: Sequence[CaseResult]) -> Roofline | None:
    """The weighted geometric mean of the floors, like the times; the sum of bytes and operations, one call
    per case. None if any case has no roofline."""
    found = [(each.weight, each.evaluation.roofline) for each in measured]
    known = [(weight, roofline) for weight, roofline in found if roofline is not None]
    if not known or len(known) < len(found):
        return None
    return Roofline(
        bytes=sum(each.bytes for _, each in known),
        operations=sum(each.operations for _, each in known),
        floor_ms=_means([(weight, (each.floor_ms,)) for weight, each in known])[0],
        bound=max(known, key=lambda each: each[0])[1].bound,
    )


def _last_clocks(last: Evaluation) -> dict[str, str]:
    return {name: text for name, text in last.environment.items() if name == CLOCKS_AFTER}
