"""A model's forward as a graph: its calls and tensors, and what cannot be captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from evaluators.base.usage_error import UsageError
from search.optimize.extraction.graph import run
from tests.search.optimize.example_models import Mlp, rand
from tests.search.optimize.extraction.traced_models import traced


class Tied(nn.Module):
    """One weight with two names, a buffer, and plain tensors in an attribute and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(4))
        self.loose, self.listed = torch.full((4,), 3.0), [torch.full((4,), 2.0)]

    def forward(self, x: torch.Tensor) -> Any:
        return {"out": self.second(self.first(x)) + self.shift * self.loose * self.listed[0], "kept": 3}


def test_the_graph_has_the_calls_and_the_models_outputs() -> None:
    made = traced(Mlp(twice=True), rand(4, 8))
    assert made.graph.operators == [call.operator for call in made.run.calls]
    found = run(made.graph, made.model, made.graph.leaves)
    for node, wanted in zip(made.graph.leaves, made.model.run(), strict=True):
        assert torch.equal(found[node], wanted)


def test_weights_have_their_names_and_only_other_tensors_are_constants() -> None:
    made = traced(Tied(), rand(2, 4))
    read = {str(node.target) for node in made.graph.graph.nodes if node.op == "get_attr"}
    assert read == {"first.weight", "shift", "loose", "_constant_0"}
    assert [each.tolist() for each in made.graph.constants.values()] == [[2.0] * 4]
    assert made.graph.output == ["dict", ["out", ["tensor", 0]], ["kept", 3]]


def test_in_place_calls_keep_their_order() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        before = y + 1
        y.add_(5)
        return before * y

    made = traced(model, rand(3))
    [node] = made.graph.leaves
    assert torch.equal(run(made.graph, made.model, [node])[node], model(rand(3)))


def test_a_number_that_the_model_reads_is_recorded() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if bool((x > 0).all()) else x

    made = traced(model, rand(3) + 1)
    assert list(made.graph.reads.values()) == [True]


def test_an_alias_of_a_weight_becomes_a_view() -> None:
    layer = nn.Linear(4, 4)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.layer.weight.data

    made = traced(Model(), rand(2, 4))
    assert not made.graph.constants, "no weight is copied"


def test_an_inferred_size_is_that_of_the_run() -> None:
    made = traced(lambda x: x.view(3, -1).exp(), rand(2, 6))
    assert made.graph.calls[0].args[1] == [3, 4]


def test_an_expand_names_the_sizes_that_it_changes() -> None:
    made = traced(lambda x: x.expand(4, 2, 3) * x.expand(1, 2, 3) + x.expand(2, 3), rand(1, 3))
    named = [node.args[1] for node in made.graph.calls if "expand" in str(node.target)]
    assert named == [[4, 2, -1], [1, 2, -1], [2, -1]]
    assert torch.equal(
        *(run(made.graph, made.model, made.graph.leaves)[made.graph.leaves[0]], *made.model.run())
    )


def test_a_computation_that_bypasses_the_dispatcher_is_reported() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy((x * 2).numpy()) + 1

    with pytest.raises(UsageError, match="bypassed the dispatcher"):
        traced(model, rand(3))


def test_a_forward_that_cannot_be_restarted_is_reported() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2 if bool((x > 0).all()) else x

    with pytest.raises(UsageError, match="changes its inputs or weights, and reads a number"):
        traced(model, rand(3))


def test_shapes_that_depend_on_values_are_reported() -> None:
    with pytest.raises(
        UsageError, match=r"shape of aten\.nonzero\.default depends on the values in a tensor"
    ):
        traced(lambda x: x.nonzero() * 2, rand(3))
    with pytest.raises(UsageError, match=r"aten\.index\.Tensor depends on the values in a tensor"):
        traced(lambda x: x[x > 0] * 2, rand(3))
    assert traced(lambda x: x[torch.tensor([0, 2])] * 2, rand(3)).graph.calls


def test_two_runs_with_different_calls_are_reported() -> None:
    calls = []

    def model(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2 if len(calls) % 2 else x + 2

    with pytest.raises(UsageError, match="two runs call different operators"):
        traced(model, rand(3))
