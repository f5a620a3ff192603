"""Fragments of a graph: inputs, outputs and code, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from search.optimize.extraction.fragments import NoFragmentError, fragment_of
from search.optimize.extraction.readable import WORDS
from tests.search.optimize.example_models import Mlp, rand
from tests.search.optimize.extraction.traced_models import chain, places, traced


def test_a_kernel_gets_weights_as_the_model_stores_them() -> None:
    found = chain(traced(Mlp(), rand(2, 4, 8)), most=2)
    assert found.names == ("x", "weight", "bias")
    assert found.code(WORDS) == [
        "view = x.reshape([8, 8])",
        "t = weight.t()",
        "addmm = torch.addmm(bias, view, t)",
        "view2 = addmm.reshape([2, 4, 32])",
        "gelu = functional.gelu(view2)",
        "return gelu",
    ]
    assert "aten.addmm.default(bias, view, t)" in "\n".join(found.code({}))


def test_a_call_whose_first_result_is_read_is_a_function() -> None:
    made = traced(nn.LayerNorm(8), rand(4, 8))
    found = fragment_of(made.graph, made.run, places(made, "native_layer_norm"))
    assert found.code(WORDS)[0] == ("native_layer_norm = functional.layer_norm(x, [8], weight, bias, 1e-05)")
    assert found.code(WORDS)[-1] == "return native_layer_norm"
    assert found.code({})[-1] == "return native_layer_norm[0]"


def test_attention_is_written_as_scaled_dot_product_attention() -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    made = traced(model, *[rand(1, 2, 8, 4)] * 3)
    found = fragment_of(made.graph, made.run, places(made, "_scaled_dot_product_flash_attention_for_cpu"))
    assert "functional.scaled_dot_product_attention(x, x, x, is_causal=True)" in found.code(WORDS)[0]


def test_results_that_other_calls_read_are_outputs() -> None:
    def model(x: torch.Tensor) -> Any:
        y = x.exp()
        return y.sum(-1), y

    made = traced(model, rand(2, 3))
    found = fragment_of(made.graph, made.run, places(made, "exp", "sum"))
    assert len(found.outputs) == 2
    assert found.code(WORDS)[-1] == "return exp, sum2"


def test_a_change_of_internal_tensors_is_allowed() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu_()

    assert any("relu_" in line for line in chain(traced(model, rand(3))).code(WORDS))


def test_a_change_of_an_input_is_refused() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y.t()
        z.add_(1)
        return y.exp()

    made = traced(model, rand(3, 3))
    with pytest.raises(NoFragmentError, match="changes an input"):
        fragment_of(made.graph, made.run, places(made, "add_"))


def test_a_change_of_an_input_in_between_is_refused() -> None:
    def model(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        y = x * 2
        other.add_(1)
        return y.exp() * other

    made = traced(model, rand(3), rand(3))
    with pytest.raises(NoFragmentError, match="changes a tensor in between"):
        fragment_of(made.graph, made.run, places(made, "mul", "exp"))


def test_a_change_of_another_tensor_in_between_is_allowed() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y, other = x * 2, x + 1
        other.view(1, 3).mul_(3)
        return y.exp() + other

    made = traced(model, rand(3))
    without = places(made, "mul", "exp")
    assert fragment_of(made.graph, made.run, without).code(WORDS)
    with pytest.raises(NoFragmentError, match="changes a tensor in between"):
        fragment_of(made.graph, made.run, (*without, len(made.run.calls) - 1))


def test_a_change_of_a_tensor_in_a_list_is_detected() -> None:
    def model(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._foreach_add_([other, torch.zeros(1)], 1.0)
        return y.exp() * other

    made = traced(model, rand(3), rand(3))
    with pytest.raises(NoFragmentError, match="changes a tensor in between"):
        fragment_of(made.graph, made.run, (places(made, "mul")[0], len(made.run.calls) - 1))


def test_an_unsafe_view_aliases_its_input() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._unsafe_view(x * 2, [9]).add_(1)

    made = traced(model, rand(3, 3))
    with pytest.raises(NoFragmentError, match="changes an input"):
        fragment_of(made.graph, made.run, places(made, "add_"))


def test_a_part_that_is_read_early_is_refused() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return y.sin() + y.log()

    made = traced(model, rand(3))
    with pytest.raises(NoFragmentError, match="before its last call"):
        fragment_of(made.graph, made.run, places(made, "exp", "log"))


def test_a_matmul_that_depends_on_another_is_refused() -> None:
    with pytest.raises(NoFragmentError, match="needs all results of another"):
        chain(traced(Mlp(), rand(4, 8)))


def test_too_many_inputs_are_refused() -> None:
    made = traced(lambda *inputs: torch.cat(inputs) * 2, *[rand(3) + number for number in range(40)])
    with pytest.raises(NoFragmentError, match="it reads 40 tensors"):
        fragment_of(made.graph, made.run, places(made, "cat", "mul"))


def test_reading_a_number_is_refused() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x * float(x.sum())

    made = traced(model, rand(3))
    with pytest.raises(NoFragmentError, match="reads a number"):
        fragment_of(made.graph, made.run, places(made, "sum", "_local_scalar_dense"))
