"""Recorded calls: arguments, counts, call sites, and which call reads what."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from search.optimize.profiling.recording import OperatorKind, RecordedCall, RecordedRun, record
from tests.search.optimize.example_models import Function, Mlp, loaded, rand


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mlp() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def called(run: RecordedRun, name: str) -> list[RecordedCall]:
    return [call for call in run.calls if call.name == name]


def test_calls_have_their_sites_shapes_strides_and_counts() -> None:
    run = record(loaded(Blocks(), rand(4, 8)))
    sites = Counter((call.name, call.site) for call in run.calls if call.kind is not OperatorKind.VIEW)
    assert sites == {
        **{("addmm", f"blocks.{n}.{part}"): 1 for n in range(3) for part in ("fc", "proj")},
        **{("gelu", f"blocks.{n}"): 1 for n in range(3)},
        ("add", ""): 3,
    }
    first = called(run, "addmm")[0]
    assert first.arguments == "((T([32], f32), T([4, 8], f32), T([8, 32], f32, [1, 8]),), {})"
    assert first.operations == 2 * 4 * 8 * 32
    assert sum(first.reads.values()) == 4 * (32 + 4 * 8 + 8 * 32)
    assert list(first.writes.values()) == [4 * 4 * 32]
    assert (first.kind, first.dtype, first.backward) == (OperatorKind.CONTRACTION, "float32", False)


def test_backward_calls_belong_to_the_modules_of_their_forward() -> None:
    model = loaded(Blocks(), rand(4, 8), backward=True)
    run = record(model)
    [*gelus] = called(run, "gelu_backward")
    assert [call.site for call in gelus] == ["blocks.2", "blocks.1", "blocks.0"]
    assert all(call.backward for call in gelus)
    products = Counter(call.site for call in called(run, "mm"))
    # The first layer's input needs no gradient.
    assert products == {
        **{f"blocks.{n}.{part}": 2 for n in range(3) for part in ("fc", "proj")},
        "blocks.0.fc": 1,
    }
    assert all(each.grad is None for each in model.module.parameters())


def test_views_have_the_value_of_their_tensor() -> None:
    run = record(loaded(Function(lambda x: (x.exp().t().reshape(2, 16) * 2).sum()), rand(8, 4)))
    [exp], [transposed] = called(run, "exp"), called(run, "t")
    [copied] = [
        call for call in run.calls if call.kind is not OperatorKind.VIEW and call.name in ("clone", "copy_")
    ]
    assert transposed.kind is OperatorKind.VIEW and not transposed.writes
    assert set(exp.writes) == set(transposed.reads) == set(copied.reads)


def test_an_operator_in_place_makes_a_new_value() -> None:
    run = record(loaded(Function(lambda x: x.exp().mul_(2).sum()), rand(4)))
    [exp], [mul], [total] = called(run, "exp"), called(run, "mul_"), called(run, "sum")
    assert set(mul.reads) == set(exp.writes)
    assert set(total.reads) == set(mul.writes) != set(exp.writes)


def test_only_the_rows_read_from_a_table_count() -> None:
    table = nn.Embedding(1000, 16)
    [call] = called(record(loaded(table, torch.tensor([3, 5]))), "embedding")
    assert sorted(call.reads.values()) == [2 * 8, 2 * 16 * 4]


def test_slices_count_separately_and_a_tensor_counts_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2)
        return a * b + x.sum() * x.sum()

    run = record(loaded(Function(function), rand(64)))
    sizes = [sum(call.reads.values()) for call in called(run, "mul")]
    assert sizes == [64 * 4, 2 * 4]
    squared = record(loaded(Function(lambda x: x * x), rand(64)))
    assert [sum(call.reads.values()) for call in called(squared, "mul")] == [64 * 4]


def test_expanded_tensors_count_their_stored_bytes() -> None:
    run = record(loaded(Function(lambda x: x.expand(100, 8).sum()), rand(1, 8)))
    assert [sum(call.reads.values()) for call in called(run, "sum")] == [8 * 4]


def test_causal_attention_on_a_cpu_counts_half() -> None:
    def operations(causal: bool) -> int:
        def attend(q: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal)

        return sum(call.operations for call in record(loaded(Function(attend), rand(1, 2, 16, 8))).calls)

    assert operations(False) == 2 * 2 * 2 * 16 * 16 * 8
    assert operations(True) == operations(False) // 2


def test_a_call_with_inexpressible_arguments_is_recorded() -> None:
    run = record(loaded(Function(lambda x: (x * 1j).abs()), rand(4)))
    assert [(call.arguments, call.call) for call in called(run, "mul")] == [("", None)]


def test_repeating_pixels_is_memory_bound() -> None:
    run = record(loaded(nn.Upsample(scale_factor=2), rand(1, 2, 3, 3)))
    assert {call.kind for call in called(run, "upsample_nearest2d")} == {OperatorKind.LIGHT}


def test_the_backward_pass_knows_its_forward_calls() -> None:
    run = record(loaded(Blocks(), rand(4, 8), backward=True))
    assert [call.backward for call in run.calls] == [
        place >= run.forward_calls and call.name != "ones_like" for place, call in enumerate(run.calls)
    ]
    assert all(call.origin is None for call in run.forward.calls)
    for name, origin in (("gelu_backward", "gelu"), ("mm", "addmm")):
        own = [call for call in called(run, name) if call.origin is not None]
        assert own and all(run.calls[call.origin].name == origin for call in own if call.origin is not None)
        assert all(run.calls[call.origin].site == call.site for call in own if call.origin is not None)


def test_the_gradient_of_a_view_belongs_to_the_call_that_read_it() -> None:
    run = record(loaded(Function(lambda x: (x[:2].exp() * 3).sum()), rand(4).requires_grad_(), backward=True))
    [padded] = called(run, "slice_backward")
    assert padded.origin is not None and run.calls[padded.origin].name == "exp"
