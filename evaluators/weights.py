"""Other values for a module's weights, the same on both sides of a comparison.

The constructors of a reference and of a kernel draw the same weights, but many are plain (ones, zeros), and
all of them stay what they were. A kernel that leaves a bias out, or that has kept something made of its
weights, is right until they change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

RUNNING = ("running_mean", "running_var")
"""Buffers that training writes, as it does weights; others are constants that a kernel may know."""
CHANGED_SHARE, ALWAYS_CHANGED = 1 / 8, 64
"""Of the elements of a tensor, so that whoever looks at one of them misses the change; of so few, all."""
LARGEST_CHANGE = 0.25
"""Relative to the largest element; up alone, so that a variance stays positive."""


def weights_of(module: nn.Module) -> list[torch.Tensor]:
    """Floating-point parameters, and the buffers that are no constants."""
    buffers = (each for name, each in module.named_buffers() if name.rpartition(".")[2] in RUNNING)
    return [each for each in (*module.parameters(), *buffers) if each.is_floating_point()]


def forms_of(module: nn.Module) -> list[list[object]]:
    """Shape and dtype of each, for JSON."""
    return [[list(each.shape), str(each.dtype)] for each in weights_of(module)]


def change(module: nn.Module, seed: int, *, alike: bool) -> list[torch.Tensor]:
    """Changes the weights in place and returns what they were, for `restore`. The same for the same seed,
    device and forms where the two sides are `alike`; otherwise everything is halved, which rounds nothing."""
    import torch

    weights = weights_of(module)
    before = [each.detach().clone() for each in weights]
    with torch.no_grad():
        for number, each in enumerate(weights):
            if not alike:
                each.mul_(0.5)
                continue
            generator = torch.Generator(each.device).manual_seed(seed + number)
            wide = torch.promote_types(each.dtype, torch.float32)
            noise, chance = torch.rand(2, *each.shape, generator=generator, device=each.device, dtype=wide)
            noise[chance > (CHANGED_SHARE if each.numel() > ALWAYS_CHANGED else 1.0)] = 0
            largest = torch.where(each.isfinite(), each, 0).abs().amax().to(wide) if each.numel() else 0
            each.copy_(each + LARGEST_CHANGE * noise * (largest or 1.0))
    return before


def restore(module: nn.Module, before: list[torch.Tensor]) -> None:
    """The inverse of `change`."""
    import torch

    with torch.no_grad():
        for each, was in zip(weights_of(module), before, strict=True):
            each.copy_(was)
