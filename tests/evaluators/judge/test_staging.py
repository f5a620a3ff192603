"""What is staged, and what a batch contains."""

from __future__ import annotations

import pytest
import torch

from evaluators.judge.staging import Staging
from evaluators.reference.answer import Draw
from evaluators.reference.running_reference import UnfitReference
from evaluators.runner.shared_buffers import ALIGNMENT, GUARD

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


def test_nan_lies_around_inputs_and_in_their_gaps() -> None:
    wide = torch.arange(20.0).view(4, 5)
    made = Staging([torch.empty(4, 5), wide[:, ::2]], 1, "cpu")
    made.place(0, [wide, wide[:, ::2]])
    first, second = made.places[0]
    assert torch.equal(first, wide) and torch.equal(second, wide[:, ::2])
    assert second.as_strided((4, 2), (5, 2), second.storage_offset() + 1).isnan().all(), "the columns between"
    written = made.memory != GUARD
    places = [each.data_ptr() - made.memory.data_ptr() for each in (first, second)]
    ends = [places[0] + first.nbytes, places[1] + 4 * (3 * 5 + 4 + 1)]
    for start, end in ((0, places[0]), (ends[0], places[1]), (ends[1], len(made.memory))):
        assert end - start >= ALIGNMENT
        assert not written[start:end].any()
        assert made.memory[start : start + 8].view(torch.float32).isnan().all()
