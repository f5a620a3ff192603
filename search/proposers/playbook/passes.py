"""Reductions and normalisations as passes over the elements of a row: one text for C++ and Triton.

The texts are formulas (`formulas.py`). In a pass, `t` is the value gathered so far, `v` an element, `u` the
value that another lane gathered, `n` the number of elements, and `m` the result of the pass before. `s0` is
the operator's scalar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from search.proposers.playbook.formulas import OPERANDS


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass over a row.

    Attributes:
        step: The next value of `t`, after the element `v`.
        merge: The value for the elements of both `t` and `u`.
        start: The first value: a number, or `lowest`, `highest` or the finite `least` of the type.
        finish: The result of the pass.
        moved: If given, the pass can run together with the one that computes `about`. It turns a value `t`
            that `count` elements gathered with `before` in place of `about` into the value for `after`.
        about: The result of another pass that `step` depends on.
        term: The summand of a pass that computes a mean. A kernel may sum differences from one of the terms
            instead: then equal numbers have no rounding errors.
    """

    step: str
    merge: str = "t + u"
    start: str = "0"
    finish: str = "t"
    moved: str = ""
    about: str = "m"
    term: str = ""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """An operator with one result for each row; `scalars` as in `Formula`."""

    passes: tuple[Pass, ...]
    scalars: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """An operator with one result for each element.

    Attributes:
        passes: Both passes; their results are `m` and `r`.
        write: The result, where `w` and `b` are the element's weight and bias.
        dims: A Python expression for the normalised dimensions.
        each: What `e` means in the second pass and in `write`.
        scalars: As in `Formula`.
        more: Whether the operator also returns `m` and `r`.
    """

    passes: tuple[Pass, Pass]
    write: str
    dims: str
    each: str = ""
    scalars: Mapping[str, str] = field(default_factory=dict)
    more: bool = False


@dataclass(frozen=True, kw_only=True)
class Round:
    """Passes that share one loop over a row: those in `first`, and those in `then`, each about a result of
    `first`."""

    first: tuple[str, ...]
    then: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All passes of the round."""
        return self.first + self.then


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Element-wise steps and passes over the same dimensions.

    Attributes:
        steps: By name a text over earlier steps, the operands, `scalars` and `n`, or a pass, whose value is
            the gathered one, before `finish`.
        last: The step that is the result.
        dims: A Python expression for the dimensions of a row; None for all.
        kept: Whether the result has one element for each row.
        keepdim: A Python expression: whether such a result keeps the reduced dimensions.
        scalars: By name a Python expression for a number.
        optional: By name of an operand that may be left out, the number in its place.
        also: Steps that are further results, with one element for each row.
    """

    steps: Mapping[str, str | Pass]
    last: str
    dims: str
    kept: bool
    keepdim: str = "False"
    scalars: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    @cached_property
    def passes(self) -> dict[str, Pass]:
        """The steps that are passes."""
        return {name: step for name, step in self.steps.items() if isinstance(step, Pass)}

    @cached_property
    def elements(self) -> set[str]:
        """The steps whose values differ within a row."""
        found: set[str] = set()
        for name, text in self.steps.items():
            if isinstance(text, str) and any(word in found or word in OPERANDS for word in words_of(text)):
                found.add(name)
        return found

    def needed(self, *texts: str, given: str = "") -> list[str]:
        """The operands and element-wise steps that texts depend on, in order; `given` is taken as known."""
        elements, found = self.elements, set()
        waiting = [word for text in texts for word in words_of(text)]
        while waiting:
            word = waiting.pop()
            if word not in found and (word in elements or word in OPERANDS):
                found.add(word)
                step = "" if word == given else self.steps.get(word, "")
                waiting += words_of(step) if isinstance(step, str) else []
        return [each for each in (*OPERANDS, *self.steps) if each in found]

    def operands(self, *texts: str, given: str = "") -> list[int]:
        """The positions of the operands that texts depend on."""
        return [OPERANDS.index(each) for each in self.needed(*texts, given=given) if each in OPERANDS]

    @cached_property
    def reused(self) -> str:
        """The last element-wise step that both a pass and the result need; "" if there is none."""
        gathered = self.needed(*(each.step for each in self.passes.values()))
        found = [] if self.kept else [each for each in self.needed(self.last) if each in gathered]
        return next((each for each in reversed(found) if each not in OPERANDS), "")

    @property
    def texts(self) -> list[str]:
        """All texts."""
        several = [
            [each] if isinstance(each, str) else [each.step, each.merge, each.moved]
            for each in self.steps.values()
        ]
        return [text for each in several for text in each]

    @cached_property
    def depths(self) -> dict[str, int]:
        """By step the number of passes that must be complete before it, one after another."""
        depths: dict[str, int] = {}
        for name, step in self.steps.items():
            words = words_of(step.step if isinstance(step, Pass) else step)
            before = [depths[each] + isinstance(self.steps[each], Pass) for each in words if each in depths]
            depths[name] = max(before, default=0)
        return depths

    def rounds(self, joint: bool) -> list[Round]:
        """The passes, in as few loops over a row as possible; `joint` allows pairs of passes in one loop."""
        depths, passes = self.depths, self.passes
        count = max((depths[name] for name in passes), default=-1) + 1
        levels = [tuple(name for name in passes if depths[name] == level) for level in range(count)]
        found: list[Round] = []
        for level in levels:
            before = found[-1] if found else None
            if joint and before and not before.then and all(self._follows(each, before) for each in level):
                found[-1] = Round(first=before.first, then=level)
            else:
                found.append(Round(first=level))
        return found

    def centre(self, name: str) -> tuple[str, str]:
        """The pass whose result another pass is about, and the text of that result."""
        about = self.passes[name].about
        step = self.steps.get(about, "")
        if isinstance(step, Pass):
            return about, about
        return next((word for word in words_of(step) if word in self.passes), ""), step

    def _follows(self, name: str, before: Round) -> bool:
        """Whether a pass needs nothing from the round before except the value it is about."""
        step, depths = self.passes[name], self.depths
        source, text = self.centre(name)
        texts = [step.step, *(str(self.steps.get(each, "")) for each in self.needed(step.step))]
        gathered = {
            word
            for each in texts
            for word in words_of(each)
            if word in self.passes or (depths.get(word, 0) > 0 and word not in self.elements)
        }
        plain = {source, "n"}.issuperset(words_of(text))
        return bool(step.moved) and source in before.first and plain and gathered <= {step.about}


def add_step(steps: dict[str, str | Pass], step: str | Pass) -> str:
    """The name of a step; adds it unless there is an equal one."""
    known = next((name for name, each in steps.items() if each == step), None)
    name = known or f"t{len(steps)}"
    steps[name] = step
    return name


def add_passes(
    steps: dict[str, str | Pass], passes: Sequence[Pass], words: Mapping[str, str], each: str = ""
) -> list[str]:
    """Adds passes over the element `words["v"]`; returns the names of their results. `each` is what `e` means
    in passes after the first."""
    words, results = dict(words), list[str]()
    for one in passes:
        if each and results:
            words["e"] = add_step(steps, filled(each, words))
        step, term = filled(one.step, words), filled(one.term, words)
        own = replace(one, step=step, term=term, finish="t", about=words.get("m", ""))
        name = add_step(steps, own)
        finish = filled(one.finish, {**words, "t": name})
        words["m"] = name if finish == name else add_step(steps, finish)
        results.append(words["m"])
    return results


def add_normalisation(
    steps: dict[str, str | Pass], found: Normalisation, words: Mapping[str, str]
) -> tuple[str, str, str]:
    """Adds a normalisation of the element `words["v"]`; returns the names of its result, `m` and `r`."""
    m, r = add_passes(steps, found.passes, words, found.each)
    words = {**words, "m": m, "r": r}
    words["e"] = add_step(steps, filled(found.each, words)) if found.each else ""
    return add_step(steps, filled(found.write, words)), m, r


def operator_rows(operator: str, keepdim: bool, dim: bool) -> Rows | None:
    """The passes of an operator, if it has any. `keepdim` and `dim` are whether it has such arguments."""
    steps: dict[str, str | Pass] = {}
    if operator in REDUCTIONS:
        reduction = REDUCTIONS[operator]
        last = add_passes(steps, reduction.passes, {"v": "a"})[-1]
        return Rows(
            steps=steps,
            last=last,
            dims="tuple(self.dim_) if isinstance(self.dim_, list) else self.dim_" if dim else "None",
            kept=True,
            keepdim="self.keepdim_" if keepdim else "False",
            scalars=reduction.scalars,
        )
    if operator in NORMALISATIONS:
        found = NORMALISATIONS[operator]
        last, m, r = add_normalisation(steps, found, {"v": "a", "w": "b", "b": "c"})
        return Rows(
            steps=steps,
            last=last,
            dims=f"tuple({found.dims})",
            kept=False,
            scalars=found.scalars,
            optional={"b": "1", "c": "0"} if found.more else {},
            also=(m, r) if found.more else (),
        )
    return None


def words_of(text: str) -> list[str]:
    """The names in a text, except functions."""
    return re.findall(r"\b[a-z]\w*\b(?!\()", text)


def filled(text: str, words: Mapping[str, str]) -> str:
    """A formula with its names replaced."""
    return re.sub(r"\b[a-z]\w*\b(?!\()", lambda found: words.get(found[0], found[0]), text)


SUM = Pass(step="t + v")
MEAN = Pass(step="t + v", finish="t / n", term="v")
PRODUCT = Pass(step="t * v", merge="t * u", start="1")
MAXIMUM = Pass(step="greater(t, v)", merge="greater(t, u)", start="lowest")
MINIMUM = Pass(step="smaller(t, v)", merge="smaller(t, u)", start="highest")
ANY = Pass(step="where(v != 0, 1, t)", merge="greater(t, u)")
ALL = Pass(step="where(v == 0, 0, t)", merge="smaller(t, u)", start="1")
NONZERO = Pass(step="t + where(v != 0, 1, 0)")
NUMBERS = Pass(step="t + where(v != v, 0, v)")
SQUARES = Pass(
    step="t + (v - m) * (v - m)",
    finish="t / where(n > s0, n - s0, 0)",
    moved="t + count * (after - before) * (after - before)",
)
DEVIATION = replace(SQUARES, finish=f"sqrt({SQUARES.finish})")
INVERSE = replace(SQUARES, finish="1 / sqrt(t / n + s0)")
PEAK = replace(MAXIMUM, finish="where(infinite(t), 0, t)")
LOG_OF_POWERS = Pass(step="t + exp(v - m)", finish="log(t) + m")
TOP = Pass(step="where(v > t, v, t)", merge="where(u > t, u, t)", start="least")
"""The maximum that exponentials are about. It starts at a finite number: otherwise a part of a row without
finite numbers would turn the rest into NaN. It ignores NaN, which the exponentials propagate."""
RESCALED = "t * exp(before - after)"

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

_SHARES = (TOP, Pass(step="t + e", finish="1 / t", moved=RESCALED))
NORMALISATIONS: Mapping[str, Normalisation] = {
    "aten._softmax.default": Normalisation(
        passes=_SHARES, each="exp(v - m)", write="e * r", dims="[self.dim_]"
    ),
    "aten._safe_softmax.default": Normalisation(
        passes=_SHARES, each="exp(v - m)", write="where(infinite(r), 0, e * r)", dims="[self.dim_]"
    ),
    "aten._log_softmax.default": Normalisation(
        passes=(TOP, Pass(step="t + exp(e)", finish="log(t)", moved=RESCALED)),
        each="v - m",
        write="e - r",
        dims="[self.dim_]",
    ),
    "aten.native_layer_norm.default": Normalisation(
        passes=(MEAN, INVERSE),
        write="(v - m) * r * w + b",
        dims="range(-len(self.normalized_shape_), 0)",
        scalars={"s0": "self.eps_"},
        more=True,
    ),
}
