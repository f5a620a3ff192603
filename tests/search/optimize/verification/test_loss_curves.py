"""How far the gradients and the losses of a model may be from the original's."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from search.optimize.models.source import LoadedModel
from search.optimize.verification.launcher import TrainingPlan
from search.optimize.verification.loss_curves import OriginalCurve, memory_of, optimizer_of
from search.optimize.verification.record import LossCurves
from search.optimize.verification.yardstick import Yardstick, errors_by_name, results_of
from tests.search.optimize.example_models import loaded, rand

PLAN = TrainingPlan(steps=8, learning_rate=1e-2)


class Attending(nn.Module):
    """Attention, in which the gradient of the key's bias is zero up to rounding, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(self.query(x) @ self.key(x).mT / 4, -1)
        return (self.drop(shares @ self.value(x)) - 1).square().mean()


def attending(**fields: Any) -> LoadedModel:
    torch.manual_seed(1)
    return replace(loaded(Attending().train(), rand(4, 32, 16), backward=True), **fields)


def scaled(model: LoadedModel, name: str, factor: float) -> LoadedModel:
    """The model with a wrong gradient of one weight."""
    other = copy.deepcopy(model.module)
    other.get_parameter(name).register_hook(lambda grad: grad * factor)
    return replace(model, module=other)


def test_each_gradient_is_compared_on_its_own() -> None:
    model = attending()
    yardstick = Yardstick(model, 0)
    assert yardstick.exact and yardstick.check(results_of(model)).passes
    for name in ("query.weight", "value.bias"):
        found = yardstick.check(results_of(scaled(model, name, 1.0001)))
        assert not found.passes and found.where == f"the gradient of {name}"
        assert found.error == pytest.approx(1e-4, rel=0.05)


def test_gradients_that_a_step_has_left_do_not_count() -> None:
    model = attending()
    replace(model, optimizer=optimizer_of(model.module, PLAN)).run()
    fresh = replace(model, module=copy.deepcopy(model.module))
    fresh.module.zero_grad()
    wanted = results_of(fresh)
    for _ in range(2):
        found = results_of(model)
        assert all(torch.equal(found[name], each) for name, each in wanted.items()) and len(found) == len(
            wanted
        )


def test_a_gradient_that_should_be_zero_may_be_any_rounding_error() -> None:
    model = attending()
    yardstick = Yardstick(model, 0)
    name = "the gradient of key.bias"
    exact, eager = yardstick.exact[name], yardstick.eager[name]
    assert float((eager - exact).norm()) > 1e3 * float(exact.norm()), "it is nothing but rounding errors"
    assert yardstick.check({**results_of(model), name: -eager}).passes
    assert not yardstick.check({**results_of(model), name: torch.full_like(eager, 1e-3)}).passes


def test_a_missing_and_an_additional_gradient_are_infinitely_wrong() -> None:
    yardstick = Yardstick(model := attending(), 0)
    found = dict(results_of(model))
    more = yardstick.check({**found, "the gradient of another": torch.ones(2)})
    del found["the gradient of query.bias"]
    less = yardstick.check(found)
    assert (less.error, less.where) == (math.inf, "the gradient of query.bias")
    assert (more.error, more.where) == (math.inf, "the gradient of another")
    assert errors_by_name({"output 0": torch.ones(2)}, {"output 0": torch.ones(3)}) == {"output 0": math.inf}


def test_behind_random_numbers_rounding_differently_is_the_measure() -> None:
    model = attending()
    model.module.drop.p = 0.3
    yardstick = Yardstick(model, 0)
    assert not yardstick.exact and 0 < yardstick.rounding["the gradient of value.weight"] < 1e-5
    assert yardstick.check(results_of(model)).passes
    assert not yardstick.check(results_of(scaled(model, "value.weight", 1.001))).passes


def test_the_original_has_its_own_loss_curve_and_a_wrong_gradient_another() -> None:
    model = attending()
    before = {name: each.clone() for name, each in model.module.state_dict().items()}
    original = OriginalCurve([model], PLAN, Yardstick(model, 0).rounding)
    same = original.compare()
    assert same.passes and same.is_conclusive and max(same.differences) == 0
    assert same.original[-1] < 0.9 * same.original[0] and 0 < max(same.spread) < 1e-5
    assert all(torch.equal(each, before[name]) for name, each in model.module.state_dict().items())
    hook = model.module.value.weight.register_hook(lambda grad: 2 * grad)
    assert original.compare().passes, "AdamW does not see the scale of a gradient; one step does"
    hook.remove()
    model.module.value.weight.register_hook(lambda grad: grad.roll(1, 0))
    other = original.compare()
    assert other.differences[0] == 0 and not other.passes


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_step_of_training_changes_the_weights(optimizer: str) -> None:
    model = attending()
    made = optimizer_of(model.module, replace(PLAN, optimizer=optimizer, learning_rate=0.01))
    losses = [float(replace(model, optimizer=made).run()[0]) for _ in range(5)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    found = memory_of(replace(model, optimizer=made))
    assert found.keys() == {"saved"} and found["saved"] > 4 * 32 * 32 * 4, "the shares are saved"


def curves(**changed: Any) -> LossCurves:
    made = {"original": [4.0, 2.0], "with_kernels": [4.0, 2.1], "spread": [0.0, 0.01], "allowed": [1e-5, 0.2]}
    return LossCurves(optimizer="sgd", learning_rate=0.1, **{**made, **changed})


def test_curves_must_be_close_finite_and_conclusive() -> None:
    assert curves().passes and not curves(with_kernels=[4.0, 2.3]).passes
    assert not curves(with_kernels=[4.0, math.nan]).passes
    assert not curves(with_kernels=[4.1, 2.0]).passes, "the first step has not yet been trained"
    assert curves(allowed=[0.0, 0.15]).is_conclusive and not curves(allowed=[0.0, 0.5]).is_conclusive
