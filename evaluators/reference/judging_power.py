"""How well a reference can judge kernels, in figures."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evaluators.records.opening import OpeningStep, Steps
from evaluators.records.problem import Problem
from evaluators.records.reference_audit import LazyAnswer, ReferenceAudit
from evaluators.reference.answer import Draw, ReferenceAnswer, benchmark_rules
from evaluators.reference.containers import tensors_in
from evaluators.reference.inputs.usable_distributions import open_distributions
from evaluators.reference.reference_model import ReferenceModel
from evaluators.reference.running_reference import UnfitReference
from evaluators.reference.validation import (
    MOST_BYTES,
    Lazy,
    filled_outputs,
    lazy_outputs,
    lazy_parts,
    passes_elsewhere,
    without_input,
)

if TYPE_CHECKING:
    import torch


def audit(problem: Problem) -> ReferenceAudit:
    """Runs the reference and tries every shortcut answer against it. Raises what the reference raises."""
    import torch

    if problem.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps = Steps()
    with torch.no_grad():
        found = _audit(problem, steps)
    seconds = {step: round(took, 3) for step, took in steps.seconds().items() if step != OpeningStep.REST}
    return replace(found, seconds=seconds)


def _audit(problem: Problem, steps: Steps) -> ReferenceAudit:
    try:
        with steps.step("reference"):
            reference = ReferenceModel(problem)
            reference.count_work()
        with steps.step("distributions"):
            open_distributions(reference)
    except UnfitReference as error:
        return ReferenceAudit(problem=problem.name, unfit=str(error))
    seeds = secrets.randbits(62), secrets.randbits(62)
    inputs = reference.draw(seeds[0])
    answer = reference.answer(Draw(seed=seeds[0]), given=inputs)
    if not filled_outputs(answer.eager):
        return ReferenceAudit(problem=problem.name, unfit="there are no elements in its outputs")
    with steps.step("lazy answers"):
        found = list(_all_lazy(reference, seeds, inputs, answer))
    weights = [*reference.eager.parameters(), *reference.eager.buffers()]
    return ReferenceAudit(
        problem=problem.name,
        lazy=tuple(each for each in found if each.passes or any(each.benchmark_rules.values())),
        untried=reference.untried,
        distributions=tuple(reference.distributions),
        draws_numbers=reference.draws_numbers,
        changes_inputs=bool(reference.changed_inputs),
        in_float64=reference.is_exact,
        eager_error=reference.judge(answer.eager, answer).eager_error,
        tolerance=min((each.error for each in found), default=None),
        input_bytes=sum(each.nbytes for each in tensors_in(inputs)),
        output_bytes=sum(each.nbytes for each in answer.eager),
        weight_bytes=sum(each.nbytes for each in weights),
        peak_bytes=max(_peak_bytes(problem.device), reference.peak_bytes),
    )


def _all_lazy(
    reference: ReferenceModel, seeds: tuple[int, int], inputs: list[Any], answer: ReferenceAnswer
) -> Iterator[LazyAnswer]:
    import torch

    other = reference.draw(seeds[1])
    elsewhere = reference.run(other, seeds[1])
    for number in filled_outputs(answer.eager):
        for lazy in lazy_outputs(number, inputs, elsewhere, reference):
            yield from _judged(lazy, inputs, answer, reference)
    for number, (one, two) in enumerate(zip(tensors_in(inputs), tensors_in(other), strict=True)):
        if one.shape == two.shape and not torch.equal(one, two):
            lazy = without_input(number, other, seeds, reference, constant=False)
            yield from _judged(lazy, inputs, answer, reference)
    if reference.has_weights:
        reference.change_weights(reference.full_change(), alike=True)
        changed = reference.run(inputs, seeds[0])
        reference.restore_weights()
        says = "the outputs with other weights"
        yield _lazy_answer(says, changed, answer, reference, passes=lambda: True)
    if sum(each.nbytes for each in tensors_in(inputs)) < MOST_BYTES:
        for lazy in lazy_parts(inputs, reference):
            yield from _judged(lazy, inputs, answer, reference)


def _judged(
    lazy: Lazy, inputs: list[Any], answer: ReferenceAnswer, reference: ReferenceModel
) -> Iterator[LazyAnswer]:
    """The shortcut's judgement; nothing if the shortcut does not apply here or is right."""
    outputs = lazy.outputs(inputs, "", answer.eager)
    if outputs is not None and not lazy.is_right(outputs, answer.eager):
        yield _lazy_answer(
            lazy.says, outputs, answer, reference, passes=lambda: passes_elsewhere(lazy, reference)
        )


def _lazy_answer(
    says: str,
    outputs: list[torch.Tensor],
    answer: ReferenceAnswer,
    reference: ReferenceModel,
    *,
    passes: Callable[[], bool],
) -> LazyAnswer:
    own = reference.judge(outputs, answer)
    return LazyAnswer(
        says=says,
        error=own.error,
        passes=not own.problem and passes(),
        benchmark_rules=benchmark_rules(outputs, answer),
    )


def _peak_bytes(device: str) -> int:
    import torch

    return int(torch.cuda.max_memory_allocated()) if device == "cuda" else 0
