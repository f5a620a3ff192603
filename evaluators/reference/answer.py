"""The right answer to one set of inputs, and what outputs are worth beside it."""

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
"""Normwise: answers of one reference to the same inputs differ by less, if it keeps no state."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One set of inputs: a secret seed, and the distribution, "" for the problem's own."""

    seed: int
    distribution: str = ""

    @classmethod
    def fresh(cls, distribution: str = "") -> Draw:
        """With a seed that nobody has seen."""
        return cls(seed=secrets.randbits(62), distribution=distribution)


@dataclass(frozen=True, kw_only=True)
class ReferenceAnswer:
    """The right outputs for one set of inputs. `exact` is float64's, or eager's where there is none; `shifts`
    how far they move by a rounding of the inputs, one an output; `places`: which elements these are, where
    not all were kept. `shifts_here` measures on exactly these inputs, where `shifts` are those of others.
    `whole`: the answer with all elements, where these are some. `inputs`: where outputs are compared by
    statistical tests, which take them."""

    eager: list[torch.Tensor]
    exact: list[torch.Tensor]
    shifts: list[Shift]
    places: list[Places | None]
    shifts_here: Callable[[], list[Shift]] | None = None
    whole: Callable[[], ReferenceAnswer] | None = None
    inputs: list[Any] | None = None

    @property
    def nbytes(self) -> int:
        """The memory of its elements."""
        return sum(each.nbytes for each in (*self.eager, *self.exact))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How answers are judged: the problem's tolerance, and the precision that it allows to factors."""

    tolerance: str
    precision: str
    dtype: str

    @classmethod
    def of(cls, problem: Problem) -> Rule:
        """`kernelbench` allows what float16 products cost."""
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
    """Compares outputs with the right ones; the worst of them. Integers count if `indices` do; `own`, `exact`
    and `products` as in `comparison.compare`."""
    found = []
    for number, out in enumerate(outputs):
        if not (indices or out.is_floating_point() or out.is_complex()):
            found.append(OutputComparison(error=0.0, eager_error=0.0, problem=""))
            continue
        right, eager = answer.exact[number], answer.eager[number]
        if out.numel() != right.numel():  # not of outputs that were picked before
            out = pick(out, answer.places[number])
        if products and not indices and out.is_floating_point():
            out = out.where(out.isfinite(), right.to(out.dtype))  # see `leave_open`
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
    """Whether the benchmark's own rules, flat tolerances around eager's whole answer, would take them."""
    pairs = list(zip(outputs, answer.eager, strict=True))
    rules = ("kernelbench", "kernelbench_v02")
    return {rule: all(passes_allclose(*pair, rule) for pair in pairs) for rule in rules}


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of one whose elements share memory (`expand`)."""
    return tensor if holds_all(tensor) else tensor.contiguous()


def leave_open(eager: list[torch.Tensor], exact: list[torch.Tensor], finite: list[torch.Tensor]) -> None:
    """Makes NaN, in place, of what infinities or NaN among the factors of products have changed, or would by
    the formula: it depends on how a product is computed (see `comparison.compare`). `finite`: the answer
    without them. What is left must not change, but may be NaN: PyTorch's own Winograd convolution spreads
    them over a tile."""
    import torch

    for three in zip(eager, exact, finite, strict=True):
        if not three[0].is_floating_point() or not three[0].numel():
            continue
        whole = three if three[0].dim() else tuple(each[None] for each in three)
        rows = max(1, len(whole[0]) * CHUNK // whole[0].numel())  # of what memory there is room for
        for one, true, own in zip(*(torch.split(each, rows) for each in whole), strict=True):
            same = (one - own).abs() <= SAME * own.abs()  # not so of NaN
            changed = ~same | ~true.isfinite()
            one.masked_fill_(changed, math.nan)
            true.masked_fill_(changed, math.nan)
