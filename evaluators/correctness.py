"""Compares a candidate's outputs with the reference's, under one of the tolerance profiles.

`kernelbench` and `kernelbench_v02` are that benchmark's rules (allclose). `strict` allows four times the
normwise error of eager PyTorch at the task's own dtype, plus a few ulp, and bounds single elements likewise,
so that lower precision inside an fp32 problem fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STRICT_FACTOR = 4.0
STRICT_ELEMENT_FACTOR = 16.0
STRICT_ULP = 8.0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One output against the reference. Errors are normwise, ‖x − ref‖ / ‖ref‖, ref in float64.

    `problem` is "" where the output is within the tolerance.
    """

    error: float
    eager_error: float
    problem: str


def compare(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor, tolerance: str) -> Comparison:
    """`out` from the candidate, `ref` in float64 (or exact), `eager` from PyTorch at the task's dtype;
    all of one shape. Integer and boolean outputs must be equal."""
    import torch

    if not out.is_floating_point():
        raw = torch.uint8 if out.dtype is torch.bool else out.dtype  # poison reads as True, but is not 1
        wrong = out.view(raw) != eager.view(raw)
        share = wrong.double().mean().item()
        return Comparison(error=share, eager_error=0.0, problem=_first(wrong, out, eager) if share else "")
    finite = torch.isfinite(ref) & torch.isfinite(eager)
    expected = torch.where(torch.isfinite(eager), ref, eager.to(ref.dtype))  # where not finite: NaN or ±inf
    agrees = (out == expected) | (out.isnan() & expected.isnan())
    broken = torch.where(finite, ~torch.isfinite(out), ~agrees)
    if broken.any():
        return Comparison(error=float("inf"), eager_error=0.0, problem=_first(broken, out, ref))
    wide, exact, own = (x.double().where(finite, 0.0) for x in (out, ref, eager))
    difference = (wide - exact).abs_()
    scale = max(exact.norm().item(), 1e-300)
    error = difference.norm().item() / scale
    eager_difference = (own - exact).abs_()
    eager_error = eager_difference.norm().item() / scale
    eps = torch.finfo(eager.dtype).eps
    if tolerance == "strict":
        allowed = STRICT_FACTOR * eager_error + 2 * eps
        element = STRICT_ELEMENT_FACTOR * eager_difference.max() + STRICT_ULP * eps * exact.abs().max()
        outside = difference > element
        if error > allowed and not outside.any():
            text = (
                f"normwise error {error:.3g}, allowed {allowed:.3g} (4 × eager's {eager_error:.3g} + 2 ulp)"
            )
            return Comparison(error=error, eager_error=eager_error, problem=text)
    else:
        tight = tolerance == "kernelbench_v02" and eager.dtype in (torch.float32, torch.float64)
        bound = 1e-4 if tight else 1e-2
        outside = difference > bound + bound * exact.abs()
    text = _first(outside, out, ref) if outside.any() else ""
    if text:
        text += f"; normwise error {error:.3g}, eager's own {eager_error:.3g}"
    return Comparison(error=error, eager_error=eager_error, problem=text)


def _first(wrong: torch.Tensor, out: torch.Tensor, ref: torch.Tensor) -> str:
    count = int(wrong.sum().item())
    where = tuple(int(i) for i in wrong.nonzero()[0])
    return (
        f"{count} of {wrong.numel()} elements differ ({count / max(wrong.numel(), 1):.2%}), the first at "
        f"{list(where)}: {out[where].item():.6g} instead of {ref[where].item():.6g}"
    )


def _sparse(x: torch.Tensor) -> torch.Tensor:
    import torch

    return x * (torch.rand_like(x) < 0.1)


FAMILIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "shifted": lambda x: x + 10,
    "small": lambda x: x * 1e-2,
    "large": lambda x: x * 1e2,
    "integers": lambda x: (x * 4).round(),
    "sparse": _sparse,
}
"""Input distributions beside the problem's own, as a change of its floating inputs. A kernel that is right
only for the problem's own distribution is incorrect under `strict` and flagged under the other profiles."""
