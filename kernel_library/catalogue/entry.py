"""Records of one kernel of the library and everything known about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import DTYPES, Kernel, Problem, content_id
from kernel_library.overrides.shapes import fits

SLOWER = 0.9
"""A check fails if the whole interval of the kernel's speedup on the same device is below this share of the
card's speedup: two measurements of one kernel differ by a few per cent."""


@dataclass(frozen=True, kw_only=True)
class Against:
    """How many times as fast a kernel is as another entry (by id), with the 95 % interval, measured in one
    session."""

    entry: str
    speedup: float
    speedup_low: float
    speedup_high: float

    @property
    def faster(self) -> bool:
        """Whether it is significantly faster."""
        return self.speedup_low > 1


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The evaluation of a kernel on one problem. `inputs` are the shapes of the problem's input tensors, such
    as `4096x65536`; `date` is the day of the measurement (ISO); `command` repeats it. `against` compares it
    with the entry that was the best until then, if one session measured both.

    Raises ValueError for an evaluation that is not correct, because the library has only correct kernels.
    """

    problem: Problem
    evaluation: Evaluation
    inputs: tuple[str, ...] = ()
    date: str = ""
    command: str = ""
    against: Against | None = None

    def __post_init__(self) -> None:
        if self.evaluation.status is not Status.CORRECT:
            raise ValueError(f"an entry needs a correct evaluation, not {self.evaluation.status.value}")

    @property
    def architecture(self) -> str:
        """Compute capability such as `9.0`, or `cpu`."""
        return architecture_of(self.problem.device, self.evaluation.environment.get("architecture", ""))


@dataclass(frozen=True, kw_only=True)
class AtShape:
    """A kernel's time at one of many shapes. `inputs` are the shapes of the first inputs, and of weights that
    matter (a convolution's), separated by spaces (`4096x4096 4096x4096`); `device` is its name,
    `architecture` the compute capability or `cpu`; `precision` the type to which the kernel may round
    factors, "" for none. Times are ms per call; the speedup is over eager PyTorch, with its 95 % interval;
    `roofline_share` is 0 if unknown. `backward`: a call is a forward and a backward pass."""

    inputs: str
    dtype: str
    precision: str
    device: str
    architecture: str
    kernel_ms: float
    eager_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float
    roofline_share: float
    backward: bool = False

    @property
    def place(self) -> tuple[str, ...]:
        """The shapes, types, device and passes; a later measurement with the same place replaces an earlier
        one."""
        return self.inputs, self.dtype, self.precision, self.device, str(self.backward)


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The origin of a kernel: the `run` (its folder), the kernel that it started from (`start`, an entry's
    id, "" for the reference), and the `ideas` that led to it, in order."""

    run: str = ""
    start: str = ""
    ideas: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RepeatedMeasurement:
    """A measurement of an entry, repeated by `ideatree verify`."""

    problem_id: str
    evaluation: Evaluation
    date: str = ""

    @property
    def device(self) -> str:
        """The device's name."""
        return self.evaluation.environment.get("device", "unknown device")

    @property
    def architecture(self) -> str:
        """Compute capability, or `cpu`."""
        return self.evaluation.environment.get("architecture") or "cpu"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A correct, measured kernel of the library.

    Attributes:
        kernel: the source and its language.
        measurements: evaluations, at least one.
        name: `<op>/<name>` for a shipped entry, otherwise "".
        op: the operation that it computes (`softmax`, `conv2d_relu_maxpool`).
        parts: the operations that `op` consists of.
        tags: keywords.
        dtypes: the dtypes for which it is correct.
        shapes: the shapes for which it is correct, one pattern per input tensor (see `fits`); empty if
            unknown.
        architectures: the only compute capabilities that it supports; empty for all.
        function: a function in its source, or a module class without constructor arguments; "" if neither.
        lineage: the run, kernel and ideas that it comes from.
        licence: SPDX licence, "" if unknown.
        notes: its author's remarks on the figures, what was tried and what is missing.
        checks: results of `ideatree verify`.
        at_shapes: measurements at other shapes, on which `best` bases its choice.

    Raises:
        ValueError: a field is invalid.
    """

    kernel: Kernel
    measurements: tuple[Measurement, ...]
    name: str = ""
    op: str = ""
    parts: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    function: str = ""
    lineage: Lineage = field(default_factory=Lineage)
    licence: str = ""
    notes: str = ""
    checks: tuple[RepeatedMeasurement, ...] = ()
    at_shapes: tuple[AtShape, ...] = ()

    def __post_init__(self) -> None:
        if not self.measurements:
            raise ValueError("an entry needs at least one measurement")
        if unknown := set(self.dtypes) - set(DTYPES):
            raise ValueError(f"dtypes has {', '.join(sorted(unknown))}; choose from {', '.join(DTYPES)}")
        for pattern in self.shapes:
            fits(pattern, ())

    @property
    def id(self) -> str:
        """The name of a shipped entry; otherwise a hash of the kernel, the first problem and the
        architecture."""
        first = self.measurements[0]
        return self.name or content_id("entry", self.kernel.id, first.problem.id, first.architecture)

    @property
    def best(self) -> Measurement:
        """The measurement with the largest lower end of the speedup's interval."""
        return max(self.measurements, key=lambda each: each.evaluation.speedup_low)

    def measured(self, problem_id: str, device: str) -> Evaluation | None:
        """The latest evaluation for the problem on the device with this name, if it was correct."""
        found = [m.evaluation for m in self.measurements if m.problem.id == problem_id]
        found += [check.evaluation for check in self.checks if check.problem_id == problem_id]
        found = [each for each in found if device and each.environment.get("device") == device]
        return found[-1] if found and found[-1].status is Status.CORRECT else None

    def checks_of(self, measurement: Measurement) -> list[RepeatedMeasurement]:
        """The checks that repeat the measurement."""
        return [check for check in self.checks if check.problem_id == measurement.problem.id]

    def failure(self, check: RepeatedMeasurement) -> str:
        """Why a check does not confirm the card; "" if it does."""
        now = check.evaluation
        if now.timing is None:
            return f"{now.status.value} ({now.rule})" if now.rule else now.status.value
        for measurement in self.measurements:
            then = measurement.evaluation
            same_device = then.environment.get("device") == now.environment.get("device")
            slower = now.timing.speedup_high < SLOWER * then.speedup
            if measurement.problem.id == check.problem_id and same_device and slower:
                return f"slower: {now.speedup:.2f}x, {then.speedup:.2f}x in the card"
        return ""

    def runs_on(self, architecture: str) -> bool:
        """Whether it may be used on this architecture ("": any): it is not restricted to others, and no check
        failed there."""
        failed = {check.architecture for check in self.checks if check.evaluation.timing is None}
        confined = bool(self.architectures) and architecture != "" and architecture not in self.architectures
        return not confined and architecture not in failed


class HitKind(StrEnum):
    """How an entry relates to a problem, the closest relation first."""

    PROBLEM = "problem"
    """It was measured on this problem."""
    REFERENCE = "reference"
    """It was measured on the same reference with other sizes or rules, and is correct for these, too."""
    OP = "op"
    """It computes the same operation in another setting."""
    PART = "part"
    """It computes a part of the problem, or the problem is a part of what it computes."""
    RELATED = "related"
    """Its techniques apply to the problem."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """An entry found for a problem; `why` gives the reason in one line. `evaluation` is its evaluation on
    this problem and device; None if unknown."""

    entry: Entry
    kind: HitKind
    why: str
    evaluation: Evaluation | None = None

    @property
    def drop_in(self) -> bool:
        """Whether its `ModelNew` can replace the problem's `Model`; otherwise it only serves as an
        example."""
        return self.kind in (HitKind.PROBLEM, HitKind.REFERENCE)


def architecture_of(device: str, capability: str) -> str:
    """`cpu`, or the GPU's compute capability."""
    return "cpu" if device == "cpu" else capability
