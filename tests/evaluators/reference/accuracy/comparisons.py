"""Whether an output is accepted, for the tests of the tolerance profiles."""

from __future__ import annotations

import torch

from evaluators.reference.accuracy.comparison import compare

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
NAN, INF = float("nan"), float("inf")


def accepts(
    out: torch.Tensor, ref: torch.Tensor, tolerance: str, *, eager: torch.Tensor | None = None
) -> bool:
    """`eager` defaults to the exact reference, rounded to the candidate's dtype."""
    return not compare(out, ref, ref.to(out.dtype) if eager is None else eager, tolerance).problem
