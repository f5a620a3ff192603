"""What each kernel is worth in the model, eagerly and as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from search.optimize.extraction.traced_model import trace_model
from search.optimize.installation.package import set_way
from search.optimize.models.source import LoadedModel
from search.optimize.verification.ablation import ablation_speedups
from tests.search.optimize.example_models import Mlp, loaded, rand
from tests.search.optimize.installation.test_package import plan, written


def with_kernels(folder: Path, device: str) -> tuple[Any, LoadedModel, str]:
    """A model's package, the model with its kernels, and the name of one kernel."""
    made = trace_model(replace(loaded(Mlp().to(device).eval(), rand(4, 8).to(device)), device=device))
    package, _ = written(folder, made)
    package.load(made.model.module)
    return package, made.model, next(iter(plan(made.model.module).kernels))


def slowed(run: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, delayed by 20 ms."""

    def slow(*inputs: torch.Tensor) -> Any:
        time.sleep(0.02)
        return run(*inputs)

    return slow


@pytest.mark.slow
@torch.no_grad()
def test_host_work_counts_except_in_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, a stub graph runs the recorded operators."""
    package, model, name = with_kernels(tmp_path, "cpu")
    kernel = plan(model.module).kernels[name]
    kernel.run = slowed(kernel.run)
    found = ablation_speedups([model], 6, print, as_graph=False)
    assert {*found} == {*plan(model.module).kernels} and kernel.on
    assert found[name][0] < 0.5 and found[name][2] < 1

    class Recorded:
        def __init__(self, forward: Callable[..., Any], tensors: Any, weights: Any) -> None:
            self.had_kernel, self.outputs = kernel.on, forward(*tensors)

        def __call__(self, *tensors: torch.Tensor) -> Any:
            time.sleep(0.01 if self.had_kernel else 0.03)  # far above a busy machine's delays
            return self.outputs

        def is_stale(self) -> bool:
            return False

    monkeypatch.setattr(package.runtime, "ForwardGraph", Recorded)
    found = ablation_speedups([model], 6, print, as_graph=True)
    assert found[name][1] > 1, "only recorded work counts, not the recording"
    assert not plan(model.module).as_graph


@torch.no_grad()
def test_a_kernel_that_cannot_be_recorded_has_no_speedup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, model, _ = with_kernels(tmp_path, "cpu")

    class Refused:
        def __init__(self, *given: Any) -> None:
            raise package.runtime.NoGraphError("it waits for the GPU")

    monkeypatch.setattr(package.runtime, "ForwardGraph", Refused)
    said: list[str] = []
    assert ablation_speedups([model], 6, said.append, as_graph=True) == {}
    failed = [line for line in said if not line.startswith("kernel 1 of 1 in its place")]
    assert failed and all("not compared in its place: NoGraphError: it waits" in line for line in failed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_each_way_of_running_has_its_own_kernels(tmp_path: Path) -> None:
    package, model, name = with_kernels(tmp_path, "cuda")
    kernel = plan(model.module).kernels[name]
    kernel.run = slowed(kernel.run)
    eager = ablation_speedups([model], 6, print, as_graph=False)[name]
    assert eager[0] < 0.5 and eager[2] < 1
    graph = ablation_speedups([model], 6, print, as_graph=True)[name]
    assert graph[1] > 0.3, "the host work of the recording is not in the graph"
    set_way(tmp_path, as_graph=False, in_compiled=None, slower={"eager": [name], "graph": []})
    package.load(model.module)
    fresh = plan(model.module).kernels[name]
    model.run()
    assert fresh.calls == 0, "without a graph its operators run"
    package.load(model.module, as_graph=True)
    fresh = plan(model.module).kernels[name]
    model.run()
    assert fresh.calls > 0, "it is in the graph"
