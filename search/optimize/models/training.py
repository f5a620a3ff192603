"""A model in training: where its backward pass begins, what its loss is, and how a call is repeated."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

LOSS = "loss"


def ends_of(output: Any) -> list[torch.Tensor]:
    """The tensors at which the backward pass begins: the output's `loss` if it has one, otherwise all tensors
    with a gradient. Raises ValueError where there is none."""
    from search.optimize.models.templates import take_apart

    found: list[torch.Tensor] = []
    take_apart(output[LOSS] if isinstance(output, Mapping) and LOSS in output else output, found)
    ends = [each for each in found if each.requires_grad]
    if not ends:
        raise ValueError("no output has a gradient")
    return ends


def upstream_of(end: torch.Tensor) -> torch.Tensor:
    """The gradient with which the backward pass begins at a tensor: one for a single number, otherwise the
    same random numbers in every call. Gradients of one would vanish behind a layer norm."""
    import torch

    if end.dim() == 0:
        return torch.ones_like(end)
    return _normals(end.shape, end.dtype, end.device)


def loss_of(output: Any) -> torch.Tensor:
    """The number that training makes smaller: the model's loss if it returns one number, otherwise the mean
    squared distance of its outputs from random targets, which are the same in every call."""
    ends = ends_of(output)
    if len(ends) == 1 and ends[0].dim() == 0:
        return ends[0]
    wide = [each.float() if each.element_size() < 4 else each for each in ends]
    losses = [(each - _normals(each.shape, each.dtype, each.device)).square().mean() for each in wide]
    return functools.reduce(lambda one, other: one + other, losses)


@contextlib.contextmanager
def repeatable(module: nn.Module) -> Iterator[None]:
    """Within the block, random numbers begin at the same seed. Afterwards the generators and the module's
    buffers, which a forward in training may change, are as they were before."""
    import torch

    before = [(each, each.clone()) for each in module.buffers()]
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):
            torch.manual_seed(0)
            yield
    finally:
        with torch.no_grad():
            for buffer, values in before:
                buffer.copy_(values)


@functools.lru_cache(4)
def _normals(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Numbers that every floating dtype has, so that they are the same in float64."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():  # a recording must not see these calls
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        return drawn.to(torch.bfloat16).to(dtype=dtype, device=device)
