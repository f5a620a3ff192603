"""The two stages of a race, as a worker measures them."""

from __future__ import annotations

import pytest

from evaluators.device.worker import Worker
from evaluators.records.evaluation import Evaluation, Stage, Status
from evaluators.records.problem import Kernel
from evaluators.records.timing import Effort
from tests.evaluators.device.kernels import HONEST, PROBLEM, forward

pytestmark = pytest.mark.slow

OWN_INPUTS_ONLY = forward("return honest(self, x) if 3 < x.abs().max() < 6 else honest(self, x) / 2")
"""Right on the problem's own inputs, 16,384 normal numbers, and on hardly any others."""
STALE = forward(
    """\
key = str(x[:2].tolist()), self.weight._version
if key not in kept:
    kept.clear()
    kept[key] = honest(self, x)
return kept[key].clone()""",
    before="kept = dict()",
)
"""Keeps its last result by the first two rows of its input: only nearly equal inputs show it."""
WRONG = forward("return honest(self, x) / 2")


def measured(worker: Worker, source: str, effort: Effort) -> Evaluation:
    return worker.measure(PROBLEM, Kernel(source=source, language="cpp"), b"", effort=effort)


def test_the_quick_stage_looks_at_the_problems_own_inputs_only(worker: Worker) -> None:
    found = measured(worker, HONEST, Effort.QUICK)
    assert found.status is Status.CORRECT, found.log  # the pool calls it outpaced
    assert found.correctness is not None
    assert not found.correctness.distributions
    assert found.own_share is None
    assert found.stages_s.get(Stage.COUNTING, 0.0) < 0.05
    assert found.correctness.checked_calls < 10  # none of the timed ones
    assert measured(worker, WRONG, Effort.QUICK).status is Status.INCORRECT


def test_what_seems_right_in_the_quick_stage_is_found_out_in_the_full_one(worker: Worker) -> None:
    quick, full = (measured(worker, STALE, each) for each in (Effort.QUICK, Effort.FULL))
    assert quick.status is Status.CORRECT, quick.log
    assert full.status is Status.INCORRECT
    assert "differ from an earlier call's in a few elements" in full.log


def test_the_full_stage_tries_all_distributions_before_it_calls_a_kernel_incorrect(worker: Worker) -> None:
    honest = measured(worker, HONEST, Effort.FULL)
    assert honest.status is Status.CORRECT, honest.log
    assert honest.correctness is not None
    usual, full = (measured(worker, OWN_INPUTS_ONLY, each) for each in (Effort.USUAL, Effort.FULL))
    assert usual.status is full.status is Status.INCORRECT
    assert usual.correctness is not None
    assert full.correctness is not None
    assert set(full.correctness.distributions) == set(honest.correctness.distributions)
    wrong = [name for name, right in full.correctness.distributions.items() if not right]
    assert len(wrong) > 1
    assert sum(not right for right in usual.correctness.distributions.values()) == 1
    for name in wrong:
        assert f"the distribution '{name}'" in full.log
    assert full.cause.startswith("wrong on inputs of the distribution")
