"""Forwards as CUDA graphs keep the outputs when inputs, weights and models change."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from search.optimize.extraction.traced_model import TracedModel, trace_model
from search.optimize.installation.graphs import ForwardGraph
from search.optimize.installation.package import set_way
from tests.search.optimize.example_models import Mlp, loaded, rand
from tests.search.optimize.installation.test_package import Blocks, plan, same, written

WORDS = "without a CUDA graph"


class Layers(nn.Module):
    """A model that reads no number from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList([Mlp(), Mlp()]), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = x + block(self.norm(x))
        return {"out": x, "last": x[0]}


def on_gpu(model: nn.Module) -> TracedModel:
    return trace_model(replace(loaded(model.cuda().eval(), rand(4, 8).cuda()), device="cuda"))


def graphs(model: nn.Module) -> list[Any]:
    return [each for shape in plan(model).shapes for each in shape.graphs.values()]


@torch.no_grad()
def test_on_a_cpu_no_graph_is_recorded(tmp_path: Path) -> None:
    made = trace_model(loaded(Blocks().eval(), rand(4, 8)))
    model, wanted = made.model.module, made.model.module(rand(4, 8))
    optimized, _ = written(tmp_path, made)
    set_way(tmp_path, as_graph=True, in_compiled=None)
    optimized.load(model)
    assert same(model(rand(4, 8)), wanted) and not plan(model).as_graph and not graphs(model)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_replays_give_the_models_outputs(tmp_path: Path) -> None:
    made = on_gpu(Layers())
    model = made.model.module
    plain = copy.deepcopy(model)
    optimized, _ = written(tmp_path, made)
    set_way(tmp_path, as_graph=True, in_compiled=None)
    optimized.load(model)
    inputs = [torch.randn(4, 8, device="cuda") for _ in range(4)]
    found = [model(each) for each in inputs]
    assert len(graphs(model)) == 1 and plan(model).as_graph
    assert all(same(one, plain(each)) for one, each in zip(found, inputs, strict=True)), "results are copies"
    calls = {name: kernel.calls for name, kernel in plan(model).kernels.items()}
    model(inputs[0])
    assert calls == {name: kernel.calls for name, kernel in plan(model).kernels.items()}, "it is replayed"
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        other = model(inputs[1])
    torch.cuda.synchronize()
    assert same(other, plain(inputs[1]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_weights_are_the_models_own(tmp_path: Path) -> None:
    made = on_gpu(Layers())
    model = made.model.module
    optimized, _ = written(tmp_path, made)
    set_way(tmp_path, as_graph=True, in_compiled=None)
    optimized.load(model)
    x = torch.randn(4, 8, device="cuda")
    model(x)
    other = copy.deepcopy(model)
    model.norm.weight.fill_(3.0)  # type: ignore[union-attr, operator]
    other.norm.weight = nn.Parameter(torch.full((8,), 2.0, device="cuda"))
    found = model(x), other(x)
    assert [len(shape.graphs) for shape in plan(model).shapes] == [2]
    for each, own in zip((model, other), found, strict=True):
        optimized.unload(each)
        assert same(own, each(x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_a_forward_that_cannot_be_recorded_runs_without_a_graph(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = on_gpu(Blocks())
    model, x = made.model.module, torch.randn(4, 8, device="cuda")
    wanted = model(x)
    optimized, _ = written(tmp_path, made)
    optimized.load(model, as_graph=True)
    assert same(model(x), wanted) and same(model(x), wanted)
    assert sum(WORDS in each.message for each in caplog.records) == 1
    assert not plan(model).fallbacks
    assert torch.randn(4, device="cuda").isfinite().all(), "random numbers can be drawn again"
    big = torch.full((4, 8), 1e9, device="cuda")
    own = model(big)
    assert plan(model).fallbacks, "it reads a different number"
    optimized.unload(model)
    assert same(own, model(big))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_cublas_workspaces_belong_to_the_graph() -> None:
    """Clearing PyTorch's cuBLAS workspaces, or ending another graph, does not free them."""
    left, right = (torch.randn(2, 256, 65536, device="cuda") for _ in range(2))
    made = [ForwardGraph(lambda x: [x[0] @ x[1].T], [left], []) for _ in range(2)]
    wanted = right[0] @ right[1].T
    made.pop(0)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    beside = [torch.full((1 << 22,), torch.nan, device="cuda") for _ in range(16)]
    [found] = made[0](right)
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-1)
    assert all(bool(each.isnan().all()) for each in beside)
