"""Random elements of a large output, by which a timed call, or one on another distribution, is checked."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SPOT, RUN = {"cuda": 2**24, "cpu": 2**21}, 1024
"""Elements of an output that a timed call, or one on a family's inputs, is checked by, and how many of them
lie side by side: a kernel that saves work by leaving elements out leaves out more than a check of so many
misses."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Random elements of an output, in short runs: from `start` on, the `chosen` of `runs` runs."""

    start: int
    runs: int
    chosen: torch.Tensor

    def starts(self) -> torch.Tensor:
        """The number of each chosen run's first element."""
        return self.chosen * RUN + self.start

    def inside(self, first: int, end: int) -> torch.Tensor:
        """The numbers of the chosen runs whose elements all are among those from `first` to before `end`."""
        import torch

        starts = self.starts()
        return torch.nonzero((starts >= first) & (starts + RUN <= end)).squeeze(1)

    def pieces(self, size: int) -> set[int]:
        """The numbers of the pieces of `size` elements in which chosen runs lie."""
        import torch

        starts = self.starts()
        numbers = torch.cat([starts // size, (starts + RUN - 1) // size])
        return set(torch.bincount(numbers).nonzero().flatten().tolist())

    def only(self, numbers: torch.Tensor) -> Places:
        """The chosen runs of these numbers alone."""
        return replace(self, chosen=self.chosen[numbers])


def some_places(output: torch.Tensor) -> Places | None:
    """SPOT places of a larger output; None where that is all of it."""
    import torch

    size = output.numel()
    spot = SPOT[output.device.type]
    if size <= spot:
        return None
    runs = size // RUN
    start = secrets.randbelow(size - runs * RUN + 1)
    generator = torch.Generator(output.device).manual_seed(secrets.randbits(62))
    chosen = torch.randint(runs, (spot // RUN,), generator=generator, device=output.device)
    return Places(start=start, runs=runs, chosen=chosen)


def pick_all(outputs: Sequence[torch.Tensor], places: Sequence[Places | None]) -> list[torch.Tensor]:
    """`pick` of each output."""
    return [pick(each, at) for each, at in zip(outputs, places, strict=True)]


def picked_like(piece: torch.Tensor, places: Places) -> torch.Tensor:
    """Room for what `pick` gives, for `pick_piece`."""
    return piece.new_empty((len(places.chosen), RUN))


def pick_piece(picked: torch.Tensor, piece: torch.Tensor, first: int, places: Places) -> None:
    """`pick` of an output of which there is a piece, whose elements come after the `first` ones."""
    import torch

    starts = places.starts() - first
    here = torch.nonzero((starts > -RUN) & (starts < piece.numel())).squeeze(1)
    at = starts[here, None] + torch.arange(RUN, device=piece.device)
    within = (at >= 0) & (at < piece.numel())
    found = piece.reshape(-1)[at.clamp(0, piece.numel() - 1)]
    picked[here] = torch.where(within, found, picked[here])


def pick(output: torch.Tensor, places: Places | None) -> torch.Tensor:
    """The elements there; without places the output itself."""
    if places is None:
        return output
    flat = output.reshape(-1)[places.start : places.start + places.runs * RUN]
    return flat.view(places.runs, RUN)[places.chosen]
