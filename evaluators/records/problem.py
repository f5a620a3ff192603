"""What is to be made fast (`Problem`) and what is offered for it (`Kernel`).

Records only: the standard library, nothing that touches a device.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

DEVICES = ("cpu", "cuda")
LANGUAGES = ("cpp", "cuda", "triton")
TOLERANCES = ("kernelbench", "kernelbench_v02", "strict")
DTYPES = ("float64", "float32", "bfloat16", "float16")
LOWER = ("float16", "bfloat16", "tfloat32")
PRECISIONS = ("", *LOWER)
LIBRARY_POLICIES = ("any", "no_library")
ON_DEVICE, ORIGINAL = "device", "original"
INPUTS = (ON_DEVICE, ORIGINAL)

LAYOUTS = ("", "transposed", "strided")

Size = int | float | bool | str | tuple["Size", ...]
"""A value that a problem may give to a module global of its reference."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case of a problem: `sizes` replace module globals of the reference, `dtype` and `layout` the
    problem's own, which hold where they are "". `weight`: of the case's speedup in the problem's, 0 where a
    kernel has to be right and no more. `held_out`: drawn by the evaluator, and told to nobody before the
    verdict. `droppable`: one of many that a suite has made: where its reference cannot judge, the others do.

    Raises ValueError when a field has a value that no evaluation could use.
    """

    sizes: Mapping[str, Size] = field(default_factory=dict)
    dtype: str = ""
    layout: str = ""
    weight: float = 1.0
    held_out: bool = False
    droppable: bool = False

    def __post_init__(self) -> None:
        _one_of("case.dtype", self.dtype, ("", *DTYPES))
        _one_of("case.layout", self.layout, LAYOUTS)
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"case.weight is {self.weight}; it must be finite and not negative")

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Case:
        """Out of the plain JSON types that `dataclasses.asdict` makes of one. Raises TypeError for others."""
        return cls(**{**fields, "sizes": sizes_from_json(fields.get("sizes", {}))})

    @property
    def name(self) -> str:
        """What tells it from the others of its problem."""
        sizes = (f"{name}={value}" for name, value in self.sizes.items())
        return " ".join(filter(None, (*sizes, self.dtype, self.layout))) or "as it is"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A PyTorch reference in KernelBench's format, and the rules by which a kernel for it is judged.

    `source` defines `Model`, `get_inputs()` and `get_init_inputs()`, with sizes as module globals;
    `overrides` replaces such globals by name. `tolerance` names a rule of
    `evaluators.reference.accuracy.comparison`, and `precision` the type to which a kernel may round the factors of
    products, sums staying in the problem's own ("": they stay, too; for `strict` alone).
    `libraries`: whether a kernel may leave the work to libraries (`any`) or must do it itself
    (`no_library`, see `evaluators.judge.attribution.attribution`). `allow_degenerate` accepts a reference that cannot
    judge (see `evaluators.reference.validation`). `floor` rejects a kernel that is faster than the machine
    can be (see `evaluators.reference.cost.roofline`); it is to be false for problems with an algebraic short cut.
    `inputs` are drawn on the device, or, as KernelBench's `original` program does, on the CPU. `layout`: of
    inputs with two dimensions or more, `transposed` (the last two are swapped in memory) or `strided` (every
    other element of the memory); "" leaves them as they are drawn. A kernel is judged on all of the `cases`,
    where there are any; `case_of` is the id of the problem that this one is a case of. Without `timed` a
    kernel has to be right, and nothing is timed.
    Raises ValueError when a field has a value that no evaluation could use.
    """

    name: str
    source: str
    overrides: Mapping[str, Size] = field(default_factory=dict)
    dtype: str = "float32"
    tolerance: str = "strict"
    precision: str = ""
    device: str = "cpu"
    libraries: str = "any"
    floor: bool = True
    allow_degenerate: bool = False
    inputs: str = ON_DEVICE
    layout: str = ""
    cases: tuple[Case, ...] = ()
    case_of: str = ""
    timed: bool = True

    def __post_init__(self) -> None:
        _one_of("problem.device", self.device, DEVICES)
        _one_of("problem.tolerance", self.tolerance, TOLERANCES)
        _one_of("problem.dtype", self.dtype, DTYPES)
        _one_of("problem.precision", self.precision, PRECISIONS)
        if self.precision and self.tolerance != "strict":
            raise ValueError(f"problem.precision={self.precision} goes with problem.tolerance=strict alone")
        _one_of("problem.libraries", self.libraries, LIBRARY_POLICIES)
        if self.libraries == "no_library" and not self.timed:
            raise ValueError(
                "a problem that is not timed cannot tell whose work a kernel's is: set problem.libraries=any"
            )
        _one_of("problem.inputs", self.inputs, INPUTS)
        _one_of("problem.layout", self.layout, LAYOUTS)
        if self.cases and not any(each.weight for each in self.cases):
            raise ValueError("no case of the problem has a weight: nothing would be timed")
        if not self.name or not self.source.strip():
            raise ValueError("a problem needs a name and the source of its reference")

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Problem:
        """Out of the plain JSON types that `dataclasses.asdict` makes of one. Raises TypeError for others."""
        overrides = sizes_from_json(fields.get("overrides", {}))
        cases = tuple(map(Case.from_json, fields.get("cases", ())))
        return cls(**{**fields, "overrides": overrides, "cases": cases})

    def of_case(self, case: Case) -> Problem:
        """The problem that a case is by itself."""
        timed = self.timed and case.weight > 0
        return replace(
            self,
            name=f"{self.name} [{case.name}]",
            overrides={**self.overrides, **case.sizes},
            dtype=case.dtype or self.dtype,
            layout=case.layout or self.layout,
            cases=(),
            case_of=self.id,
            timed=timed,
            libraries=self.libraries if timed else "any",  # whose work it is, timed cases show
        )

    @property
    def lower_precisions(self) -> tuple[str, ...]:
        """The types narrower than float32 to which a kernel may round the factors of products."""
        if self.dtype not in ("float32", "float64"):
            return ()
        return lower_precisions(self.tolerance, self.precision)

    @property
    def id(self) -> str:
        """Content hash: equal for problems that ask for the same computation under the same rules."""
        sizes = sorted((key, repr(value)) for key, value in self.overrides.items())
        rules = [self.dtype, self.tolerance, self.device, self.libraries, repr(self.floor)]
        if self.precision:  # a problem without one has the id that it had before there were any
            rules.append(self.precision)
        if self.inputs != ON_DEVICE:
            rules.append(self.inputs)
        if self.layout:
            rules.append(self.layout)
        if not self.timed:
            rules.append("not timed")
        rules += [f"{each.name} {each.weight}" for each in self.cases]
        return content_id(self.source, repr(sizes), *rules)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Python source that defines `ModelNew`, a drop-in replacement of the reference's `Model`."""

    source: str
    language: str

    def __post_init__(self) -> None:
        _one_of("kernel.language", self.language, LANGUAGES)
        if not self.source.strip():
            raise ValueError("a kernel needs source")

    @cached_property
    def id(self) -> str:
        """Hash of the source: equal sources are one kernel."""
        return content_id(self.source)


def reference_kernel(problem: Problem) -> Kernel:
    """The reference as a kernel for itself. Where sizes are overridden, it takes those that its constructor
    and inputs tell it."""
    source = f"{problem.source.rstrip()}\n\n\nclass ModelNew(Model):\n    pass\n"
    return Kernel(source=source, language=language_of(source))


def as_strict(known: Problem, asked: Problem) -> bool:
    """Whether what is right by the rules of one problem is right by those of another, as far as they tell."""
    if known.tolerance != "strict":
        return TOLERANCES.index(known.tolerance) >= TOLERANCES.index(asked.tolerance)
    if asked.tolerance == "strict":
        return known.precision in ("", asked.precision)
    return not known.precision or asked.tolerance == "kernelbench"


def lower_precisions(tolerance: str, precision: str) -> tuple[str, ...]:
    """The types to which rules allow to round the factors of float32 products, sums staying in float32."""
    if tolerance == "kernelbench":
        return LOWER
    return tuple(dict.fromkeys((precision, "tfloat32"))) if precision else ()


def language_of(source: str) -> str:
    """The language of a kernel, by what it imports and calls."""
    if re.search(r"^\s*(import|from)\s+triton\b", source, re.MULTILINE):
        return "triton"
    return "cuda" if "load_inline" in source and "cuda_sources" in source else "cpp"


def content_id(*parts: str) -> str:
    """Twelve hexadecimal digits that depend on the parts and their order, and on nothing else."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:12]


def sizes_from_json(sizes: Mapping[str, Any]) -> dict[str, Size]:
    """JSON and YAML know no tuples."""

    def size(value: Any) -> Size:
        return tuple(map(size, value)) if isinstance(value, list | tuple) else value

    return {name: size(value) for name, value in sizes.items()}


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        known = ", ".join(each or "empty" for each in allowed)
        raise ValueError(f"{what} is {value!r}; it must be one of {known}")
