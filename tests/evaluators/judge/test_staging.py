"""What is staged, and what a batch contains."""

from __future__ import annotations

import pytest
import torch

from evaluators.judge.staging import Staging
from evaluators.reference.answer import Draw
from evaluators.reference.running_reference import UnfitReference

CALLS = 3


def staging() -> Staging:
    made = Staging([torch.empty(2, 3), torch.empty(4).expand(2, 4)], CALLS, "cpu")
    for call in range(CALLS):
        made.place(call, [torch.full((2, 3), float(call)), torch.arange(4.0).expand(2, 4)])
    return made


def test_the_inputs_of_a_call_lie_in_its_place() -> None:
    made = staging()
    for call, (first, second) in enumerate(made.places):
        assert torch.equal(first, torch.full((2, 3), float(call)))
        assert second.stride() == (0, 1)
        assert torch.equal(second, torch.arange(4.0).expand(2, 4))


def test_inputs_of_other_strides_are_copied_all_the_same() -> None:
    made = staging()
    made.place(1, [torch.arange(6.0).view(3, 2).t(), torch.arange(4.0).expand(2, 4)])
    assert torch.equal(made.places[1][0], torch.arange(6.0).view(3, 2).t())


def test_inputs_of_another_shape_are_refused() -> None:
    with pytest.raises(UnfitReference, match="the shapes of its inputs change"):
        staging().place(0, [torch.empty(2, 4), torch.empty(2, 4)])


def test_a_batch_has_the_draws_that_were_staged() -> None:
    draws = [Draw(seed=call) for call in range(CALLS)]
    batch = staging().batch(CALLS, draws)
    assert (batch.calls, batch.draws) == (CALLS, tuple(draws))
    assert batch.first(2).draws == tuple(draws[:2])


def test_a_batch_has_a_seed_for_every_call_or_no_seeds() -> None:
    made = staging()
    assert made.batch(2).seeds == ()
    made.seeds = [7, 8]
    assert made.batch(2).seeds == (7, 8)
    assert made.batch(3).seeds == (), "nobody has drawn for the third"
