"""Other values for a module's weights, the same on both sides of a comparison.

The constructors of a reference and of a kernel draw the same weights, but many are plain (ones, zeros), and
all of them stay what they were. A kernel that leaves a bias out, or that has kept something made of its
weights, is right until they change.
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
"""Buffers that training writes, as it does weights."""
SHARE, FEWEST = 1 / 256, 8
"""Of the elements of a tensor that change when only some do; at least so many. Whoever looks at one element
misses such a change so often, and few enough are looked at in no time."""
TURNS = 3
"""Changes in which each tensor's turn comes once, at some places; so many are in every measurement. Two
tensors seldom have the same turn, so that whoever looks at a small one misses the change of a large one."""
EVERY = 3
"""Of so many pairs of timed blocks one comes after a change; another change comes after the last."""
SOMEWHERE = (0.5, 1.0)
"""By how much an element changes when few do, of the tensor's largest: it is to show in the outputs."""
FACTOR, ADDED = (0.5, 1.5), 0.25
"""When all elements change: what each is multiplied by, with either sign, and the most that is added to it,
of the tensor's rms. Statistics, and weights whose signs the reference does not bear, keep their signs."""
ZERO = 1 / 8
"""What zeros become where the two sides' forms differ, and all other elements are halved."""
PART = 2**24
"""Elements at a time, so that what a change takes besides is some 100 MiB."""


@dataclass(frozen=True, kw_only=True)
class WeightChange:
    """What both sides do to their weights. All elements of all change, or some of those tensors whose `turn`
    it is; `signed`: signs, too, where all do; `buffers`: of these names change with the weights.

    Where the two sides' weights differ in form, every element becomes what depends on itself alone, and
    rounds nothing: a kernel may have its weights in other shapes, or several in one. Zeros become another
    number, so that a bias that nobody adds shows; with `padded` only those of tensors of zeros do, since a
    kernel may have padded its weights with them.
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
    """Floating-point parameters, the statistics of batch norms, and the buffers of these names."""
    named = dict(module.named_buffers())
    running = [name for name in named if name.rpartition(".")[2] in RUNNING]
    tensors = (*module.parameters(), *(named[name] for name in (*running, *buffers)))
    return [each for each in tensors if each.is_floating_point()]


def plain_buffers(module: nn.Module, twin: Callable[[], nn.Module]) -> list[str]:
    """The names of buffers that are no constants of the computation: one number throughout, as they are
    before somebody trains or loads them, or other numbers in a `twin` from another seed. Tables and masks are
    constants, which a kernel may know."""
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
    """Which of these buffers (name, shape, dtype) a module has, too."""
    forms = {name: [list(each.shape), str(each.dtype)] for name, each in module.named_buffers()}
    return [str(name) for name, *form in wanted if forms.get(str(name)) == form]


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


def change(module: nn.Module, how: WeightChange, *, alike: bool) -> list[torch.Tensor]:
    """Changes the weights in place and returns what they were, for `restore`. The same for the same change,
    device and forms where the two sides are `alike`. Takes the memory of the weights once more, and that of
    the largest of them, in float32 at least."""
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
    """Every element is another, in float32 at least."""
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
    """A few elements grow by one amount, in float32 at least; a variance stays positive."""
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
    """Its elements in one order on both sides, in float32 at least."""
    import torch

    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to(wide, copy=True, memory_format=torch.contiguous_format).reshape(-1)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """With zeros in the place of infinities and NaN."""
    return tensor.nan_to_num(0.0, 0.0, 0.0)


def restore(module: nn.Module, before: list[torch.Tensor], buffers: Sequence[str] = ()) -> None:
    """The inverse of `change`."""
    import torch

    with torch.no_grad():
        for each, was in zip(weights_of(module, buffers), before, strict=True):
            each.copy_(was)
