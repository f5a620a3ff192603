"""Models with known calls, and machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from evaluators.reference.cost.machine_peaks import MachinePeaks
from search.optimize.models.source import LoadedModel
from search.optimize.profiling.timing import ProfileTiming

PEAKS = MachinePeaks(
    device="cpu", bytes_per_s=1e9, cache_bytes=2**20, operations_per_s={"float32": 1e10, "float64": 5e9}
)
"""A machine with 1 GB/s and 10 billion operations per second."""
FAST = replace(PEAKS, bytes_per_s=1e15, operations_per_s={"float32": 1e18})
"""A machine on which every call could be much faster."""


def equally_long(model: LoadedModel, operators: Sequence[str], **how: Any) -> ProfileTiming:
    """Stub of a measurement: every call takes 1 ms."""
    each = [1.0] * len(operators)
    return ProfileTiming(
        wall_ms=sum(each), call_ms=each, kernels=0, quickest_ms=0.01, other_ms=0.0, alike=1.0
    )


class Mlp(nn.Module):
    """linear -> gelu -> linear; `twice`: the result of gelu is read again at the end."""

    def __init__(self, *, twice: bool = False) -> None:
        super().__init__()
        self.fc, self.proj, self.twice = nn.Linear(8, 32), nn.Linear(32, 8), twice

    def forward(self, x: torch.Tensor) -> Any:
        inner = torch.nn.functional.gelu(self.fc(x))
        return (self.proj(inner), inner) if self.twice else self.proj(inner)


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def loaded(module: nn.Module, *inputs: torch.Tensor, backward: bool = False) -> LoadedModel:
    return LoadedModel(
        name="tiny", module=module, args=inputs, device="cpu", dtype="float32", backward=backward
    )


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))
