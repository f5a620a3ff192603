"""Compares a candidate's outputs with the reference's, under one of the tolerance rules.

`strict` allows the error of one more rounding and of another summation order, in every type: a small multiple
of eager PyTorch's error against float64, and of the distance that the right answer moves when its inputs are
rounded once (`Shift`). A problem that allows lower precision (`Problem.precision`) measures that shift with
factors rounded to the type it names. `kernelbench` and `kernelbench_v02` are that benchmark's flat
tolerances: an element is right if it is within 1e-2 (1e-4 for float32 under `v02`) of eager's or of
float64's, relative to the element and to the rms of the outputs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from evaluators.reference.accuracy import differences
from evaluators.reference.accuracy.differences import as_pairs, chunks_of, distance, first_wrong, norms_of

if TYPE_CHECKING:
    import torch

HALF_EPS = 1e-4
"""Types with a larger machine epsilon round so coarsely that the errors of float32 sums do not matter."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """What `strict` allows: multiples of eager's error, of an ulp of the outputs (their rms, or the largest),
    and of the shift of one rounding."""

    eager: float
    ulps: float
    shift: float


NORMWISE = {
    "wide": Factors(eager=4.0, ulps=6.0, shift=2.0),
    "products": Factors(eager=4.0, ulps=16.0, shift=2.0),
    "half": Factors(eager=2.0, ulps=0.0, shift=1.0),
}
"""Six ulps: adding 4,096 positive numbers in sequence has an error of 6.4e-7, eager's tree a tenth of that.
Sixteen for wide types with products: PyTorch's own Winograd convolution on a CPU was off by 2.4e-6 on inputs
with spikes, eager by 2.6e-7; splitting a float32 factor into two bfloat16 terms has an error of 4.4e-6."""
ELEMENT = {"wide": Factors(eager=16.0, ulps=8.0, shift=8.0), "half": Factors(eager=4.0, ulps=1.0, shift=4.0)}
SUM, MOST_OF_SUM = 1.0, 4.0
"""Ulps allowed for a sum of float32 numbers, as a multiple of the square root of their number, normwise; and
the factor for a single element. Adding n numbers in sequence has an error of 0.14 √n ulps if their signs are
random, and more if they cancel: PyTorch's own gradient of a layer norm's bias, of 4,096 rows on a CPU, was
off by 28 ulps, 0.44 √n."""
LEAST_ULPS = 0.25
"""Minimum allowed for half types, normwise: one rounding of the outputs, even if neither eager's error nor
the shift shows any."""
FLAT_SHIFT = 8.0
"""Multiple of the largest shift that a flat tolerance adds on distributions other than the problem's own."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """How far the right answer moves when its inputs are rounded once, as the problem's rule allows: the rms
    over the elements of an output, and the largest. `eager_` figures: how far eager's answer to the rounded
    inputs is from the right answer."""

    rms: float = 0.0
    largest: float = 0.0
    eager_rms: float = 0.0
    eager_largest: float = 0.0

    @classmethod
    def between(cls, moved: torch.Tensor, ref: torch.Tensor) -> Shift:
        """Measured where the answer is finite; infinite if the moved answer is not finite there."""
        rms, largest = distance(moved, ref)
        return cls(rms=rms, largest=largest)

    @classmethod
    def of_eager(cls, moved: torch.Tensor, ref: torch.Tensor) -> Shift:
        """The same for eager's answer."""
        rms, largest = distance(moved, ref)
        return cls(eager_rms=rms, eager_largest=largest)

    def at_least(self, other: Shift) -> Shift:
        """The larger of each figure."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Shift(**dict(zip(asdict(self), map(max, pairs), strict=True)))


NO_SHIFT = Shift()


@dataclass(frozen=True, kw_only=True)
class OutputComparison:
    """One output compared with the reference. Errors are normwise, ‖x − ref‖ / ‖ref‖ with ref in float64;
    eager's is the larger of those on the same inputs and on rounded ones. `problem` is "" if the output is
    within the tolerance. `largest` is the largest absolute error of an element."""

    error: float
    eager_error: float
    problem: str
    largest: float = 0.0


def tolerance_of(tolerance: str, dtype: torch.dtype) -> float:
    """The relative and absolute tolerance of a flat rule."""
    import torch

    wide = dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
    return 1e-4 if tolerance == "kernelbench_v02" and wide else 1e-2


def passes_allclose(out: torch.Tensor, eager: torch.Tensor, tolerance: str) -> bool:
    """Whether the benchmark of that name accepts the output: `torch.allclose` with eager's answer."""
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
    overflows: bool | None = None,
    terms: int = 1,
) -> OutputComparison:
    """Compares `out` (the candidate's) with `ref` (float64, or exact) and `eager` (PyTorch's at the task's
    dtype), all of one shape.

    Integer and boolean outputs must be equal; complex ones are compared as pairs. `own` means the problem's
    own inputs. Without `exact`, `ref` is eager's answer, and eager's error is assumed to be as large as the
    shift. Where eager's answer is not finite, a kernel may return anything with `overflows` (default:
    `products`, whether the reference has any): a factor that is split into a sum of narrower ones gives
    infinity minus infinity. `terms`: how many numbers each element is the sum of, which a kernel may add in
    any order (see `SUM`). Takes the memory of a few CHUNKs of float64."""
    import torch

    if not out.numel():
        return OutputComparison(error=0.0, eager_error=0.0, problem="")
    lenient = products if overflows is None else overflows
    eps = torch.finfo(eager.dtype).eps if eager.is_floating_point() or eager.is_complex() else 0.0
    out, ref, eager = as_pairs(out), as_pairs(ref), as_pairs(eager)
    chunks = chunks_of(out, ref, eager)
    if not out.is_floating_point():
        text, count = first_wrong(chunks, differences.unequal, out.shape)
        return OutputComparison(error=count / out.numel(), eager_error=0.0, problem=text)
    norms, largest = norms_of(chunks)
    if not all(map(math.isfinite, norms)):
        text, broken = first_wrong(chunks, partial(differences.broken, products=lenient), out.shape)
        if broken:
            return OutputComparison(error=math.inf, eager_error=0.0, problem=text, largest=math.inf)
        norms, largest = norms_of(chunks, finite=True)
    rms = [each / math.sqrt(out.numel()) for each in norms]
    if not exact:
        rms[1], largest[1] = shift.rms, shift.largest
    rms[1], largest[1] = max(rms[1], shift.eager_rms), max(largest[1], shift.eager_largest)
    scale = max(rms[2], 1e-300)
    error, eager_error = rms[0] / scale, rms[1] / scale
    text, difference, relative = "", differences.difference, 0.0
    if tolerance == "strict":
        allowed, bound = _strict(eps, rms, largest, shift, products=products, terms=terms)
        if rms[0] > allowed:
            text = (
                f"normwise error {error:.3g}, allowed {allowed / scale:.3g} (eager's own is "
                f"{eager_error:.3g}, rounding the inputs moves the answer by {shift.rms / scale:.3g})"
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
    return OutputComparison(error=error, eager_error=eager_error, problem=text, largest=largest[0])


def _strict(
    eps: float, rms: list[float], largest: list[float], shift: Shift, *, products: bool, terms: int
) -> tuple[float, float]:
    """What `strict` allows for the error's rms, and for a single element. `rms` and `largest` are those of
    the error, of eager's error, and of the answer."""
    kind = "half" if eps > HALF_EPS else "wide"
    normwise = NORMWISE["products" if products and kind == "wide" else kind]
    once = products and kind == "wide"  # eager's products may have rounded factors as well
    element = ELEMENT[kind]
    if kind == "wide":
        normwise = replace(normwise, ulps=max(normwise.ulps, SUM * math.sqrt(terms)))
        element = replace(element, ulps=max(element.ulps, MOST_OF_SUM * SUM * math.sqrt(terms)))
    allowed = _allowed(normwise, rms[1], eps * rms[2], shift.rms, once=once)
    if kind == "half":
        allowed = max(allowed, LEAST_ULPS * eps * rms[2])
    return allowed, _allowed(element, largest[1], eps * largest[2], shift.largest)


def _allowed(factors: Factors, eager: float, ulp: float, shift: float, *, once: bool = False) -> float:
    """`once`: eager's error and the shift come from the same rounding, so only the larger counts."""
    parts = factors.eager * eager, factors.shift * shift
    return factors.ulps * ulp + (max(parts) if once else sum(parts))
