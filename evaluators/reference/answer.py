"""The right answer to one set of inputs, and how outputs are judged against it."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import Problem
from evaluators.reference.accuracy.comparison import OutputComparison, Shift, compare, passes_allclose
from evaluators.reference.accuracy.differences import CHUNK
from evaluators.reference.accuracy.sampled_elements import Places, pick
from evaluators.reference.inputs.strided_layouts import holds_all

if TYPE_CHECKING:
    import torch

SAME = 1e-3
"""Two answers of a stateless reference to the same inputs differ by less than this, normwise."""


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
    statistical tests compare the outputs: the tests need them."""

    eager: list[torch.Tensor]
    exact: list[torch.Tensor]
    shifts: list[Shift]
    places: list[Places | None]
    shifts_here: Callable[[], list[Shift]] | None = None
    whole: Callable[[], ReferenceAnswer] | None = None
    inputs: list[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the kept elements."""
        return sum(each.nbytes for each in (*self.eager, *self.exact))


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
    indices: bool,
    exact: bool,
    products: bool,
) -> OutputComparison:
    """Compares outputs with the right ones and returns the worst comparison. Integer outputs are compared
    only with `indices`. `own`, `exact` and `products` are those of `comparison.compare`."""
    found = []
    for number, out in enumerate(outputs):
        if not (indices or out.is_floating_point() or out.is_complex()):
            found.append(OutputComparison(error=0.0, eager_error=0.0, problem=""))
            continue
        right, eager = answer.exact[number], answer.eager[number]
        if out.numel() != right.numel():  # already picked outputs stay as they are
            out = pick(out, answer.places[number])
        if products and not indices and out.is_floating_point():
            out = out.where(out.isfinite(), right.to(out.dtype))  # see `mask_ambiguous`
        comparison = compare(
            out,
            right,
            eager,
            tolerance=tolerance,
            shift=answer.shifts[number],
            own=own,
            exact=exact,
            products=products,
        )
        found.append(comparison)
    return max(found, key=lambda c: (bool(c.problem), c.error))


def benchmark_rules(outputs: list[torch.Tensor], answer: ReferenceAnswer) -> dict[str, bool]:
    """Whether KernelBench's own rules (flat tolerances around eager's whole answer) accept the outputs."""
    pairs = list(zip(outputs, answer.eager, strict=True))
    rules = ("kernelbench", "kernelbench_v02")
    return {rule: all(passes_allclose(*pair, rule) for pair in pairs) for rule in rules}


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy if its elements share memory (`expand`)."""
    return tensor if holds_all(tensor) else tensor.contiguous()


def mask_ambiguous(eager: list[torch.Tensor], exact: list[torch.Tensor], finite: list[torch.Tensor]) -> None:
    """Sets to NaN, in place, every element that infinities or NaN among a product's factors have changed, or
    would change by the formula: what such an element becomes depends on how the product is computed (see
    `comparison.compare`). `finite` is the answer without infinities and NaN. The other elements must stay
    right, but a kernel may return NaN there, because PyTorch's own Winograd convolution spreads NaN over a
    tile."""
    import torch

    for three in zip(eager, exact, finite, strict=True):
        if not three[0].is_floating_point() or not three[0].numel():
            continue
        whole = three if three[0].dim() else tuple(each[None] for each in three)
        rows = max(1, len(whole[0]) * CHUNK // whole[0].numel())  # limits the memory needed
        for one, true, own in zip(*(torch.split(each, rows) for each in whole), strict=True):
            same = (one - own).abs() <= SAME * own.abs()  # False for NaN
            changed = ~same | ~true.isfinite()
            one.masked_fill_(changed, math.nan)
            true.masked_fill_(changed, math.nan)
