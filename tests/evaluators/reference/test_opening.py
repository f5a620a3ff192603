"""What opening a reference costs, and that what it leaves for later is found later."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from evaluators.reference import reference_model
from evaluators.reference.accuracy import sampled_elements
from evaluators.reference.accuracy.comparison import Shift
from evaluators.reference.inputs.usable_distributions import open_distributions
from evaluators.reference.running_reference import UnfitReference
from evaluators.reference.validation import examine
from tests.evaluators.references import session_of


def matrix() -> torch.Tensor:
    return torch.randn(64, 128)


@pytest.mark.slow
def test_opening_takes_a_pass_of_eager_and_three_in_float64_a_distribution() -> None:
    own, double = 0, 0

    def softmax(x: torch.Tensor) -> torch.Tensor:
        nonlocal own, double
        own, double = own + (x.dtype == torch.float32), double + (x.dtype == torch.float64)
        return torch.softmax(x, -1)

    session = session_of(softmax, lambda: [matrix()])
    assert (own, double) == (2, 1), "whether it keeps state or draws numbers, and runs in float64"
    assert examine(session) == []
    tried = len(session.distributions) + 2  # the first of each far scales only tells that the second may be
    others = 2 + 2 * 3 + 1 + 1 + 2  # own inputs twice, eager's shifts, other inputs, without an input, halves
    assert len(session.distributions) == 19
    assert own - 2 <= tried + others
    assert double - 1 <= 3 * (tried + 2)


@pytest.mark.parametrize("room", [2.0**30, 0.0])
def test_eagers_shifts_are_measured_once_where_something_seems_wrong(
    room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_model.ReferenceModel, "_room", lambda self: room)
    measured: list[Any] = []

    def eager_shifts_of(*arguments: Any) -> list[Shift]:
        measured.append(arguments)
        return [Shift(eager_rms=1.0, eager_largest=1.0)]

    monkeypatch.setattr(reference_model, "eager_shifts_of", eager_shifts_of)
    session = session_of(torch.tanh, lambda: [matrix()])
    open_distributions(session)
    assert len(measured) == len(reference_model.NEAR_OWN), "for timed calls, before there is a kernel"

    def found(add: float) -> str:
        x = session.draw(session.seed_on("whole numbers"), "whole numbers")[0]
        return session.check_on([x.tanh() + add], "whole numbers").problem

    measured.clear()
    assert not found(0.0) and not measured
    assert not found(1e-3) and len(measured) == 1, "as far as eager may be off, a kernel may be"
    assert not found(1e-3) and found(100.0) and len(measured) == 1
    session.change_weights(session.full_change(), alike=True)
    _, answer = session.answer_on("sparse", complete=True)
    assert answer.shifts[0].eager_rms == 1.0 and answer.shifts[0].rms > 0


def test_shifts_of_a_large_output_are_those_of_the_elements_that_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampled_elements, "SPOT", {"cpu": 2**11})
    session = session_of(lambda x: x * 3, lambda: [matrix()])
    open_distributions(session)
    _, answer = session.answer_on("outlier")
    assert answer.places[0] is not None and answer.exact[0].numel() == 2**11
    largest = float(answer.exact[0].abs().max())
    assert 0 < answer.shifts[0].largest <= 2**-24 * largest * 1.001


def to_and_fro() -> Callable[[torch.Tensor], torch.Tensor]:
    signs = itertools.cycle([1, -1])
    return lambda x: x * next(signs)


def counting() -> Callable[[torch.Tensor], torch.Tensor]:
    calls = itertools.count()
    return lambda x: x + next(calls)


def counting_beside_a_dropout() -> Callable[[torch.Tensor], torch.Tensor]:
    calls = itertools.count()
    return lambda x: functional.dropout(x, 0.5, training=True) + next(calls)


@pytest.mark.parametrize("reference", [to_and_fro, counting, counting_beside_a_dropout])
def test_state_is_distinguished_from_random_numbers(reference: Callable[[], Callable[..., Any]]) -> None:
    with pytest.raises(UnfitReference, match="it keeps state"):
        session_of(reference(), lambda: [matrix()])
