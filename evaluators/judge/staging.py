"""Inputs that wait in the judge process's own memory until a runner may see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evaluators.reference.answer import Draw
from evaluators.reference.containers import tensors_in
from evaluators.reference.inputs.strided_layouts import span_of
from evaluators.reference.running_reference import UnfitReference
from evaluators.runner.shared_buffers import Layout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The staged inputs of the calls 0 to `calls` - 1: what a runner client is given to run. It holds until
    something else is staged."""

    memory: torch.Tensor
    """Flat, uint8, of the layout of the shared buffers' inputs."""
    calls: int
    seeds: tuple[int, ...] = ()
    """Of torch's generator, one a call, where the reference draws numbers."""
    draws: tuple[Draw, ...] = ()
    """Which inputs they are, a draw a call; empty where nobody asks for their answers."""

    def first(self, calls: int) -> Batch:
        """The first of the calls."""
        return replace(self, calls=calls, draws=self.draws[:calls])


class Staging:
    """Room for the inputs of `capacity` calls."""

    def __init__(self, inputs: Sequence[torch.Tensor], capacity: int, device: str) -> None:
        """`inputs`: of one call, for their layout."""
        import torch

        layout = Layout.of(inputs, capacity, as_they_are=True)
        self.capacity = capacity
        self.memory = torch.empty(layout.bytes, dtype=torch.uint8, device=device)
        self.places = layout.views(self.memory)
        self._spans = [[span_of(place) for place in places] for places in self.places]
        self.seeds: list[int] = []
        """Of the calls that were staged last, where the reference draws numbers."""

    def place(self, call: int, values: list[Any]) -> None:
        """Copies the arguments of a call to its place. Raises UnfitReference where they have other shapes."""
        for place, span, value in zip(self.places[call], self._spans[call], tensors_in(values), strict=True):
            if value.shape != place.shape:
                shapes = f"{tuple(place.shape)} and {tuple(value.shape)}"
                raise UnfitReference(f"its inputs have other shapes in every draw: {shapes}")
            if value.stride() == place.stride():
                span.copy_(span_of(value))
            else:
                place.copy_(value)

    def batch(self, calls: int, draws: Sequence[Draw] = ()) -> Batch:
        """The first calls, with the inputs that are there now."""
        seeds = tuple(self.seeds) if calls <= len(self.seeds) else ()
        return Batch(memory=self.memory, calls=calls, seeds=seeds, draws=tuple(draws))

    def free(self) -> None:
        """Gives the memory back; there are no more batches."""
        del self.memory, self.places, self._spans
