"""Changes a module's weights, in the same way on both sides of a comparison.

The constructors of a reference and of a kernel draw the same weights, but many are trivial (ones, zeros), and
none ever change. A kernel that omits a bias, or that caches a value computed from its weights, is right until
they change.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

RUNNING = ("running_mean", "running_var")
"""Buffers that training updates, like weights."""
SHARE, FEWEST = 1 / 256, 8
"""In a partial change, the share of a tensor's elements that change, and their least number. A kernel that
checks only a few elements, to save time, usually misses such a change."""
TURNS = 3
"""Partial changes per measurement; each tensor changes in one of them. Two tensors rarely change together, so
that a kernel that checks only a small tensor misses the change of a large one."""
EVERY = 3
"""One in EVERY pairs of timed blocks follows a change; another change comes after the last pair."""
SOMEWHERE = (0.5, 1.0)
"""Range of a partial change, relative to the tensor's largest element: large enough to show in the
outputs."""
FACTOR, ADDED = (0.5, 1.5), 0.25
"""In a full change, the range of each element's factor (with either sign), and the largest amount added to
it, relative to the tensor's rms. Statistics keep their signs, as do weights if the reference needs that."""
ZERO = 1 / 8
"""The new value of zeros if the two sides' weights differ in form; all other elements are halved."""
PART = 2**24
"""Elements changed at a time, so that a change takes only about 100 MiB of extra memory."""


@dataclass(frozen=True, kw_only=True)
class WeightChange:
    """How both sides change their weights. Without a `turn`, all elements of all tensors change, including
    signs if `signed`; with one, a few elements of the tensors with these numbers. Buffers named in `buffers`
    change with the weights.

    If the two sides' weights differ in form, each new element is an exact function of the old one, because a
    kernel may reshape its weights or merge several into one. Zeros become nonzero, which exposes a bias that
    is never added; with `padded` only in tensors of zeros, because a kernel may pad its weights with zeros.
    """

    seed: int
    turn: tuple[int, ...] | None = None
    signed: bool = True
    padded: bool = False
    buffers: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WeightChange:
        """The inverse of `dataclasses.asdict` and JSON."""
        turn = None if data["turn"] is None else tuple(data["turn"])
        return cls(**{**data, "turn": turn, "buffers": tuple(data["buffers"])})


def weights_of(module: nn.Module, buffers: Sequence[str] = ()) -> list[torch.Tensor]:
    """The floating-point parameters, batch-norm statistics, and buffers with these names."""
    named = dict(module.named_buffers())
    running = [name for name in named if name.rpartition(".")[2] in RUNNING]
    tensors = (*module.parameters(), *(named[name] for name in (*running, *buffers)))
    return [each for each in tensors if each.is_floating_point()]


def plain_buffers(module: nn.Module, twin: Callable[[], nn.Module]) -> list[str]:
    """The names of buffers that are not constants of the computation: either all elements are equal, as
    before training or loading, or a `twin` from another seed has other values. Tables and masks are
    constants, which a kernel may rely on."""
    import torch

    found, others = [], None
    for name, each in module.named_buffers():
        if name.rpartition(".")[2] in RUNNING or not each.is_floating_point() or each.numel() < 2:
            continue
        if not bool((each == each.flatten()[0]).all()):
            others = dict(twin().named_buffers()) if others is None else others
            if torch.equal(each, others[name]):
                continue
        found.append(name)
    return found


def known_buffers(module: nn.Module, wanted: Sequence[Sequence[object]]) -> list[str]:
    """The names of those buffers (name, shape, dtype) that a module also has."""
    forms = {name: [list(each.shape), str(each.dtype)] for name, each in module.named_buffers()}
    return [str(name) for name, *form in wanted if forms.get(str(name)) == form]


def forms_of(module: nn.Module) -> list[list[object]]:
    """Shape and dtype of each weight, for JSON."""
    return [[list(each.shape), str(each.dtype)] for each in weights_of(module)]


def turns(count: int) -> list[list[int]]:
    """Assigns `count` tensors at random to the partial changes; returns their numbers per change."""
    order = list(range(count))
    secrets.SystemRandom().shuffle(order)
    hands = max(min(count, TURNS), 1)
    return [sorted(order[turn % hands :: hands]) for turn in range(TURNS)]


def moments() -> Iterator[bool]:
    """Yields whether a change precedes the next pair of timed blocks, unpredictably."""
    while True:
        chosen = secrets.randbelow(EVERY)
        yield from (pair == chosen for pair in range(EVERY))


def change(module: nn.Module, how: WeightChange, *, alike: bool) -> list[torch.Tensor]:
    """Changes the weights in place and returns the old ones, for `restore`. If the two sides are `alike`, the
    same change, device and forms give the same weights. Takes as much memory as the weights, plus the largest
    of them in at least float32."""
    import torch

    weights = weights_of(module, how.buffers)
    before = [each.detach().clone() for each in weights]
    with torch.no_grad():
        for number, each in enumerate(weights):
            if not alike:
                zero = 0.0 if how.padded and each.any() else ZERO
                zeros = each == 0
                each.div_(2).masked_fill_(zeros, zero)
            elif each.numel() and how.turn is None:
                signs = how.signed and isinstance(each, torch.nn.Parameter)
                each.copy_(_all_changed(each, how.seed + number, signed=signs))
            elif each.numel() and how.turn is not None and number in how.turn:
                each.copy_(_some_changed(each, how.seed + number))
    return before


def _all_changed(tensor: torch.Tensor, seed: int, *, signed: bool) -> torch.Tensor:
    """The tensor with every element changed, in at least float32."""
    import torch

    generator = torch.Generator(tensor.device).manual_seed(seed)

    def drawn(part: torch.Tensor, least: float, most: float) -> torch.Tensor:
        found = torch.rand(part.shape, generator=generator, device=part.device, dtype=part.dtype)
        found.mul_(most - least).add_(least)
        if signed:
            minus = torch.randint(2, part.shape, generator=generator, device=part.device, dtype=torch.int8)
            found.mul_(1 - 2 * minus)
        return found

    found = _wide_copy(tensor)
    parts = torch.split(found, PART)
    square = torch.stack([_finite(part).double().square().sum() for part in parts]).sum() / found.numel()
    typical = torch.where(square > 0, square.sqrt(), 1.0).to(found.dtype)
    for part in parts:
        added = typical * drawn(part, 0.0, ADDED)
        added = added if signed else torch.where(part < 0, -added, added)
        part.mul_(drawn(part, *FACTOR)).add_(added)
    return found.view(tensor.shape)


def _some_changed(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The tensor with a few elements raised by one amount, in at least float32; a variance stays positive."""
    import torch

    generator = torch.Generator(tensor.device).manual_seed(seed)
    found = _wide_copy(tensor)
    size = found.numel()
    least, most = SOMEWHERE
    amount = torch.rand(1, generator=generator, device=found.device, dtype=found.dtype)
    largest = torch.stack([_finite(part).abs().amax() for part in torch.split(found, PART)]).amax()
    chosen = torch.randint(
        size, (min(size, max(FEWEST, round(SHARE * size))),), generator=generator, device=found.device
    )
    found[chosen] += (least + (most - least) * amount) * torch.where(largest > 0, largest, 1.0)
    return found.view(tensor.shape)


def _wide_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A flat copy in at least float32, in the same order on both sides."""
    import torch

    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to(wide, copy=True, memory_format=torch.contiguous_format).reshape(-1)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with zeros in place of infinities and NaN."""
    return tensor.nan_to_num(0.0, 0.0, 0.0)


def restore(module: nn.Module, before: list[torch.Tensor], buffers: Sequence[str] = ()) -> None:
    """The inverse of `change`."""
    import torch

    with torch.no_grad():
        for each, was in zip(weights_of(module, buffers), before, strict=True):
            each.copy_(was)
