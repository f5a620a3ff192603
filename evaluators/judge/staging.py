"""Inputs that wait in the judge process's own memory until a runner may see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evaluators.reference.answer import Draw
from evaluators.reference.containers import tensors_in
from evaluators.reference.inputs.strided_layouts import holds_all, span_of
from evaluators.reference.running_reference import UnfitReference
from evaluators.runner.shared_buffers import GUARD, Layout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The staged inputs of the calls 0 to `calls` - 1, for a runner client to run. It is valid until
    something else is staged."""

    memory: torch.Tensor
    """Flat, uint8, in the layout of the shared buffers' inputs."""
    calls: int
    seeds: tuple[int, ...] = ()
    """One per call for torch's generator, if the reference draws numbers."""
    draws: tuple[Draw, ...] = ()
    """The draw of each call's inputs; empty if their answers are not needed."""

    def first(self, calls: int) -> Batch:
        """The first `calls` calls."""
        return replace(self, calls=calls, draws=self.draws[:calls])


class Staging:
    """Space for the inputs of `capacity` calls."""

    def __init__(self, inputs: Sequence[torch.Tensor], capacity: int, device: str) -> None:
        """`inputs` are those of one call, for their layout."""
        import torch

        layout = Layout.of(inputs, capacity, as_they_are=True)
        self.capacity = capacity
        self.memory = torch.full((layout.bytes,), GUARD, dtype=torch.uint8, device=device)
        self.places = layout.views(self.memory)
        self._spans = [[_whole(place) for place in places] for places in self.places]
        self.seeds: list[int] = []
        """Seeds of the calls staged last, if the reference draws numbers."""

    def place(self, call: int, values: list[Any]) -> None:
        """Copies the arguments of a call to its place. Raises UnfitReference if their shapes differ."""
        for place, span, value in zip(self.places[call], self._spans[call], tensors_in(values), strict=True):
            if value.shape != place.shape:
                shapes = f"{tuple(place.shape)} and {tuple(value.shape)}"
                raise UnfitReference(f"the shapes of its inputs change between draws: {shapes}")
            if span is not None and value.stride() == place.stride():
                span.copy_(span_of(value))
            else:
                place.copy_(value)

    def batch(self, calls: int, draws: Sequence[Draw] = ()) -> Batch:
        """The first calls, with the present inputs."""
        seeds = tuple(self.seeds) if calls <= len(self.seeds) else ()
        return Batch(memory=self.memory, calls=calls, seeds=seeds, draws=tuple(draws))

    def free(self) -> None:
        """Frees the memory; there are no more batches."""
        del self.memory, self.places, self._spans


def _whole(place: torch.Tensor) -> torch.Tensor | None:
    """All memory that an input spans, to be copied at once; None if there are gaps between its elements,
    which keep GUARD, because they are no part of the input."""
    span = span_of(place)
    return None if len(span) > place.numel() and holds_all(place) else span
