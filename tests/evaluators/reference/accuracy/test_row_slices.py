"""Where a reference treats rows apart its answers come in slices, and are those of the whole."""

from __future__ import annotations

import pytest
import torch

from evaluators.records.problem import Problem
from evaluators.reference.accuracy import row_slices, sampled_elements, shifts
from evaluators.reference.accuracy.sampled_elements import pick
from evaluators.reference.answer import Draw
from evaluators.reference.inputs.usable_distributions import open_distributions
from evaluators.reference.reference_model import ReferenceModel

SOURCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(24)
        self.weight = torch.nn.Parameter(torch.randn(24, 24))

    def forward(self, x, y):
        return FORWARD


def get_inputs():
    return [torch.randn(50, 24), torch.randn(50, 24)]


def get_init_inputs():
    return []
"""
APART = "torch.softmax(x @ self.weight, 1) + y"


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_slices, "LEAST_BYTES", 1)
    monkeypatch.setattr(row_slices, "SLICE_BYTES", 7 * 3 * 24 * 4)  # seven rows of two inputs and an output
    monkeypatch.setitem(sampled_elements.SPOT, "cpu", 64)
    monkeypatch.setattr(sampled_elements, "RUN", 16)


def reference_of(forward: str) -> ReferenceModel:
    return ReferenceModel(Problem(name="test/rows", source=SOURCE.replace("FORWARD", forward)))


def test_rows_that_are_treated_apart_come_in_slices() -> None:
    slices = reference_of(APART).slices
    assert slices is not None
    assert (slices.rows, slices.step) == (50, 7)
    few = reference_of("torch.stack([x.amax(1), y.amin(1)])")  # two rows, of none of the inputs
    assert few.slices is None


@pytest.mark.parametrize(
    "forward",
    [
        "self.norm(x) + y",
        "x.cumsum(0) + y",
        "x / x.abs().max() + y",
        "x.flip(0) * y",
        "(x + y).sum()",
        "x @ y.T",
        "y.add_(x)",
        "x + torch.arange(len(x)).view(-1, 1) * y",
    ],
)
def test_other_references_are_worked_out_whole(forward: str) -> None:
    assert reference_of(forward).slices is None


def test_the_answer_is_that_of_the_whole() -> None:
    reference = reference_of(APART)
    inputs = reference.draw(1)
    assert reference.double is not None
    (whole,) = reference.double.run(inputs, changes_inputs=False)[0]
    (sliced,) = reference.run_exact(inputs) or []
    assert sliced.dtype == torch.float64
    torch.testing.assert_close(sliced, whole, rtol=1e-12, atol=1e-12)
    some = sampled_elements.some_places(whole)
    assert some is not None
    (picked,) = reference.run_exact(inputs, [some]) or []
    torch.testing.assert_close(picked, pick(whole, some), rtol=1e-12, atol=1e-12)


def test_outputs_are_judged_by_some_elements_and_in_words_about_the_whole() -> None:
    reference = reference_of(APART)
    open_distributions(reference)
    draw = Draw.fresh()
    answer = reference.answer(draw, spot=True)
    assert answer.exact[0].shape == (4, 16)
    right = reference.run(reference.draw(draw.seed))
    assert not reference.judge_draw(right, answer, own=True).problem
    wrong = reference.judge_draw([right[0] + 1], answer, own=True).problem
    assert "1200 of 1200 elements differ" in wrong
    name = next(iter(reference.distributions))
    seed = reference.seed_on(name)
    assert not reference.check_on(reference.run(reference.draw(seed, name)), name).problem
    assert reference.check_on([right[0] + 1], name).problem


def test_a_part_of_the_rows_is_worked_out_without_the_others() -> None:
    reference = reference_of(APART)
    slices, inputs = reference.slices, reference.draw(1)
    assert slices is not None
    (whole,) = reference.run_exact(inputs) or []
    places = sampled_elements.Places(start=3, runs=74, chosen=torch.arange(74))
    (picked,) = reference.run_exact(inputs, [places]) or []
    for _ in range(20):
        (some,), (at,) = slices.part([picked], [places])
        assert at is not None
        assert torch.equal(some, pick(whole, at))
        rows = {(int(number) * 16 + 3 + each) // 24 for number in at.chosen for each in (0, 15)}
        assert max(rows) - min(rows) < 7  # one slice, of seven rows, is the quarter of 50
        calls: list[list[torch.Tensor]] = []

        def run(given: list[torch.Tensor], calls: list[list[torch.Tensor]] = calls) -> list[torch.Tensor]:
            calls.append(given)
            return [reference.eager(*given)]

        (again,) = slices.run(inputs, run, [at])
        assert len(calls) == 1
        torch.testing.assert_close(again, some.float())
    assert slices.part([whole], [None]) == ([whole], [None])


def test_rounding_some_rows_at_a_time_rounds_each_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shifts, "CHUNK", 100)
    reference = reference_of(APART)
    inputs = reference.draw(1)
    for rounded, given in zip(shifts._rounded_in_type(reference, inputs), inputs, strict=True):
        ulps = (rounded - given).abs() / (given.abs() * torch.finfo(torch.float32).eps)
        assert 0.2 < (ulps > 0).float().mean() < 1.0
        assert ulps.max() <= 1.0
