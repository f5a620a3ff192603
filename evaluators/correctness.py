"""Compares a candidate's outputs with the reference's, under one of the tolerance profiles.

`kernelbench` and `kernelbench_v02` are that benchmark's rules (allclose). `strict` allows four times the
normwise error of eager PyTorch at the task's own dtype, plus a few ulp, and bounds single elements likewise,
so that lower precision inside an fp32 problem fails.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Chunk = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    """Of a candidate's output, the right answer and eager's."""

STRICT_FACTOR = 4.0
STRICT_ELEMENT_FACTOR = 16.0
STRICT_ULP = 8.0

CHUNK = 2**26
"""Elements that are compared at a time: an output of some GB would not fit in float64 several times over."""

SPOT, RUN = 2**24, 1024
"""Elements of an output that a timed call, or one on a family's inputs, is checked by, and how many of them
lie side by side: a kernel that saves work by leaving elements out leaves out more than a check of so many
misses."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One output against the reference. Errors are normwise, ‖x − ref‖ / ‖ref‖, ref in float64.

    `problem` is "" where the output is within the tolerance.
    """

    error: float
    eager_error: float
    problem: str


def some_of(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor) -> Chunk:
    """The same random elements of all three, in short runs; all elements where they are few."""
    import torch

    size = out.numel()
    if size <= SPOT:
        return out, ref, eager
    runs = size // RUN
    start = secrets.randbelow(size - runs * RUN + 1)
    generator = torch.Generator(out.device).manual_seed(secrets.randbits(62))
    chosen = torch.randint(runs, (SPOT // RUN,), generator=generator, device=out.device)

    def pick(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1)[start : start + runs * RUN].view(runs, RUN)[chosen]

    return pick(out), pick(ref), pick(eager)


def compare(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor, tolerance: str) -> Comparison:
    """`out` from the candidate, `ref` in float64 (or exact), `eager` from PyTorch at the task's dtype;
    all of one shape. Integer and boolean outputs must be equal. Beside them it takes memory for some
    CHUNKs of float64."""
    import torch

    if not out.numel():
        return Comparison(error=0.0, eager_error=0.0, problem="")
    chunks = list(zip(_split(out), _split(ref), _split(eager), strict=True))
    if not out.is_floating_point():
        text, count = _first(chunks, _unequal, out.shape)
        return Comparison(error=count / out.numel(), eager_error=0.0, problem=text)
    tight = tolerance == "kernelbench_v02" and eager.dtype in (torch.float32, torch.float64)
    bound = 1e-4 if tight else 1e-2
    (error, eager_error, scale), largest = _norms(chunks)
    if not all(map(math.isfinite, (error, eager_error, scale))):
        text, broken = _first(chunks, _broken, out.shape)
        if broken:
            return Comparison(error=math.inf, eager_error=0.0, problem=text)
        (error, eager_error, scale), largest = _norms(chunks, finite=True)
    error, eager_error = error / max(scale, 1e-300), eager_error / max(scale, 1e-300)
    relative = 0.0 if tolerance == "strict" else bound
    text = ""
    if tolerance == "strict":
        eps = torch.finfo(eager.dtype).eps
        allowed = STRICT_FACTOR * eager_error + 2 * eps
        bound = STRICT_ELEMENT_FACTOR * largest[1] + STRICT_ULP * eps * largest[2]
        if error > allowed:
            text = (
                f"normwise error {error:.3g}, allowed {allowed:.3g} (4 × eager's {eager_error:.3g} + 2 ulp)"
            )
    if largest[0] > bound:
        found, count = _first(
            chunks,
            lambda *chunk: _difference(*chunk) - relative * chunk[1].double().abs() > bound,
            out.shape,
        )
        if count:
            text = f"{found}; normwise error {error:.3g}, eager's own {eager_error:.3g}"
    return Comparison(error=error, eager_error=eager_error, problem=text)


def _split(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    import torch

    return torch.split(tensor.reshape(-1), CHUNK)


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


def _broken(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Where it is not finite and should be; or where the answer is NaN or infinite, and it is another."""
    import torch

    expected = torch.where(eager.isfinite(), ref, eager.to(ref.dtype))
    agrees = (out == expected) | (out.isnan() & expected.isnan())
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
