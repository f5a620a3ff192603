"""Wrong kernels, made from correct ones by one change each; `benchmarks/mutants.py` evaluates them.

Each module here covers one operation. Its `EDITS` replace a text that must occur exactly once in a source: a
kernel of the library (`softmax/triton`), or a shipped reference (`torch:level1/softmax`), whose `Model`
becomes the kernel. In addition, every reference gets the `WRAPS`, which change its inputs or outputs.

Each mutant is wrong by more than rounding for some inputs or weights that the problem allows. A change
without any visible effect is not a mutant: a mask that is full at these sizes, a maximum over a ring whose
rows are in another order, 1e-3 of a float16 result.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.seeds import CASES, SEEDS, Case
from evaluators.base.languages import language_of
from evaluators.records.problem import Kernel, Problem
from evaluators.reference.loading import PROBLEMS

KINDS = {
    "term": "a term is left out",
    "part": "a part of a reduction",
    "stride": "a wrong stride or index",
    "tail": "off by one at the tail",
    "precision": "lower precision",
    "stale": "a race, or a value of before",
    "edge": "an edge is not initialised",
    "mask": "a mask or a guard is ignored",
    "range": "inputs are taken to lie in a range",
    "constant": "a wrong constant or sign",
}
ANY = "problem.libraries=any"
"""Any code may run, so that the problem is the same for all its mutants."""
TORCH = "torch:"
ASIDE = "    side = torch.cuda.Stream()\n    with torch.cuda.stream(side):\n      "
"""Code before a launch: makes it run concurrently with what follows, without synchronisation."""


class BadEdit(ValueError):
    """An edit no longer fits its source; the message is one line."""


@dataclass(frozen=True)
class Edit:
    """One change: `old`, which occurs once, becomes `new`; `why` it is wrong. `case` counts the problems of a
    library kernel (`benchmarks.seeds.CASES`): in which of them it shows. `spends`: a precision; where a
    problem allows that, the change is no mistake."""

    kind: str
    why: str
    old: str
    new: str
    case: int = 0
    spends: str = ""


@dataclass(frozen=True)
class Wrap:
    """Lines of a `forward(self, *inputs)` around the reference's own, which is `self.right(*inputs)`.
    `without`: problems in which it would show in nothing; `spends` as in an `Edit`."""

    kind: str
    why: str
    body: str
    without: tuple[str, ...] = ()
    spends: str = ""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong kernel, and the problem that it is for."""

    name: str
    base: str
    kind: str
    why: str
    case: Case
    kernel: Kernel


TEMPLATE = '''

class ModelNew(Right):
    """Wrong on purpose."""

    def right(self, *inputs):
        """The reference's outputs."""
        return super().forward(*inputs)

    def forward(self, *inputs):
        """{why}"""
        before, x = getattr(self, "before", None), inputs[0]
{body}
'''

WRAPS = (
    Wrap(
        "tail",
        "The last element of the output is the one before it.",
        "y = self.right(*inputs)\ny.view(-1)[-1] = y.view(-1)[-2]\nreturn y",
    ),
    Wrap(
        "edge",
        "The last 16 elements of the output are never written.",
        "y = self.right(*inputs)\nout = torch.empty_like(y)\n"
        "out.view(-1)[:-16] = y.view(-1)[:-16]\nreturn out",
    ),
    Wrap(
        "stale",
        "The last 64th of the output is that of the call before.",
        "self.before = self.right(*inputs)\ny = self.before.clone()\n"
        "if before is not None:\n    part = y.numel() // 64\n"
        "    y.view(-1)[-part:] = before.view(-1)[-part:]\nreturn y",
    ),
    Wrap(
        "stale",
        "The last row of the first input is that of the call before.",
        "row = x[..., -1:, :] if x.dim() > 1 else x\nself.before = row.clone()\n"
        "if before is not None:\n    x = x.clone()\n    x[..., -1:, :] = before\n"
        "return self.right(x, *inputs[1:])",
    ),
    Wrap(
        "precision",
        "The inputs are rounded to bfloat16.",
        "near = [v.bfloat16().to(v.dtype) if v.is_floating_point() else v for v in inputs]\n"
        "return self.right(*near)",
        without=("library/cross_entropy",),
        spends="bfloat16",
    ),
    Wrap(
        "precision",
        "The output is rounded to bfloat16.",
        "return self.right(*inputs).bfloat16().to(x.dtype)",
        spends="bfloat16",
    ),
    Wrap(
        "constant",
        "The output is 1.6 % too large.",
        "return self.right(*inputs) * (1 + 1 / 64)",
    ),
    Wrap(
        "constant",
        "The output is never negative.",
        "return self.right(*inputs).abs()",
        without=(
            "level1/softmax",
            "level2/conv2d_relu_maxpool",
            "library/cross_entropy",
        ),
    ),
    Wrap(
        "range",
        "The first input is taken to lie between -64 and 64.",
        "return self.right(x.clamp(-64, 64), *inputs[1:])",
    ),
    Wrap(
        "range",
        "What is smaller than 1e-4 in the first input is taken for zero.",
        "return self.right(torch.where(x.abs() < 1e-4, 0, x), *inputs[1:])",
        # A loss of about log(classes), a bias, or a product too small for float16 hides it.
        without=(
            "level1/conv2d",
            "level2/conv2d_relu_maxpool",
            "library/attention",
            "library/cross_entropy",
            "library/swiglu",
        ),
    ),
    Wrap(
        "stride",
        "The first two elements of the output change places.",
        "y = self.right(*inputs)\ny.view(-1)[:2] = y.view(-1)[:2].flip(0)\nreturn y",
    ),
    Wrap(
        "stride",
        "The last row of the first input is read from the row before it.",
        "x = x.clone()\nrows = x.view(-1, x.shape[-1])\nrows[-1] = rows[-2]\n"
        "return self.right(x, *inputs[1:])",
    ),
)


def edits() -> Mapping[str, Sequence[Edit]]:
    """All edits by the source they change, in the order of their modules."""
    found: dict[str, Sequence[Edit]] = {}
    for module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
        found.update(importlib.import_module(f"{__name__}.{module}").EDITS)
    return found


def mutants() -> list[Mutant]:
    """All of them; those of a library kernel are for its own device, those of a reference for either. Raises
    BadEdit."""
    return [*_of_texts(), *_of_wraps()]


def cases_of(base: str) -> list[Case]:
    """The problems of what is changed: a library kernel's own, a reference's for both devices."""
    if base.startswith(TORCH):
        problem = base.removeprefix(TORCH)
        return [Case(seed="", problem=problem, options=(ANY,), device=device) for device in ("cuda", "cpu")]
    found = [case for case in CASES if case.seed == base]
    return [
        Case(seed="", problem=case.problem, options=(*case.options, ANY), device=case.device)
        for case in found
    ]


@functools.cache
def problem_of(case: Case) -> Problem:
    """`case.to_problem()`, composed once."""
    return case.to_problem()


def source_of(base: str) -> str:
    """The correct kernel that is changed."""
    if base.startswith(TORCH):
        text = (PROBLEMS / f"{base.removeprefix(TORCH)}.py").read_text()
        return replaced(text, "class Model(", "class ModelNew(", base)
    return (SEEDS / base / "kernel.py").read_text()


WITHOUT = ("attention", "training", "transformer")
"""Folders of references that have no mutants yet."""


def problems() -> list[str]:
    """The names of the shipped references, but for those of WITHOUT."""
    found = (path.relative_to(PROBLEMS).with_suffix("") for path in PROBLEMS.glob("*/*.py"))
    return sorted(str(path) for path in found if path.name != "__init__" and path.parts[0] not in WITHOUT)


def replaced(source: str, old: str, new: str, what: str) -> str:
    """The source with its only `old` replaced by `new`. Raises BadEdit."""
    if (count := source.count(old)) != 1:
        raise BadEdit(f"{what}: {old!r} occurs {count} times, not once")
    return source.replace(old, new)


def _of_texts() -> Iterator[Mutant]:
    for base, changes in edits().items():
        source, cases = source_of(base), cases_of(base)
        if not cases:
            raise BadEdit(f"{base} is no kernel of benchmarks/seeds.py")
        for number, edit in enumerate(changes, 1):
            changed = replaced(source, edit.old, edit.new, f"{base}, {edit.kind} {number}")
            chosen = cases if base.startswith(TORCH) else [cases[edit.case]]
            yield from _mutants(base, f"{base} {edit.kind} {number}", edit, changed, chosen)


def _of_wraps() -> Iterator[Mutant]:
    for problem in problems():
        base = TORCH + problem
        right = replaced(source_of(base), "class ModelNew(", "class Right(", base)
        for number, wrap in enumerate(WRAPS, 1):
            if problem in wrap.without:
                continue
            body = "\n".join(f"        {line}" for line in wrap.body.splitlines())
            source = right + TEMPLATE.format(why=wrap.why, body=body)
            yield from _mutants(base, f"{base} {wrap.kind} w{number}", wrap, source, cases_of(base))


def _mutants(
    base: str, name: str, change: Edit | Wrap, source: str, cases: Sequence[Case]
) -> Iterator[Mutant]:
    if change.kind not in KINDS:
        raise BadEdit(f"{name}: the kind must be one of {', '.join(KINDS)}")
    kernel = Kernel(source=source, language=language_of(source))
    for case in cases:
        if not change.spends or change.spends != problem_of(case).precision:
            yield Mutant(name=name, base=base, kind=change.kind, why=change.why, case=case, kernel=kernel)
