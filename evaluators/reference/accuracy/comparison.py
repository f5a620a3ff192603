"""Compares a candidate's outputs with the reference's, under one of the tolerance rules.

`strict` allows what one more rounding and another order of sums cost, in every type: a small multiple of
the error of eager PyTorch against float64, and of what the right answer moves by when its inputs are rounded
once (`Shift`). A problem that allows lower precision (`Problem.precision`) measures that shift with factors
rounded to the type that it names. `kernelbench` and `kernelbench_v02` are flat tolerances after that
benchmark's rules: an element is right when it is within 1e-2 (1e-4 for float32 under `v02`) of eager's or of
float64's, relative to itself and to the rms of the outputs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING

from evaluators.reference.accuracy import differences
from evaluators.reference.accuracy.differences import as_pairs, chunks_of, distance, first_wrong, norms_of

if TYPE_CHECKING:
    import torch

HALF_EPS = 1e-4
"""Types with a larger machine epsilon are rounded so coarsely that sums in float32 cost nothing beside it."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """What `strict` allows: so many times eager's error, ulps of the outputs (of their rms, or the largest),
    and times the shift of one rounding."""

    eager: float
    ulps: float
    shift: float


NORMWISE = {
    "wide": Factors(eager=4.0, ulps=6.0, shift=2.0),
    "products": Factors(eager=4.0, ulps=16.0, shift=2.0),
    "half": Factors(eager=2.0, ulps=0.0, shift=1.0),
}
"""Six ulps: adding 4,096 positive numbers one after the other costs 6.4e-7, eager's tree a tenth of it.
Sixteen of wide types where the reference has products: PyTorch's own Winograd convolution on a CPU was off by
2.4e-6 on inputs with spikes, eager by 2.6e-7; two bfloat16 terms for a float32 factor cost 4.4e-6."""
ELEMENT = {"wide": Factors(eager=16.0, ulps=8.0, shift=8.0), "half": Factors(eager=4.0, ulps=1.0, shift=4.0)}
LEAST_ULPS = 0.25
"""Normwise, of half types: one rounding of the outputs, where neither eager nor a shift shows any."""
FLAT_SHIFT = 8.0
"""Times the largest shift that a flat tolerance allows besides, on other distributions than the problem's."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """How far the right answer moves when its inputs are rounded once, as the problem's rule allows: the rms
    over the elements of an output, and the largest; and how far eager's answer to those lies from it."""

    rms: float = 0.0
    largest: float = 0.0
    eager_rms: float = 0.0
    eager_largest: float = 0.0

    @classmethod
    def between(cls, moved: torch.Tensor, ref: torch.Tensor) -> Shift:
        """Where the answer is a finite number; infinite where what it moves to is not."""
        rms, largest = distance(moved, ref)
        return cls(rms=rms, largest=largest)

    @classmethod
    def of_eager(cls, moved: torch.Tensor, ref: torch.Tensor) -> Shift:
        """The same of eager's answer."""
        rms, largest = distance(moved, ref)
        return cls(eager_rms=rms, eager_largest=largest)

    def at_least(self, other: Shift) -> Shift:
        """The larger of each figure."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Shift(**dict(zip(asdict(self), map(max, pairs), strict=True)))


NO_SHIFT = Shift()


@dataclass(frozen=True, kw_only=True)
class OutputComparison:
    """One output against the reference. Errors are normwise, ‖x − ref‖ / ‖ref‖, ref in float64; eager's is
    the larger of those on the same inputs and on rounded ones.

    `problem` is "" where the output is within the tolerance.
    """

    error: float
    eager_error: float
    problem: str


def tolerance_of(tolerance: str, dtype: torch.dtype) -> float:
    """The relative and absolute tolerance of a flat rule."""
    import torch

    wide = dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
    return 1e-4 if tolerance == "kernelbench_v02" and wide else 1e-2


def passes_allclose(out: torch.Tensor, eager: torch.Tensor, tolerance: str) -> bool:
    """Whether the benchmark of that name would call it right: `torch.allclose` with eager's answer."""
    import torch

    if out.dtype != eager.dtype:
        return False
    bound = tolerance_of(tolerance, eager.dtype)
    return all(torch.allclose(a, b, rtol=bound, atol=bound) for a, b in chunks_of(out, eager))


def compare(
    out: torch.Tensor,
    ref: torch.Tensor,
    eager: torch.Tensor,
    tolerance: str,
    *,
    shift: Shift = NO_SHIFT,
    own: bool = True,
    exact: bool = True,
    products: bool = False,
) -> OutputComparison:
    """`out` from the candidate, `ref` in float64 (or exact), `eager` from PyTorch at the task's dtype;
    all of one shape. Integer and boolean outputs must be equal, complex ones are judged as pairs. `own`: on
    the problem's own inputs. Without `exact` eager stands in for float64, and its error is taken for as large
    as the shift. Where eager's answer is not finite, a kernel for a reference with `products` may have
    anything: of a factor that is written as a sum of narrower ones, infinity minus infinity is left, and the
    largest of NaN and 0 is 0 for many an instruction. Beside them it takes memory for some CHUNKs of
    float64."""
    import torch

    if not out.numel():
        return OutputComparison(error=0.0, eager_error=0.0, problem="")
    eps = torch.finfo(eager.dtype).eps if eager.is_floating_point() or eager.is_complex() else 0.0
    out, ref, eager = as_pairs(out), as_pairs(ref), as_pairs(eager)
    chunks = chunks_of(out, ref, eager)
    if not out.is_floating_point():
        text, count = first_wrong(chunks, differences.unequal, out.shape)
        return OutputComparison(error=count / out.numel(), eager_error=0.0, problem=text)
    norms, largest = norms_of(chunks)
    if not all(map(math.isfinite, norms)):
        text, broken = first_wrong(chunks, partial(differences.broken, products=products), out.shape)
        if broken:
            return OutputComparison(error=math.inf, eager_error=0.0, problem=text)
        norms, largest = norms_of(chunks, finite=True)
    rms = [each / math.sqrt(out.numel()) for each in norms]
    if not exact:
        rms[1], largest[1] = shift.rms, shift.largest
    rms[1], largest[1] = max(rms[1], shift.eager_rms), max(largest[1], shift.eager_largest)
    scale = max(rms[2], 1e-300)
    error, eager_error = rms[0] / scale, rms[1] / scale
    text, difference, relative = "", differences.difference, 0.0
    if tolerance == "strict":
        allowed, bound = _strict(eps, rms, largest, shift, products=products)
        if rms[0] > allowed:
            text = (
                f"normwise error {error:.3g}, allowed {allowed / scale:.3g} (eager's own is "
                f"{eager_error:.3g}, a rounding of the inputs brings {shift.rms / scale:.3g})"
            )
    else:
        relative, difference = tolerance_of(tolerance, eager.dtype), differences.nearest
        bound = relative * min(1.0, rms[2]) if own else relative * rms[2] + FLAT_SHIFT * shift.largest
    if largest[0] > bound:
        found, count = first_wrong(
            chunks,
            lambda *chunk: difference(*chunk) - relative * chunk[1].double().abs() > bound,
            out.shape,
        )
        if count:
            text = f"{found}; normwise error {error:.3g}, eager's own {eager_error:.3g}"
    return OutputComparison(error=error, eager_error=eager_error, problem=text)


def _strict(
    eps: float, rms: list[float], largest: list[float], shift: Shift, *, products: bool
) -> tuple[float, float]:
    """What `strict` allows of the error's rms, and of a single element's. `rms` and `largest` are of the
    error, of eager's, and of the answer."""
    kind = "half" if eps > HALF_EPS else "wide"
    normwise = NORMWISE["products" if products and kind == "wide" else kind]
    once = products and kind == "wide"  # eager's products may be of rounded factors, too
    allowed = _allowed(normwise, rms[1], eps * rms[2], shift.rms, once=once)
    if kind == "half":
        allowed = max(allowed, LEAST_ULPS * eps * rms[2])
    return allowed, _allowed(ELEMENT[kind], largest[1], eps * largest[2], shift.largest)


def _allowed(factors: Factors, eager: float, ulp: float, shift: float, *, once: bool = False) -> float:
    """`once`: eager's error and the shift are of the same rounding, and the larger counts."""
    parts = factors.eager * eager, factors.shift * shift
    return factors.ulps * ulp + (max(parts) if once else sum(parts))
