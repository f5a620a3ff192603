"""PyTorch's own computation of the library's families."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernel_library.catalogue.library import FolderLibrary
from kernel_library.catalogue.originals import ORIGINALS, compiled, needed, original_of

FIRST = {
    "softmax": (3, 8),
    "sum": (3, 8),
    "matmul": (3, 8),
    "layernorm": (2, 3, 8),
    "rmsnorm": (2, 3, 8),
    "residual_rmsnorm": (3, 8),
    "residual_layernorm": (3, 8),
    "router": (3, 16),
    "attention": (2, 4, 6, 8),
    "sliding_window": (2, 4, 6, 8),
    "decode_attention": (2, 4, 1, 8),
    "int4_linear": (3, 256),
    "cross_entropy": (3, 8),
    "linear_cross_entropy": (3, 8),
    "groupnorm_silu": (2, 32, 3, 3),
    "qk_norm_rotary": (2, 6, 4, 8),
    "rotary": (2, 4, 6, 8),
    "swiglu": (2, 3, 8),
    "conv2d": (2, 3, 9, 9),
    "conv2d_relu_maxpool": (2, 3, 9, 9),
}


def test_every_family_has_an_original() -> None:
    assert set(ORIGINALS) == set(FIRST)
    functions = [each for each in FolderLibrary("memory://no-root").entries() if each.function]
    assert [each.id for each in functions if original_of(each.op, each) is None] == []


@pytest.mark.parametrize("op", FIRST)
def test_a_call_is_completed_from_any_number_of_its_first_tensors(op: str) -> None:
    torch.manual_seed(0)
    original, x = ORIGINALS[op], torch.randn(FIRST[op])
    whole = original.arguments(x)
    tensors = [each for each in whole if isinstance(each, torch.Tensor)]
    assert len(tensors) == original.tensors and whole[0] is x
    expected = first_of(original.function(*whole))
    assert expected.isfinite().all() and expected.dtype == x.dtype
    for number in range(1, original.tensors + 1):
        again = original.arguments(*tensors[:number])
        assert [each is mine for each, mine in zip(again, tensors, strict=False)][:number] == [True] * number
        assert first_of(original.function(*again)).shape == expected.shape


def first_of(result: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("op", FIRST)
def test_the_inputs_that_need_gradients_in_training(op: str) -> None:
    original, x = ORIGINALS[op], torch.randn(FIRST[op])
    tensors = [each for each in original.call([x]) if isinstance(each, torch.Tensor)]
    assert not any(each.requires_grad for each in tensors)
    given = original.call([x], needed([x]))
    learns = {place for place, each in enumerate(given) if getattr(each, "requires_grad", False)}
    whole = {place for place, each in enumerate(given) if getattr(each, "is_floating_point", bool)()}
    angles = {"rotary": {1, 2}, "qk_norm_rotary": {4, 5}}
    assert learns == whole - angles.get(op, set())
    assert all(each.is_leaf for each in tensors)
    weight = torch.randn(8, requires_grad=True)
    if op == "rmsnorm":
        assert [each.requires_grad for each in original.call([x, weight], needed([x, weight]))] == [
            False,
            True,
        ]


def test_other_shapes_of_the_tensors_that_are_given() -> None:
    x, weight = torch.randn(2, 3, 8), torch.randn(3, 8)
    layernorm = ORIGINALS["layernorm"]
    whole = layernorm.arguments(x, weight, weight)
    torch.testing.assert_close(layernorm.function(*whole), functional.layer_norm(x, (3, 8), weight, weight))
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    expected = functional.scaled_dot_product_attention(q, *[k.repeat_interleave(2, 1)] * 2, is_causal=True)
    torch.testing.assert_close(ORIGINALS["attention"].function(q, k, k), expected)
    conv = ORIGINALS["conv2d"].arguments(torch.randn(1, 3, 9, 9), torch.randn(5, 3, 7, 7))
    assert ORIGINALS["conv2d"].function(*conv).shape == (1, 5, 9, 9)


@pytest.mark.slow
def test_compiled_code_is_separate_for_each_call() -> None:
    """Otherwise the ninth shape of a family would reach torch's limit of recompilations."""
    made = [compiled(ORIGINALS["softmax"]) for _ in range(2)]
    one, other = (each._torchdynamo_orig_callable.__code__ for each in made)  # type: ignore[attr-defined]
    assert one is not other and one is not ORIGINALS["softmax"].function.__code__
