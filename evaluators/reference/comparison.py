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
import secrets
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Chunk = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    """Of a candidate's output, the right answer and eager's."""

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

CHUNK = 2**26
"""Elements that are compared at a time: an output of some GB would not fit in float64 several times over."""

SPOT, RUN = {"cuda": 2**24, "cpu": 2**21}, 1024
"""Elements of an output that a timed call, or one on a family's inputs, is checked by, and how many of them
lie side by side: a kernel that saves work by leaving elements out leaves out more than a check of so many
misses."""


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
        rms, largest = _distance(moved, ref)
        return cls(rms=rms, largest=largest)

    @classmethod
    def of_eager(cls, moved: torch.Tensor, ref: torch.Tensor) -> Shift:
        """The same of eager's answer."""
        rms, largest = _distance(moved, ref)
        return cls(eager_rms=rms, eager_largest=largest)

    def at_least(self, other: Shift) -> Shift:
        """The larger of each figure."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Shift(**dict(zip(asdict(self), map(max, pairs), strict=True)))


NO_SHIFT = Shift()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One output against the reference. Errors are normwise, ‖x − ref‖ / ‖ref‖, ref in float64; eager's is
    the larger of those on the same inputs and on rounded ones.

    `problem` is "" where the output is within the tolerance.
    """

    error: float
    eager_error: float
    problem: str


@dataclass(frozen=True, kw_only=True)
class Places:
    """Random elements of an output, in short runs: from `start` on, the `chosen` of `runs` runs."""

    start: int
    runs: int
    chosen: torch.Tensor


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


def pick(output: torch.Tensor, places: Places | None) -> torch.Tensor:
    """The elements there; without places the output itself."""
    if places is None:
        return output
    flat = output.reshape(-1)[places.start : places.start + places.runs * RUN]
    return flat.view(places.runs, RUN)[places.chosen]


def as_pairs(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, in a last dimension of their own; others as they are."""
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


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
    chunks = zip(_split(out), _split(eager), strict=True)
    return all(torch.allclose(*chunk, rtol=bound, atol=bound) for chunk in chunks)


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
) -> Comparison:
    """`out` from the candidate, `ref` in float64 (or exact), `eager` from PyTorch at the task's dtype;
    all of one shape. Integer and boolean outputs must be equal, complex ones are judged as pairs. `own`: on
    the problem's own inputs. Without `exact` eager stands in for float64, and its error is taken for as large
    as the shift. Where eager's answer is not finite, a kernel for a reference with `products` may have
    anything: of a factor that is written as a sum of narrower ones, infinity minus infinity is left, and the
    largest of NaN and 0 is 0 for many an instruction. Beside them it takes memory for some CHUNKs of
    float64."""
    import torch

    if not out.numel():
        return Comparison(error=0.0, eager_error=0.0, problem="")
    eps = torch.finfo(eager.dtype).eps if eager.is_floating_point() or eager.is_complex() else 0.0
    out, ref, eager = as_pairs(out), as_pairs(ref), as_pairs(eager)
    chunks = list(zip(_split(out), _split(ref), _split(eager), strict=True))
    if not out.is_floating_point():
        text, count = _first(chunks, _unequal, out.shape)
        return Comparison(error=count / out.numel(), eager_error=0.0, problem=text)
    norms, largest = _norms(chunks)
    if not all(map(math.isfinite, norms)):
        text, broken = _first(chunks, partial(_broken, products=products), out.shape)
        if broken:
            return Comparison(error=math.inf, eager_error=0.0, problem=text)
        norms, largest = _norms(chunks, finite=True)
    rms = [each / math.sqrt(out.numel()) for each in norms]
    if not exact:
        rms[1], largest[1] = shift.rms, shift.largest
    rms[1], largest[1] = max(rms[1], shift.eager_rms), max(largest[1], shift.eager_largest)
    scale = max(rms[2], 1e-300)
    error, eager_error = rms[0] / scale, rms[1] / scale
    text, difference, relative = "", _difference, 0.0
    if tolerance == "strict":
        allowed, bound = _strict(eps, rms, largest, shift, products=products)
        if rms[0] > allowed:
            text = (
                f"normwise error {error:.3g}, allowed {allowed / scale:.3g} (eager's own is "
                f"{eager_error:.3g}, a rounding of the inputs brings {shift.rms / scale:.3g})"
            )
    else:
        relative, difference = tolerance_of(tolerance, eager.dtype), _nearest
        bound = relative * min(1.0, rms[2]) if own else relative * rms[2] + FLAT_SHIFT * shift.largest
    if largest[0] > bound:
        found, count = _first(
            chunks,
            lambda *chunk: difference(*chunk) - relative * chunk[1].double().abs() > bound,
            out.shape,
        )
        if count:
            text = f"{found}; normwise error {error:.3g}, eager's own {eager_error:.3g}"
    return Comparison(error=error, eager_error=eager_error, problem=text)


def _strict(
    eps: float, rms: list[float], largest: list[float], shift: Shift, *, products: bool
) -> tuple[float, float]:
    """What `strict` allows of the error's rms, and of a single element's. `rms` and `largest` are of the
    error, of eager's, and of the answer."""
    kind = "half" if eps > HALF_EPS else "wide"
    normwise = NORMWISE["products" if products and kind == "wide" else kind]
    allowed = _allowed(normwise, rms[1], eps * rms[2], shift.rms)
    if kind == "half":
        allowed = max(allowed, LEAST_ULPS * eps * rms[2])
    return allowed, _allowed(ELEMENT[kind], largest[1], eps * largest[2], shift.largest)


def _distance(moved: torch.Tensor, ref: torch.Tensor) -> tuple[float, float]:
    """Its rms over the elements, and the largest (see `Shift`)."""
    if not (ref.is_floating_point() or ref.is_complex()) or not ref.numel():
        return 0.0, 0.0
    moved, ref = as_pairs(moved), as_pairs(ref)
    parts = [_distances(*pair) for pair in zip(_split(moved), _split(ref), strict=True)]
    return math.hypot(*(norm for norm, _ in parts)) / math.sqrt(ref.numel()), max(most for _, most in parts)


def _distances(moved: torch.Tensor, ref: torch.Tensor) -> tuple[float, float]:
    """Euclidean, and the largest, where `ref` is finite; infinite where `moved` is not."""
    import torch

    norm, exact = torch.linalg.vector_norm, ref.double()
    difference = moved.double() - exact
    norms = float(norm(difference)), float(norm(difference, math.inf))
    if not all(map(math.isfinite, norms)):
        difference = difference.where(exact.isfinite(), 0.0).nan_to_num(math.inf, math.inf, math.inf)
        norms = float(norm(difference)), float(norm(difference, math.inf))
    return norms


def _allowed(factors: Factors, eager: float, ulp: float, shift: float) -> float:
    return factors.eager * eager + factors.ulps * ulp + factors.shift * shift


def _split(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    import torch

    return torch.split(tensor.reshape(-1), CHUNK)


def rms_of(eager: torch.Tensor, ref: torch.Tensor) -> tuple[float, float]:
    """Of eager's error and of the answer, over the elements where both are finite numbers; 0 of none."""
    if not eager.numel():
        return 0.0, 0.0
    eager, ref = as_pairs(eager), as_pairs(ref)
    chunks = list(zip(_split(eager), _split(ref), _split(eager), strict=True))
    norms, _ = _norms(chunks)
    if not all(map(math.isfinite, norms)):
        norms, _ = _norms(chunks, finite=True)
    return norms[1] / math.sqrt(eager.numel()), norms[2] / math.sqrt(eager.numel())


def about_equal(one: torch.Tensor, other: torch.Tensor, most: float) -> bool:
    """Whether they are of one shape and, normwise, no further apart than that; integers are equal."""
    if one.shape != other.shape:
        return False
    if not (other.is_floating_point() or other.is_complex()):
        return bool((one == other).all())
    error, scale = rms_of(one, other)
    return error <= most * scale


def _norms(chunks: list[Chunk], *, finite: bool = False) -> tuple[list[float], list[float]]:
    """Euclidean norms and largest elements, in float64, of the error, of eager's error, and of the answer;
    with `finite` of the places where the answer is a finite number."""
    import torch

    norm = torch.linalg.vector_norm
    parts = []
    for out, ref, own in chunks:
        exact = ref.double()
        three = [each.to(torch.float64, copy=True).sub_(exact) for each in (out, own)] + [exact]
        if finite:
            kept = _finite(ref, own)
            three = [each.where(kept, 0.0) for each in three]
        parts.append(torch.stack([norm(each, order) for order in (2, math.inf) for each in three]))
    figures = torch.stack(parts)
    return norm(figures[:, :3], dim=0).tolist(), figures[:, 3:].amax(0).tolist()


def _finite(ref: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    return ref.isfinite() & eager.isfinite()


def _difference(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """The error's size in float64; 0 where the answer is no finite number."""
    return (out.double() - ref.double()).abs_().where(_finite(ref, eager), 0.0)


def _nearest(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """The smaller of the differences from float64's answer and from eager's."""
    return _difference(out, ref, eager).minimum(_difference(out, eager, eager))


def _broken(
    out: torch.Tensor,
    ref: torch.Tensor,
    eager: torch.Tensor,
    *,
    products: bool = False,
) -> torch.Tensor:
    """Where it is not finite and should be; or where the answer is infinite, and it is another; or NaN, and
    it is finite."""
    import torch

    expected = torch.where(eager.isfinite(), ref, eager.to(ref.dtype))
    agrees = (out == expected) | (expected.isnan() & ~out.isfinite()) | products
    return torch.where(_finite(ref, eager), ~out.isfinite(), ~agrees)


def _unequal(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    import torch

    raw = torch.uint8 if out.dtype is torch.bool else out.dtype  # poison reads as True, but is not 1
    return out.view(raw) != eager.view(raw)


def _first(
    chunks: list[Chunk],
    wrong: Callable[..., torch.Tensor],
    shape: torch.Size,
) -> tuple[str, int]:
    """The first wrong element in words ("" where there is none), and how many there are."""
    import torch

    counts = [int(wrong(*chunk).sum()) for chunk in chunks]
    count, elements = sum(counts), math.prod(shape)
    if not count:
        return "", 0
    number = next(n for n, each in enumerate(counts) if each)
    place = int(wrong(*chunks[number]).nonzero()[0])
    out, ref, eager = (each[place].item() for each in chunks[number])
    where = [int(i) for i in torch.unravel_index(torch.tensor(number * CHUNK + place), shape)]
    expected = ref if chunks[number][0].is_floating_point() else eager
    return (
        f"{count} of {elements} elements differ ({count / elements:.2%}), the first at {where}: "
        f"{out:.6g} instead of {expected:.6g}",
        count,
    )
