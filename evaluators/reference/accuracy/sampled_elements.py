"""Random elements of a large output, used to check timed calls and calls on other distributions."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SPOT, RUN = {"cuda": 2**24, "cpu": 2**21}, 1024
"""The number of sampled elements, and the length of a run of neighbours. A kernel that saves time by skipping
elements skips more of them than a sample of this size can miss."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Random elements of an output: of its `runs` runs from `start` on, those with the numbers `chosen`."""

    start: int
    runs: int
    chosen: torch.Tensor

    def starts(self) -> torch.Tensor:
        """The number of each chosen run's first element."""
        return self.chosen * RUN + self.start

    def inside(self, first: int, end: int) -> torch.Tensor:
        """The numbers of the chosen runs that lie entirely in [first, end)."""
        import torch

        starts = self.starts()
        return torch.nonzero((starts >= first) & (starts + RUN <= end)).squeeze(1)

    def pieces(self, size: int) -> set[int]:
        """The numbers of the pieces of `size` elements that contain chosen runs."""
        import torch

        starts = self.starts()
        numbers = torch.cat([starts // size, (starts + RUN - 1) // size])
        return set(torch.bincount(numbers).nonzero().flatten().tolist())

    def only(self, numbers: torch.Tensor) -> Places:
        """Only the chosen runs with these numbers."""
        return replace(self, chosen=self.chosen[numbers])


def some_places(output: torch.Tensor) -> Places | None:
    """SPOT random places of an output; None if it has no more elements than that."""
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
    """Uninitialised memory for the result of `pick`, to be filled by `pick_piece`."""
    return piece.new_empty((len(places.chosen), RUN))


def pick_piece(picked: torch.Tensor, piece: torch.Tensor, first: int, places: Places) -> None:
    """Copies into `picked` the elements that lie in this piece of an output, which begins at element
    `first`."""
    import torch

    starts = places.starts() - first
    here = torch.nonzero((starts > -RUN) & (starts < piece.numel())).squeeze(1)
    at = starts[here, None] + torch.arange(RUN, device=piece.device)
    within = (at >= 0) & (at < piece.numel())
    found = piece.reshape(-1)[at.clamp(0, piece.numel() - 1)]
    picked[here] = torch.where(within, found, picked[here])


def pick(output: torch.Tensor, places: Places | None) -> torch.Tensor:
    """The elements at these places; without places, the output itself."""
    if places is None:
        return output
    flat = output.reshape(-1)[places.start : places.start + places.runs * RUN]
    return flat.view(places.runs, RUN)[places.chosen]
