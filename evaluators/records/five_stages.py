"""A verdict in AutoKernel's five test stages: smoke, shapes and types, stability, determinism, edges.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evaluators.records.evaluation import CaseResult, Evaluation, Status

PASSES, FAILS, UNTRIED = "passes", "fails", "not tried"
RIGHT = (Status.CORRECT, Status.DECLINED)


def five_stages(evaluation: Evaluation) -> Mapping[str, str]:
    """The result of each stage: `passes`, `fails` or `not tried`.

    Smoke: the first case on its own inputs. Shapes and types: every case on its own inputs. Stability: the
    other distributions (large, small, mixed scales, infinities, NaN). Determinism: two answers to the same
    inputs, `equal` or their normwise difference. Edges: the held-out cases (sizes off by one, primes, other
    sizes). A problem without cases counts as one case.
    """
    cases = evaluation.cases or (_only(evaluation),)
    listed = [each for each in cases if not each.held_out]
    drawn = [each for each in cases if each.held_out]
    return {
        "smoke": _all(map(_own, listed[:1])),
        "shapes and types": _all(map(_own, listed)),
        "stability": _all(map(_distributions, cases)),
        "determinism": _determinism(cases),
        "edges": _all(map(_own, drawn)),
    }


def _only(evaluation: Evaluation) -> CaseResult:
    return CaseResult(name="as it is", weight=1.0, held_out=False, evaluation=evaluation)


def _own(case: CaseResult) -> bool | None:
    """Whether the kernel is right on the case's own inputs; None if the verdict does not show it."""
    found = case.evaluation
    if found.status in RIGHT:
        return True
    if found.status is Status.REJECTED or not found.status.is_of_the_kernel:
        return None
    return found.status is Status.INCORRECT and _distributions(case) is False


def _distributions(case: CaseResult) -> bool | None:
    correctness = case.evaluation.correctness
    if correctness is None or not correctness.distributions:
        return None
    return all(correctness.distributions.values())


def _determinism(cases: Sequence[CaseResult]) -> str:
    spreads = [
        each.evaluation.correctness.spread
        for each in cases
        if each.evaluation.correctness is not None and each.evaluation.correctness.spread is not None
    ]
    if not spreads:
        return UNTRIED
    return f"differs by {max(spreads):.2g}" if max(spreads) else "equal"


def _all(found: Iterable[bool | None]) -> str:
    known = [each for each in found if each is not None]
    if not known:
        return UNTRIED
    return PASSES if all(known) else FAILS
