"""What reductions and normalisations compute, as passes over the elements that are reduced: one text for C++
and Triton, in the words of `formulas`.

In a pass `t` is what was gathered so far, `v` an element, `u` what another lane gathered, `n` the number of
elements, and `m` what the pass before came to. `s0` is the operator's scalar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from search.proposers.playbook.formulas import OPERANDS


@dataclass(frozen=True, kw_only=True)
class Pass:
    """`start` is a number, or `lowest` or `highest` of the type."""

    step: str
    merge: str = "t + u"
    start: str = "0"
    finish: str = "t"


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """An operator with one value for all elements that it reduces; `scalars` as in `Formula`."""

    passes: tuple[Pass, ...]
    scalars: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """An operator with one value for each element, `write`: there `m` and `r` are the results of both passes,
    `w` and `b` the element's weight and bias. `more`: whether it returns `m` and `r`, too. `dims`: a Python
    expression for the dimensions that are normalised."""

    passes: tuple[Pass, Pass]
    write: str
    dims: str
    scalars: Mapping[str, str] = field(default_factory=dict)
    more: bool = False


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Element-wise steps with passes among them, which all gather over the dimensions `dims`, counted from
    the end. `steps`: names with texts over those before them, over the operands and over `n`, the number of
    elements of a row; a pass is what it gathered, before `finish`. `last`: the step that is the result; with
    `kept` it is one element for each row, and the dimensions stay where `keepdim` says so."""

    steps: Mapping[str, str | Pass]
    last: str
    dims: tuple[int, ...]
    kept: bool
    keepdim: bool

    @property
    def elements(self) -> set[str]:
        """The names of steps that differ within a row."""
        found: set[str] = set()
        for name, text in self.steps.items():
            if isinstance(text, str) and any(word in found or word in OPERANDS for word in words_of(text)):
                found.add(name)
        return found

    def needed(self, text: str) -> list[str]:
        """The operands and the steps within a row that a text is over, in their order."""
        elements, found, waiting = self.elements, set(), words_of(text)
        while waiting:
            word = waiting.pop()
            if word not in found and (word in elements or word in OPERANDS):
                found.add(word)
                step = self.steps.get(word, "")
                waiting += words_of(step) if isinstance(step, str) else []
        return [each for each in (*OPERANDS, *self.steps) if each in found]

    def operands(self, text: str) -> list[int]:
        """The places of the operands that a text is over."""
        return [OPERANDS.index(each) for each in self.needed(text) if each in OPERANDS]

    @property
    def texts(self) -> list[str]:
        """All of it."""
        several = [
            [each] if isinstance(each, str) else [each.step, each.merge] for each in self.steps.values()
        ]
        return [text for each in several for text in each]


def rows_from(found: Reduction) -> Rows:
    """A reduction as a chain of its passes over the operand `a`, which leaves one element for each row. What
    the chain says of dimensions does not count: an operator is given them."""
    steps: dict[str, str | Pass] = {}
    words = {"v": OPERANDS[0]}
    for place, each in enumerate(found.passes):
        gathered, finished = f"t{2 * place}", f"t{2 * place + 1}"
        steps[gathered] = replace(each, step=filled(each.step, words), finish="t")
        steps[finished] = filled(each.finish, {**words, "t": gathered})
        words["m"] = finished
    return Rows(steps=steps, last=words["m"], dims=(), kept=True, keepdim=False)


def words_of(text: str) -> list[str]:
    """The names in a text, without those of functions."""
    return re.findall(r"\b[a-z]\w*\b(?!\()", text)


def filled(text: str, words: Mapping[str, str]) -> str:
    """A formula with its names replaced."""
    return re.sub(r"\b([a-z]|s\d)\b(?!\()", lambda found: words.get(found[0], found[0]), text)


SUM = Pass(step="t + v")
MEAN = Pass(step="t + v", finish="t / n")
PRODUCT = Pass(step="t * v", merge="t * u", start="1")
MAXIMUM = Pass(step="greater(t, v)", merge="greater(t, u)", start="lowest")
MINIMUM = Pass(step="smaller(t, v)", merge="smaller(t, u)", start="highest")
ANY = Pass(step="where(v != 0, 1, t)", merge="greater(t, u)")
ALL = Pass(step="where(v == 0, 0, t)", merge="smaller(t, u)", start="1")
NONZERO = Pass(step="t + where(v != 0, 1, 0)")
NUMBERS = Pass(step="t + where(v != v, 0, v)")
SQUARES = Pass(step="t + (v - m) * (v - m)", finish="t / where(n > s0, n - s0, 0)")
DEVIATION = Pass(step=SQUARES.step, finish=f"sqrt({SQUARES.finish})")
PEAK = Pass(step=MAXIMUM.step, merge=MAXIMUM.merge, start="lowest", finish="where(infinite(t), 0, t)")
POWERS = Pass(step="t + exp(v - m)")
LOG_OF_POWERS = Pass(step=POWERS.step, finish="log(t) + m")
INVERSE = Pass(step=SQUARES.step, finish="1 / sqrt(t / n + s0)")

_CORRECTION = {"s0": "1 if self.correction_ is None else self.correction_"}


def _forms(passes: tuple[Pass, ...], *names: str, **scalars: str) -> dict[str, Reduction]:
    return {f"aten.{name}": Reduction(passes=passes, scalars=scalars) for name in names}


REDUCTIONS: Mapping[str, Reduction] = {
    **_forms((SUM,), "sum.default", "sum.dim_IntList"),
    **_forms((MEAN,), "mean.default", "mean.dim"),
    **_forms((PRODUCT,), "prod.default", "prod.dim_int"),
    **_forms((MAXIMUM,), "amax.default", "max.default"),
    **_forms((MINIMUM,), "amin.default", "min.default"),
    **_forms((ANY,), "any.default", "any.dim", "any.dims"),
    **_forms((ALL,), "all.default", "all.dim", "all.dims"),
    **_forms((NONZERO,), "count_nonzero.default", "count_nonzero.dim_IntList"),
    **_forms((NUMBERS,), "nansum.default"),
    **_forms((MEAN, SQUARES), "var.correction", **_CORRECTION),
    **_forms((MEAN, DEVIATION), "std.correction", **_CORRECTION),
    **_forms((PEAK, LOG_OF_POWERS), "logsumexp.default"),
}

NORMALISATIONS: Mapping[str, Normalisation] = {
    "aten._softmax.default": Normalisation(
        passes=(MAXIMUM, POWERS), write="exp(v - m) / r", dims="[self.dim_]"
    ),
    "aten._safe_softmax.default": Normalisation(
        passes=(PEAK, POWERS), write="where(r == 0, 0, exp(v - m) / r)", dims="[self.dim_]"
    ),
    "aten._log_softmax.default": Normalisation(
        passes=(MAXIMUM, POWERS), write="v - m - log(r)", dims="[self.dim_]"
    ),
    "aten.native_layer_norm.default": Normalisation(
        passes=(MEAN, INVERSE),
        write="(v - m) * r * w + b",
        dims="range(-len(self.normalized_shape_), 0)",
        scalars={"s0": "self.eps_"},
        more=True,
    ),
}
