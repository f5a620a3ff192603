"""Which calls could be one kernel, and which could not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from search.optimize.models.source import LoadedModel
from search.optimize.profiling.chains import find_chains
from search.optimize.profiling.recording import record
from tests.search.optimize.example_models import Function, Mlp, loaded, rand


def names(model: LoadedModel) -> list[str]:
    run = record(model)
    return [" ".join(run.calls[place].name for place in chain.places) for chain in find_chains(run)]


def of(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    return names(loaded(Function(function), *inputs))


def test_an_mlp_and_its_first_half_are_chains() -> None:
    assert names(loaded(Mlp(), rand(4, 8))) == ["addmm gelu", "addmm gelu addmm"]


def test_a_chain_moves_its_inputs_and_outputs() -> None:
    run = record(loaded(Mlp(), rand(4, 8)))
    half, whole = find_chains(run)
    weights = 4 * (8 * 32 + 32), 4 * (32 * 8 + 8)
    assert half.bytes == 4 * 4 * 8 + weights[0] + 4 * 4 * 32
    assert whole.bytes == 4 * 4 * 8 + sum(weights) + 4 * 4 * 8


def test_a_value_that_is_read_twice_ends_a_chain() -> None:
    assert names(loaded(Mlp(twice=True), rand(4, 8))) == ["addmm gelu"]

    def first_layer_is_kept(x: torch.Tensor) -> Any:
        y = x @ x
        return y.relu() @ x, y.sum(0)

    assert of(first_layer_is_kept, rand(4, 4)) == ["relu mm"]


def test_a_hand_written_layer_norm_is_a_chain() -> None:
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * weight

    assert of(norm, rand(4, 8), rand(8)) == ["mean sub mul mean add rsqrt mul mul"]


def test_a_softmax_with_a_mask_is_a_chain() -> None:
    def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) * mask

    assert of(masked, rand(4, 8), rand(4, 8)) == ["_softmax mul"]


def test_views_do_not_split_a_chain() -> None:
    assert of(lambda x: x.exp().view(2, 16).t().relu().sum(0), rand(4, 8)) == ["exp relu sum"]


def test_the_two_matmuls_of_a_gated_mlp_are_in_one_chain() -> None:
    def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(x @ gate) * (x @ up)

    assert sorted(of(gated, rand(4, 8), rand(8, 16), rand(8, 16))) == ["mm silu mm mul", "silu mul"]


def test_two_convolutions_are_not_one_chain() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    assert names(loaded(model, rand(1, 3, 8, 8))) == ["convolution relu"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.exp(),
        lambda x: (x.exp().view(-1), x.relu()),  # neither call reads the other
        lambda x: (x @ x) @ x,
        lambda x: x.exp().sort(),
    ],
)
def test_calls_that_form_no_chain(function: Callable[..., Any]) -> None:
    assert of(function, rand(4, 4)) == []


def test_an_output_that_a_call_reads_too_is_no_intermediate() -> None:
    def both(x: torch.Tensor) -> Any:
        y = x.exp()
        return y.view(-1), y.relu()

    assert of(both, rand(4, 4)) == []


def test_what_the_backward_pass_reads_is_not_an_intermediate() -> None:
    """Gelu's input is kept for its gradient, so that the forward pass has no chain."""
    found = names(loaded(Mlp(), rand(4, 8), backward=True))
    assert "addmm gelu" not in found
    assert "mm gelu_backward" in found
