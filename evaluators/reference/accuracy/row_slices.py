"""Computes answers in float64 a few rows at a time, if the reference treats the rows of its inputs
separately.

The inputs and outputs of one call of KernelBench's larger problems take 12 to 16 GiB. In float64 they and the
intermediate values take more than three times as much, which does not fit next to the shared buffers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluators.reference.accuracy.differences import about_equal
from evaluators.reference.accuracy.sampled_elements import Places, pick_piece, picked_like
from evaluators.reference.containers import map_tensors, tensors_in

if TYPE_CHECKING:
    import torch

PART = 4
"""One in PART rows is enough to measure how far a rounding moves large answers. Outputs that seem wrong by
that are judged again with all rows (see `ReferenceModel.check_on`)."""
LEAST_BYTES = 2**31
"""Calls with at least this much input and output are computed in slices."""
SLICE_BYTES = 2**28
"""Inputs and outputs of a slice, in their own types."""
ROUNDING = 1e-5
"""Outputs for a slice count as equal to the slice of the outputs if they differ by less, normwise."""

Run = Callable[[list[Any]], list["torch.Tensor"]]


@dataclass(frozen=True, kw_only=True)
class RowSlices:
    """Splits `rows`, the first dimension of all outputs, into slices of `step` rows."""

    rows: int
    step: int
    widths: tuple[int, ...]
    """Elements per row, for each output."""

    @classmethod
    def of(cls, inputs: list[Any], outputs: Sequence[torch.Tensor], run: Run) -> RowSlices | None:
        """The slices for a call; None if it is small, or if `run` on slices of these inputs shows that the
        reference does not treat rows separately. Only inputs with as many rows as the outputs are sliced."""
        size = sum(each.nbytes for each in (*tensors_in(inputs), *outputs))
        rows = {each.shape[0] if each.dim() else 0 for each in outputs}
        if size < LEAST_BYTES or len(rows) != 1 or min(rows) < 2:
            return None
        count = min(rows)
        if all(each.shape[:1] != (count,) for each in tensors_in(inputs)):
            return None
        step, widths = max(1, count * SLICE_BYTES // size), tuple(each.numel() // count for each in outputs)
        slices = cls(rows=count, step=step, widths=widths)
        return slices if slices._are_apart(inputs, outputs, run) else None

    def _are_apart(self, inputs: list[Any], outputs: Sequence[torch.Tensor], run: Run) -> bool:
        try:
            return all(
                about_equal(piece, out[start : start + self.step], ROUNDING)
                for start in range(0, self.rows, self.step)
                for piece, out in zip(run(self._cut(inputs, start)), outputs, strict=True)
            )
        except (RuntimeError, ValueError, IndexError, AssertionError, TypeError) as error:
            if "CUDA error" in str(error):  # nothing runs in this process after it
                raise
            return False

    def _cut(self, inputs: list[Any], start: int) -> list[Any]:
        def cut(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[start : start + self.step] if tensor.shape[:1] == (self.rows,) else tensor

        return list(map_tensors(cut, inputs))

    def run(self, inputs: list[Any], run: Run, places: Sequence[Places | None] | None) -> list[torch.Tensor]:
        """The outputs of `run` for these inputs, computed slice by slice. With `places`, only the elements
        there; slices without any are skipped."""
        found: list[torch.Tensor] = []
        for start in self._starts(places):
            pieces = run(self._cut(inputs, start))
            chosen = places or [None for _ in pieces]
            found = found or [self._room(*pair) for pair in zip(pieces, chosen, strict=True)]
            for whole, piece, at in zip(found, pieces, chosen, strict=True):
                if at is None:
                    whole[start : start + self.step].copy_(piece)
                else:
                    pick_piece(whole, piece, start * piece[0].numel(), at)
        return found

    def part(
        self, picked: Sequence[torch.Tensor], places: Sequence[Places | None]
    ) -> tuple[list[torch.Tensor], list[Places | None]]:
        """Of the elements picked at these places, those in a random PART of the rows, and their places; all
        elements if an output was not picked from, or has none in those rows."""
        count = max(self.rows // PART // self.step, 1) * self.step
        first = secrets.randbelow(max(self.rows - count, 0) // self.step + 1) * self.step
        found: list[torch.Tensor] = []
        where: list[Places | None] = []
        for elements, at, width in zip(picked, places, self.widths, strict=True):
            if at is None or not len(inside := at.inside(first * width, (first + count) * width)):
                return list(picked), list(places)
            found.append(elements[inside])
            where.append(at.only(inside))
        return found, where

    def _starts(self, places: Sequence[Places | None] | None) -> list[int]:
        """The first rows of the slices that have any of the places."""
        needed: set[int] = set()
        for at, width in zip(places or [None for _ in self.widths], self.widths, strict=True):
            if at is None:
                return list(range(0, self.rows, self.step))
            needed |= at.pieces(width * self.step)
        return [number * self.step for number in sorted(needed)]

    def _room(self, piece: torch.Tensor, at: Places | None) -> torch.Tensor:
        if at is not None:
            return picked_like(piece, at)
        return piece.new_empty((self.rows, *piece.shape[1:]))
