"""Other values for a module's weights, the same on both sides of a comparison.

The constructors of a reference and of a kernel draw the same weights, but many are plain (ones, zeros), and
all of them stay what they were. A kernel that leaves a bias out, or that has kept something made of its
weights, is right until they change.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

RUNNING = ("running_mean", "running_var")
"""Buffers that training writes, as it does weights; others are constants that a kernel may know."""
SHARE, FEWEST = 1 / 256, 8
"""Of the elements of a tensor that change when only some do; at least so many. Whoever looks at one element
misses such a change so often, and few enough are looked at in no time."""
TURNS = 3
"""Changes in which each tensor's turn comes once, at some places; so many are in every measurement. Two
tensors seldom have the same turn, so that whoever looks at a small one misses the change of a large one."""
EVERY = 3
"""Of so many pairs of timed blocks one comes after a change; another change comes after the last."""
EVERYWHERE, SOMEWHERE = (0.0, 0.25), (0.5, 1.0)
"""By how much an element changes, of the tensor's largest: what changes in few places is to show in the
outputs. Statistics change upwards alone, so that a variance stays positive."""
NOUGHT = 1 / 8
"""What noughts become where the two sides' forms differ, and all other elements are halved."""


def weights_of(module: nn.Module) -> list[torch.Tensor]:
    """Floating-point parameters, and the buffers that are no constants."""
    buffers = (each for name, each in module.named_buffers() if name.rpartition(".")[2] in RUNNING)
    return [each for each in (*module.parameters(), *buffers) if each.is_floating_point()]


def forms_of(module: nn.Module) -> list[list[object]]:
    """Shape and dtype of each, for JSON."""
    return [[list(each.shape), str(each.dtype)] for each in weights_of(module)]


def turns(count: int) -> list[list[int]]:
    """Deals the numbers of `count` tensors into the turns in which they change, at random."""
    order = list(range(count))
    secrets.SystemRandom().shuffle(order)
    hands = max(min(count, TURNS), 1)
    return [sorted(order[turn % hands :: hands]) for turn in range(TURNS)]


def moments() -> Iterator[bool]:
    """Whether a change comes before the next pair of timed blocks; nobody can foresee it."""
    while True:
        chosen = secrets.randbelow(EVERY)
        yield from (pair == chosen for pair in range(EVERY))


def change(module: nn.Module, seed: int, turn: list[int] | None, *, alike: bool) -> list[torch.Tensor]:
    """Changes the weights in place and returns what they were, for `restore`: some elements of the tensors
    whose `turn` it is, or all elements of all. The same for the same seed, device and forms where the two
    sides are `alike`; otherwise every element becomes what depends on nothing but itself, and rounds nothing:
    a kernel may have its weights in other shapes, or several in one tensor."""
    import torch

    weights = weights_of(module)
    before = [each.detach().clone() for each in weights]
    with torch.no_grad():
        for number, each in enumerate(weights):
            if not alike:
                each.copy_(torch.where(each == 0, NOUGHT, each / 2))
            elif each.numel() and (turn is None or number in turn):
                signed = isinstance(each, torch.nn.Parameter)
                each.copy_(_changed(each, seed + number, everywhere=turn is None, signed=signed))
    return before


def _changed(tensor: torch.Tensor, seed: int, *, everywhere: bool, signed: bool) -> torch.Tensor:
    """Another tensor like this one, in float32 at least."""
    import torch

    generator = torch.Generator(tensor.device).manual_seed(seed)
    wide = torch.promote_types(tensor.dtype, torch.float32)
    flat = tensor.to(wide, copy=True).reshape(-1)
    size = flat.numel()

    def drawn(below: int, count: int) -> torch.Tensor:
        return torch.randint(below, (count,), generator=generator, device=flat.device)

    least, most = EVERYWHERE if everywhere else SOMEWHERE
    # All places change by amounts of their own, some by one amount, since a place may be drawn twice.
    amounts = torch.rand(size if everywhere else 1, generator=generator, device=flat.device, dtype=wide)
    largest = torch.where(flat.isfinite(), flat, 0).abs().amax()
    up = (least + (most - least) * amounts) * torch.where(largest > 0, largest, 1.0)
    if not everywhere:
        flat[drawn(size, min(size, max(FEWEST, round(SHARE * size))))] += up
    elif signed:  # or their mean would move, and grow from layer to layer
        flat += up * drawn(2, size).mul_(2).sub_(1)
    else:
        flat += up
    return flat.view(tensor.shape)


def restore(module: nn.Module, before: list[torch.Tensor]) -> None:
    """The inverse of `change`."""
    import torch

    with torch.no_grad():
        for each, was in zip(weights_of(module), before, strict=True):
            each.copy_(was)
