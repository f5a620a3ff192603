"""What the operators say of integer inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from evaluators.reference.inputs.special_integers import IntegerUses, integer_uses


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def uses_of(function: Callable[..., Any], *inputs: Any) -> IntegerUses:
    return integer_uses(Function(function), list(inputs))


LOGITS, TARGETS = torch.randn(12, 5), torch.randint(5, (12,))
BYTES = torch.randint(0, 200, (8, 6), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("function", "inputs", "special"),
    [
        (functional.cross_entropy, (LOGITS, TARGETS), {1: {-100}}),
        (lambda x, y: functional.cross_entropy(x, y, ignore_index=2), (LOGITS, TARGETS), {1: {2}}),
        (functional.cross_entropy, (torch.randn(2, 5, 3, 4), torch.randint(5, (2, 3, 4))), {1: {-100}}),
        (lambda x, y: functional.nll_loss(x, y.view(-1)), (LOGITS, TARGETS.view(3, 4)), {1: {-100}}),
        (lambda x, y: functional.cross_entropy(x, y.int().long()), (LOGITS, TARGETS), {1: {-100}}),
        (lambda x, y: functional.cross_entropy(x, y + 1), (LOGITS, TARGETS % 4), {}),
        (lambda x, y: x * (y != 7)[:, None], (LOGITS, TARGETS), {1: {7}}),
        (lambda x: x == 300, (BYTES,), {}),
        (functional.cross_entropy, (LOGITS, LOGITS.softmax(1)), {}),
    ],
)
def test_special_values(function: Any, inputs: tuple[Any, ...], special: dict[int, set[int]]) -> None:
    assert uses_of(function, *inputs).special == special


@pytest.mark.parametrize(
    ("function", "calculated"),
    [
        (lambda x: x.float() @ torch.ones(6, 2), True),
        (lambda x: x.int().t() @ x.int(), True),
        (lambda x: x.sum(0).cumsum(0), True),
        (lambda x: x.amax(1) > 3, True),
        (lambda x: torch.ones(300)[x.long()], False),
        (lambda x: torch.ones(300).gather(0, x[0].long() + 1), False),
        (lambda x: functional.embedding(x.int(), torch.ones(300, 2)), False),
        (lambda x: torch.zeros(300).index_add(0, x[0].int(), torch.ones(6)), False),
        (lambda x: torch.arange(int(x.max())), False),
        (lambda x: (x >> 4) & 15, True),
        (lambda x: x / 255, True),
        (lambda x: x // (x + 1), False),
        (lambda x: torch.div(x, x + 1, rounding_mode="floor"), False),
    ],
)
def test_inputs_that_are_only_calculated_with(function: Any, calculated: bool) -> None:
    assert (uses_of(function, BYTES).calculated == {0}) is calculated


def test_offsets_and_padding_of_bags() -> None:
    def bags(index: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(index, torch.ones(9, 2), offsets, padding_idx=4)

    found = uses_of(bags, torch.randint(9, (10,)), torch.tensor([0, 3, 5]))
    assert (found.special, found.offsets, found.calculated) == ({0: {4}}, {1}, set())
    (empty,) = (each for each in found.distributions() if each.name == "empty bags")
    index, offsets = torch.arange(10), torch.tensor([0, 3, 5, 8])
    same, moved = empty.applied([index, offsets])
    assert same is index
    assert moved[:2].tolist() == [0, 0] and moved[-1] == 8 and (moved.diff() >= 0).all()


def test_some_elements_become_special_or_all() -> None:
    some, every = uses_of(lambda x: (x != 3) & (x != 99), TARGETS).distributions()
    x = torch.full((40,), 7)
    (found,) = some.applied([x])
    assert {*found.tolist()} == {3, 7, 99} and 20 <= (found == 7).sum() <= 30
    assert every.applied([x])[0].unique().numel() == 1


def test_without_integers_or_if_the_module_fails_nothing_is_known(caplog: pytest.LogCaptureFixture) -> None:
    assert uses_of(lambda x: x, LOGITS) == IntegerUses()

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("x")

    with caplog.at_level(logging.WARNING):
        assert uses_of(fails, TARGETS) == IntegerUses()
    assert "KeyError" in caplog.text
