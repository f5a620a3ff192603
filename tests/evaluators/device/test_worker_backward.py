"""Kernels for training: their outputs and all gradients are judged, and both passes are timed together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from evaluators.app.verdict_report import verdict
from evaluators.device.child_processes import UnfitProblem
from evaluators.device.worker import Worker
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel, Problem
from evaluators.reference.gradients import saved_bytes
from evaluators.reference.loading import load_module, make_inputs, make_model
from tests.evaluators.device.trained import HONEST, MASKED, NORM, OF_MASKED, WRONG

SAYS = {
    "no backward pass": "0 of its outputs have gradients, 1 of the reference's: ModelNew must be",
    "no gradient of the bias": "the gradient of bias: ",
    "a term is missing": "the gradient of x: ",
    "a gradient of a weight that is not used": "the gradient of unused: ",
}
"""What a log names."""
TRAINED = Problem(name="file/norm", source=NORM, libraries="any", backward=True, timed=False)


def kernel(source: str) -> Kernel:
    return Kernel(source=source, language="cpp")


def test_a_model_with_gradients() -> None:
    module = load_module(NORM, {"rows": 3, "columns": 5})
    how = {"device": "cpu", "dtype": "float64", "backward": True}
    first, second = (make_inputs(module, seed=1, **how) for _ in range(2))  # type: ignore[arg-type]
    x, (upstream,) = first
    assert upstream.shape == x.shape
    assert torch.equal(upstream, second[1][0]) and torch.equal(x, second[0])
    model = make_model(module, "Model", [], seed=1, **how)  # type: ignore[arg-type]
    output, (dx, dweight, dbias, dunused) = model(x, [upstream])
    assert not output.requires_grad and not x.requires_grad
    leaf = x.clone().requires_grad_()
    plain: Any = make_model(module, "Model", [], seed=1, device="cpu", dtype="float64")
    plain(leaf).backward(upstream)
    assert torch.allclose(dx, leaf.grad) and torch.allclose(dweight, plain.weight.grad)
    assert torch.allclose(dbias, plain.bias.grad)
    assert torch.equal(dunused, torch.zeros(4))


def test_what_is_saved_between_the_passes() -> None:
    how: Any = {"device": "cpu", "dtype": "float32", "backward": True}
    reference = load_module(NORM, {"rows": 64, "columns": 96})
    given = make_inputs(reference, seed=1, **how)
    saved = {}
    for name in ("by hand", "by autograd", "statistics computed again", "PyTorch's own"):
        module = load_module(HONEST[name], {}, name="candidate")
        saved[name] = saved_bytes(make_model(module, "ModelNew", [], seed=1, **how), given)
    statistics = 2 * 64 * 4
    assert saved["by hand"] == saved["PyTorch's own"] == statistics
    assert saved["statistics computed again"] == 0
    assert saved["by autograd"] > 64 * 96 * 4


@pytest.mark.slow
def test_both_passes_are_timed(second: Worker) -> None:
    timed = replace(TRAINED, timed=True, overrides={"rows": 4096})
    for _ in range(4):  # on a busy machine, the forward pass on its own can take longer than both
        found = second.measure(timed, kernel(HONEST["PyTorch's own"]), b"")
        assert found.status is Status.CORRECT, found.log
        assert found.timing is not None and found.passes is not None
        kernel_ms, eager_ms = found.passes.backward_ms(found.timing)
        if kernel_ms and eager_ms:
            break
    assert found.passes.saved_bytes < found.passes.eager_saved_bytes
    assert 0 < kernel_ms < found.timing.kernel_ms and 0 < eager_ms < found.timing.eager_ms
    assert type(found).from_json(found.to_json()) == found
    alone = second.measure(replace(timed, backward=False), kernel(HONEST["PyTorch's own"]), b"")
    assert alone.status is Status.CORRECT and alone.passes is None


def test_the_id_says_whether_gradients_count() -> None:
    assert TRAINED.id != replace(TRAINED, backward=False).id
    assert Problem.from_json(TRAINED.to_json()) == TRAINED


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_honest_kernels_are_accepted(second: Worker, name: str) -> None:
    found = second.measure(TRAINED, kernel(HONEST[name]), b"")
    assert found.status is Status.CORRECT, found.log


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_faults_in_the_backward_pass_are_found(second: Worker, name: str) -> None:
    found = second.measure(TRAINED, kernel(WRONG[name]), b"")
    assert found.status is Status.INCORRECT, found.log
    if name in SAYS:
        assert SAYS[name] in found.log


@pytest.mark.slow
@pytest.mark.parametrize(("name", "differ"), [("sums in another order each time", True), ("by hand", False)])
def test_how_far_repeated_calls_differ_is_reported(second: Worker, name: str, differ: bool) -> None:
    """Atomic additions change the order of a sum from call to call."""
    found = second.measure(TRAINED, kernel(HONEST[name]), b"")
    assert found.status is Status.CORRECT, found.log
    correctness = found.correctness
    assert correctness is not None and correctness.spread is not None
    assert (0 < correctness.spread < 1e-6) if differ else correctness.spread == 0
    (line,) = [each for each in verdict(found) if each.startswith("repeats:")]
    assert ("differ by" if differ else "are equal") in line


@pytest.mark.slow
def test_a_reference_without_gradients_is_unfit(second: Worker) -> None:
    source = NORM.replace("return (x - mean)", "return x.argmax(-1)\n        return (x - mean)")
    with pytest.raises(UnfitProblem, match="none of its outputs has a gradient; leave out problem"):
        second.measure(replace(TRAINED, source=source), kernel(HONEST["by hand"]), b"")


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_MASKED)
def test_several_outputs_and_inputs_without_gradients(second: Worker, name: str) -> None:
    problem = Problem(name="file/masked", source=MASKED, libraries="any", backward=True, timed=False)
    source, status = OF_MASKED[name]
    found = second.measure(problem, kernel(source), b"")
    assert found.status.value == status, found.log
