"""From a model's profile to its kernels, for several kinds of models and kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from search.optimize.extraction.problems import extract
from search.optimize.extraction.record import ExtractedProblem
from search.optimize.extraction.traced_model import trace_model
from search.optimize.installation.package import load_package, write_package
from search.optimize.installation.placement import assign_places
from search.optimize.models.source import LoadedModel
from search.optimize.profiling import profile as profiling
from search.optimize.profiling.profile import profile_of
from tests.search.optimize.example_models import FAST, Function, equally_long, loaded, rand
from tests.search.optimize.installation.test_package import kernels_of, plan
from tests.search.optimize.networks import (
    Attention,
    Decoder,
    Denoiser,
    Encoder,
    GatedMlp,
    Images,
    RmsNorm,
    rotated,
)

Chosen = Callable[[Sequence[ExtractedProblem]], Sequence[ExtractedProblem]]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All calls take the same time and could be much faster."""
    monkeypatch.setattr(profiling, "peaks_of", lambda device, cache: FAST)
    monkeypatch.setattr(profiling, "measure", equally_long)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small calls, which on a busy machine would wait for a second core each
    yield
    torch.set_num_threads(threads)


def installed(models: Sequence[LoadedModel], folder: Path, chosen: Chosen = list) -> dict[str, int]:
    """Installs the problems' references as kernels and compares the outputs; returns each kernel's calls by
    target."""
    profile = profile_of(models, entries=[], warmup=0, iterations=1, say=lambda line: None)
    traced_models = [*map(trace_model, models)]
    problems = chosen(extract(profile, traced_models, folder, most=50, gain=1e-4).problems)
    kernels = kernels_of(folder, [*problems])
    write_package(
        folder,
        traced_models,
        kernels,
        assign_places({each.name: each.time_ms for each in problems}, problems),
    )
    wanted = [[each.clone() for each in model.run()] for model in models]
    module = load_package(folder).load(models[0].module)
    for model, own in zip(models, wanted, strict=True):
        assert all(torch.equal(*pair) for pair in zip(model.run(), own, strict=True)), model.title
    assert not plan(module).fallbacks
    calls = {name: kernel.calls for name, kernel in plan(module).kernels.items()}
    return {each.target: calls[each.name] for each in problems if each.name in calls}


IDS = torch.arange(6)[None] * 3 % 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "inputs", "targets"),
    [
        (
            Denoiser,
            (rand(1, 4, 8, 8), torch.tensor([7.0]), rand(1, 5, 16)),
            ("native_group_norm + silu", "upsample_nearest2d + cat", "_scaled_dot_product"),
        ),
        (
            Images,
            (rand(1, 3, 8, 8),),
            ("native_batch_norm + relu", "max_pool2d_with_indices"),
        ),
        (Encoder, (IDS,), ("add.Tensor + native_layer_norm", "addmm + gelu")),
        (Decoder, (IDS,), ("mean.dim + add.Tensor + rsqrt", "neg + cat", "silu")),
    ],
)
def test_a_model_goes_from_its_profile_to_its_kernels(
    module: type[nn.Module], inputs: Sequence[torch.Tensor], targets: Sequence[str], tmp_path: Path
) -> None:
    """Also with a batch of two, which gets a separate forward."""
    torch.manual_seed(0)
    one = loaded(module().eval(), *inputs)
    two = replace(one, args=[each.repeat(2, *[1] * (each.dim() - 1)) for each in inputs])
    models = [replace(one, shape="one", weight=0.5), replace(two, shape="two", weight=0.5)]
    calls = installed(models, tmp_path)
    assert all(calls.values())
    for target in targets:
        assert any(target in each for each in calls), f"{target} is in none of {[*calls]}"


TYPES: dict[str, tuple[Callable[[], nn.Module], Sequence[torch.Tensor], str]] = {
    "matmul": (lambda: Function(torch.matmul), (rand(4, 8), rand(8, 6)), "mm"),
    "softmax": (lambda: Function(lambda x: torch.softmax(x, -1)), (rand(4, 8),), "_softmax"),
    "layer norm": (lambda: nn.LayerNorm(8), (rand(4, 8),), "native_layer_norm"),
    "RMS norm": (
        lambda: RmsNorm(8),
        (rand(4, 8),),
        "mean.dim + add.Tensor + rsqrt + mul.Tensor + mul.Tensor",
    ),
    "attention": (
        lambda: Attention(causal=True),
        (rand(2, 6, 16),),
        "_scaled_dot_product_flash_attention_for_cpu",
    ),
    "fused MLP": (GatedMlp, (rand(4, 16),), "mm + silu + mm + mul.Tensor"),
    "cross entropy": (
        lambda: Function(functional.cross_entropy),
        (rand(4, 8), torch.tensor([1, 0, 7, 3])),
        "_log_softmax + nll_loss_forward",
    ),
    "rotary": (
        lambda: Function(rotated),
        (rand(2, 4, 6, 8), rand(6, 8), rand(6, 8) + 1),
        "mul.Tensor + neg + cat + mul.Tensor + add.Tensor",
    ),
    "reduction": (lambda: Function(lambda x: x.sum(-1)), (rand(4, 8),), "sum.dim_IntList"),
}


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_of_kernel_is_a_problem_that_is_installed(kind: str, tmp_path: Path) -> None:
    make, inputs, wanted = TYPES[kind]

    def of_the_type(problems: Sequence[ExtractedProblem]) -> list[ExtractedProblem]:
        return [each for each in problems if wanted in each.target]

    calls = installed([loaded(make().eval(), *inputs)], tmp_path, of_the_type)
    assert calls and math.prod(calls.values()) > 0, f"no kernel of {wanted}"
