"""The right answer to one set of inputs, and how outputs are judged against it."""

from __future__ import annotations

import enum
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import Problem
from evaluators.reference.accuracy.comparison import OutputComparison, Shift, compare, passes_allclose
from evaluators.reference.accuracy.differences import CHUNK
from evaluators.reference.accuracy.sampled_elements import Places, pick
from evaluators.reference.inputs.strided_layouts import holds_all

if TYPE_CHECKING:
    import torch

RIGHT, ANY_NONFINITE, ANY_VALUE = 0, 1, 2
"""What a kernel may return for an element: the right value; that, or what is not finite; anything."""
SAME = 1e-3
"""Two answers of a stateless reference to the same inputs differ by less than this, normwise."""


class Spread(enum.Enum):
    """Which elements a kernel may turn into infinities or NaN although the formula does not."""

    NOWHERE = enum.auto()
    ROWS = enum.auto()
    """Those in a row of the first dimension that has some anyway."""
    ANYWHERE = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One set of inputs: a secret seed and a distribution ("" is the problem's own)."""

    seed: int
    distribution: str = ""

    @classmethod
    def fresh(cls, distribution: str = "") -> Draw:
        """A draw with a new secret seed."""
        return cls(seed=secrets.randbits(62), distribution=distribution)


@dataclass(frozen=True, kw_only=True)
class ReferenceAnswer:
    """The right outputs for one set of inputs.

    `exact` is computed in float64, or is eager's answer where the reference does not run in float64.
    `shifts` has, per output, how far the answer moves when the inputs are rounded, measured on inputs of the
    same distribution; `shifts_here` measures it on exactly these inputs. `places` names the elements that
    were kept (None: all), and `whole` computes the answer with all elements. `inputs` is set only where
    statistical tests compare the outputs: the tests need them. `freedom` has, per output, what is left to a
    kernel of products with infinities or NaN (see `freedom_of`); empty otherwise. `following` gives, for
    whole outputs, the answer that follows from their choices among equal elements (see `accuracy.choices`),
    or None if these are wrong; it is None if the reference makes no choices."""

    eager: list[torch.Tensor]
    exact: list[torch.Tensor]
    shifts: list[Shift]
    places: list[Places | None]
    shifts_here: Callable[[], list[Shift]] | None = None
    whole: Callable[[], ReferenceAnswer] | None = None
    inputs: list[Any] | None = None
    freedom: list[torch.Tensor | None] = field(default_factory=list)
    following: Callable[[list[torch.Tensor]], ReferenceAnswer | None] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the kept elements."""
        free = (each for each in self.freedom if each is not None)
        return sum(each.nbytes for each in (*self.eager, *self.exact, *free))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How answers are judged: the problem's tolerance and the precision it allows for factors."""

    tolerance: str
    precision: str
    dtype: str

    @classmethod
    def of(cls, problem: Problem) -> Rule:
        """The problem's rule. The `kernelbench` tolerance allows float16 products."""
        precision = problem.precision
        if problem.tolerance == "kernelbench" and problem.dtype in ("float32", "float64"):
            precision = "float16"
        return cls(tolerance=problem.tolerance, precision=precision, dtype=problem.dtype)


def judge(
    outputs: list[torch.Tensor],
    answer: ReferenceAnswer,
    *,
    tolerance: str,
    own: bool,
    judges: Callable[[torch.dtype], bool],
    exact: bool,
    products: bool,
    name: Callable[[int], str],
    terms: Callable[[int], int],
) -> OutputComparison:
    """Compares outputs with the right ones and returns the worst comparison, which names the output if there
    are several. Integer outputs are compared only if `judges` says so of their type. `own`, `exact`,
    `products` and `terms` are those of `comparison.compare`."""
    found = []
    for number, out in enumerate(outputs):
        if not (out.is_floating_point() or out.is_complex() or judges(out.dtype)):
            found.append(OutputComparison(error=0.0, eager_error=0.0, problem=""))
            continue
        right, eager = answer.exact[number], answer.eager[number]
        if out.numel() != right.numel():  # already picked outputs stay as they are
            out = pick(out, answer.places[number])
        free = answer.freedom[number] if answer.freedom else None
        if free is not None:
            left = (free == ANY_VALUE) | ((free == ANY_NONFINITE) & ~out.isfinite())
            out = out.where(~left, right.to(out.dtype))
        comparison = compare(
            out,
            right,
            eager,
            tolerance=tolerance,
            shift=answer.shifts[number],
            own=own,
            exact=exact,
            products=products,
            overflows=products and free is None,
            terms=terms(number),
        )
        if comparison.problem and len(outputs) > 1:
            comparison = replace(comparison, problem=f"{name(number)}: {comparison.problem}")
        found.append(comparison)
    worst = max(found, key=lambda c: (bool(c.problem), c.error))
    return replace(worst, largest=max(each.largest for each in found))


def benchmark_rules(outputs: list[torch.Tensor], answer: ReferenceAnswer) -> dict[str, bool]:
    """Whether KernelBench's own rules (flat tolerances around eager's whole answer) accept the outputs."""
    pairs = list(zip(outputs, answer.eager, strict=True))
    rules = ("kernelbench", "kernelbench_v02")
    return {rule: all(passes_allclose(*pair, rule) for pair in pairs) for rule in rules}


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy if its elements share memory (`expand`)."""
    return tensor if holds_all(tensor) else tensor.contiguous()


def freedom_of(
    eager: torch.Tensor,
    exact: torch.Tensor,
    finite: torch.Tensor,
    spiked: torch.Tensor | None,
    spreads: Spread,
) -> torch.Tensor | None:
    """What is left to a kernel where a product has infinities or NaN among its factors, one code per
    element; None for integers. Elements that are left get NaN in `eager` and `exact`, in place.

    `finite` is eager's answer without infinities and NaN. Elements that these do not change must be right,
    but how far they reach depends on how the product is computed: PyTorch's own Winograd convolution
    spreads NaN over a tile, and attention over the masked keys of a tile (see `Spread`). What a changed
    element becomes is left to the kernel, too, because zero times infinity may be skipped, with one
    exception: `spiked` is eager's answer with large finite numbers in place of NaN. An element that is
    another one with those does depend on a NaN, so it has to be NaN if the answer says so. Without `spiked`
    there is no such element."""
    import torch

    if not eager.is_floating_point():
        return None
    found = torch.zeros(eager.shape, dtype=torch.uint8, device=eager.device)
    if not eager.numel():
        return found
    five = [eager, exact, finite, finite if spiked is None else spiked, found]
    whole = [each if eager.dim() else each[None] for each in five]
    rows = max(1, len(whole[0]) * CHUNK // eager.numel())  # limits the memory needed
    for one, true, own, other, codes in zip(*(torch.split(each, rows) for each in whole), strict=True):
        reached = ~_about(one, own) | ~true.isfinite()
        needed = one.isnan() & true.isnan() & ~_about(other, own)
        left = reached & ~needed
        one.masked_fill_(left, math.nan)
        true.masked_fill_(left, math.nan)
        if spreads is Spread.ANYWHERE:
            codes.fill_(ANY_NONFINITE)
        elif spreads is Spread.ROWS:
            codes[reached.flatten(1).any(1) if reached.dim() > 1 else reached] = ANY_NONFINITE
        codes.masked_fill_(left, ANY_VALUE).masked_fill_(needed, RIGHT)
    return found


def _about(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where two answers are the same; nowhere if one is NaN."""
    return (one - other).abs() <= SAME * other.abs()
