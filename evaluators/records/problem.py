"""The computation to speed up (`Problem`) and a candidate for it (`Kernel`). Records only, standard
library."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from evaluators.base.json_record import JsonRecord
from evaluators.base.languages import LANGUAGES, language_of

DEVICES = ("cpu", "cuda")
TOLERANCES = ("kernelbench", "kernelbench_v02", "strict")
DTYPES = ("float64", "float32", "bfloat16", "float16")
LOWER = ("float16", "bfloat16", "tfloat32")
PRECISIONS = ("", *LOWER)
LIBRARY_POLICIES = ("any", "no_library")
ON_DEVICE, ORIGINAL = "device", "original"
INPUTS = (ON_DEVICE, ORIGINAL)

LAYOUTS = ("", "transposed", "strided")

Size = int | float | bool | str | tuple["Size", ...]
"""A value for a module global of a reference."""


@dataclass(frozen=True, kw_only=True)
class Case(JsonRecord):
    """One case of a problem.

    Attributes:
        sizes: Module globals of the reference to replace, by name.
        dtype: The case's dtype; "" for the problem's.
        layout: The case's input layout; "" for the problem's.
        weight: Weight of the case's speedup in the problem's. With 0 the kernel only has to be right.
        held_out: Whether the evaluator drew the case itself and keeps it secret until the verdict.
        droppable: Whether the problem goes without this case if its reference cannot judge here: one of
            many cases that a suite generated.

    Raises:
        ValueError: A field has a value that no evaluation could use.
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
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Restores the tuples among the sizes."""
        return super().from_json({**data, "sizes": _with_tuples(data.get("sizes", {}))})

    @property
    def name(self) -> str:
        """The case's name, unique within its problem."""
        sizes = (f"{name}={value}" for name, value in self.sizes.items())
        return " ".join(filter(None, (*sizes, self.dtype, self.layout))) or "as it is"


@dataclass(frozen=True, kw_only=True)
class Problem(JsonRecord):
    """A PyTorch reference in KernelBench's format, and the rules for judging a kernel for it.

    Attributes:
        name: The problem's name, for example `level1/softmax`.
        source: Python source that defines `Model`, `get_inputs()` and `get_init_inputs()`, with sizes as
            module globals.
        overrides: Module globals of the source to replace, by name.
        dtype: Dtype of floating-point inputs and weights.
        tolerance: The rule for comparing outputs (see `evaluators.reference.accuracy.comparison`).
        precision: With `strict`, the type to which a kernel may round the factors of products; sums stay in
            the problem's dtype. "": factors stay in it, too.
        device: `cpu` or `cuda`.
        libraries: `any`, or `no_library` if the kernel's own code must do the work (see
            `evaluators.judge.attribution.attribution`).
        floor: Whether to reject a kernel that is faster than the machine can be (see
            `evaluators.reference.cost.roofline`). Set it to False for a problem with an algebraic short cut.
        allow_degenerate: Whether to accept a reference that cannot judge (see
            `evaluators.reference.validation`).
        inputs: Where inputs are drawn: on the `device`, or on the CPU like KernelBench's program
        (`original`). layout: Memory layout of inputs with at least two dimensions: `transposed` (the last two
        swapped),
            `strided` (every other element), or "" as drawn.
        cases: The cases on which a kernel is judged; none: the source as it stands.
        case_of: Id of the problem that this one is a case of; "" for none.
        timed: Whether kernels are timed. If not, a kernel only has to be right.
        backward: Whether the kernel is for training: the gradients of inputs and weights are compared too,
            and forward and backward are timed together (see `evaluators.reference.gradients`).

    Raises:
        ValueError: A field has a value that no evaluation could use.
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
    backward: bool = False

    def __post_init__(self) -> None:
        _one_of("problem.device", self.device, DEVICES)
        _one_of("problem.tolerance", self.tolerance, TOLERANCES)
        _one_of("problem.dtype", self.dtype, DTYPES)
        _one_of("problem.precision", self.precision, PRECISIONS)
        if self.precision and self.tolerance != "strict":
            raise ValueError(f"problem.precision={self.precision} needs problem.tolerance=strict")
        _one_of("problem.libraries", self.libraries, LIBRARY_POLICIES)
        if self.libraries == "no_library" and not self.timed:
            raise ValueError(
                "without timing, problem.libraries=no_library cannot be checked; set problem.libraries=any"
            )
        _one_of("problem.inputs", self.inputs, INPUTS)
        _one_of("problem.layout", self.layout, LAYOUTS)
        if self.cases and not any(each.weight for each in self.cases):
            raise ValueError(
                "all cases of the problem have weight 0: nothing would be timed; give one a weight"
            )
        if not self.name or not self.source.strip():
            raise ValueError("a problem needs a name and the source of its reference")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Restores the tuples among the overrides."""
        return super().from_json({**data, "overrides": _with_tuples(data.get("overrides", {}))})

    def of_case(self, case: Case) -> Problem:
        """One case as a problem."""
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
            libraries=self.libraries if timed else "any",  # only timed cases attribute the work
        )

    @property
    def lower_precisions(self) -> tuple[str, ...]:
        """The types narrower than float32 to which a kernel may round the factors of products; none for a
        problem in a narrower type."""
        if self.dtype not in ("float32", "float64"):
            return ()
        return lower_precisions(self.tolerance, self.precision)

    @property
    def id(self) -> str:
        """Content hash: equal for problems with the same computation and the same rules."""
        sizes = sorted((key, repr(value)) for key, value in self.overrides.items())
        rules = [self.dtype, self.tolerance, self.device, self.libraries, repr(self.floor)]
        if self.precision:  # fields added later count only if set, so that older ids stay the same
            rules.append(self.precision)
        if self.inputs != ON_DEVICE:
            rules.append(self.inputs)
        if self.layout:
            rules.append(self.layout)
        if not self.timed:
            rules.append("not timed")
        if self.backward:
            rules.append("backward")
        rules += [f"{each.name} {each.weight}" for each in self.cases]
        return content_id(self.source, repr(sizes), *rules)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A candidate for a problem.

    Attributes:
        source: Python source that defines `ModelNew`, a drop-in replacement for the reference's `Model`.
        language: The name of one of `LANGUAGES`.

    Raises:
        ValueError: The language is unknown, or the source is empty or has a lone surrogate.
    """

    source: str
    language: str

    def __post_init__(self) -> None:
        _one_of("kernel.language", self.language, tuple(LANGUAGES))
        if not self.source.strip():
            raise ValueError("a kernel needs source")
        try:
            self.source.encode()
        except UnicodeEncodeError as error:
            found = error.object[error.start]
            raise ValueError(
                f"the kernel's source has a character that no file can have: {found!a}"
            ) from error

    @cached_property
    def id(self) -> str:
        """Hash of the source: equal sources are the same kernel."""
        return content_id(self.source)


def reference_kernel(problem: Problem) -> Kernel:
    """The reference as a kernel for itself. It gets overridden sizes from its constructor arguments and
    inputs."""
    source = f"{problem.source.rstrip()}\n\n\nclass ModelNew(Model):\n    pass\n"
    return Kernel(source=source, language=language_of(source))


def as_strict(known: Problem, asked: Problem) -> bool:
    """Whether the rules of one problem imply those of another: a kernel right for `known` is then right for
    `asked`."""
    if asked.backward and not known.backward:
        return False
    if known.tolerance != "strict":
        return TOLERANCES.index(known.tolerance) >= TOLERANCES.index(asked.tolerance)
    if asked.tolerance == "strict":
        return known.precision in ("", asked.precision)
    return not known.precision or asked.tolerance == "kernelbench"


def lower_precisions(tolerance: str, precision: str) -> tuple[str, ...]:
    """The types to which these rules allow the factors of float32 products to be rounded. Sums stay in
    float32."""
    if tolerance == "kernelbench":
        return LOWER
    return tuple(dict.fromkeys((precision, "tfloat32"))) if precision else ()


def content_id(*parts: str) -> str:
    """Twelve hexadecimal digits, a hash of the parts and their order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:12]


def _with_tuples(sizes: Mapping[str, Any]) -> dict[str, Size]:
    """Sizes with tuples for lists: JSON and YAML have no tuples."""

    def size(value: Any) -> Size:
        return tuple(map(size, value)) if isinstance(value, list | tuple) else value

    return {name: size(value) for name, value in sizes.items()}


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        known = ", ".join(each or "empty" for each in allowed)
        raise ValueError(f"{what} is {value!r}; it must be one of {known}")
