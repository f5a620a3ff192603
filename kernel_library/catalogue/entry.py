"""One kernel of the library, with all that is known of it: records."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import DTYPES, Kernel, Problem, content_id
from kernel_library.overrides.shapes import fits

SLOWER = 0.9
"""A kernel no longer holds when its speedup on the same device is less than this of what the card says, the
whole interval of it: two measurements of one kernel differ by some per cent."""


@dataclass(frozen=True, kw_only=True)
class Against:
    """How a kernel did against another `entry`, by its id, when one session measured both: how many times as
    fast it is, with the 95 % interval."""

    entry: str
    speedup: float
    speedup_low: float
    speedup_high: float

    @property
    def faster(self) -> bool:
        """Whether it surely is."""
        return self.speedup_low > 1


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was found of a kernel for one problem. `inputs` are the shapes of the problem's input tensors,
    such as `4096x65536`; `date` is that of the measurement (ISO), `command` repeats it. `against` is there
    where the entry that was the best for the problem on the device until then was measured beside it.

    Raises ValueError for an evaluation that is not correct: the library holds nothing else.
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
    """What a kernel took at one of many shapes. `inputs` are the shapes of the first inputs, and of weights
    that tell more (a convolution's), with a space between them (`4096x4096 4096x4096`); `device` is its name,
    `architecture` the compute capability or `cpu`; `precision` the type to which the kernel was allowed to
    round factors, "" for none. Times are ms a call; the speedup is over eager PyTorch, with its 95 %
    interval; `roofline_share` is 0 where it is not known."""

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

    @property
    def place(self) -> tuple[str, ...]:
        """What was measured, and where: of two measurements with the same place the later one counts."""
        return self.inputs, self.dtype, self.precision, self.device


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Where a kernel comes from: the `run` (its folder), the kernel that it started from there (`start`, an
    entry's id, "" for the reference) and the `ideas` that led to it, the first one first."""

    run: str = ""
    start: str = ""
    ideas: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RepeatedMeasurement:
    """A measurement of an entry, repeated on some machine (`python -m kernel_library.verify`)."""

    problem_id: str
    evaluation: Evaluation
    date: str = ""

    @property
    def device(self) -> str:
        """Its name."""
        return self.evaluation.environment.get("device", "unknown device")

    @property
    def architecture(self) -> str:
        """Compute capability, or `cpu`."""
        return self.evaluation.environment.get("architecture") or "cpu"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A kernel that was right and measured. `name` is `<op>/<name>` for a shipped one, "" otherwise.

    `op` is the family of what it computes (`softmax`, `conv2d_relu_maxpool`), `parts` the families in it.
    `dtypes` and `shapes` say where it is right: `shapes` has a pattern for each input tensor (see `fits`),
    none where nothing is known. `architectures`: the compute capabilities that it is confined to; none: any
    that its language runs on. `function` names the plain function in its source, or a module class to be made
    without arguments; "" where it has neither. `notes`: what its author says of the figures: what was tried,
    and where it falls short. `at_shapes`: what it took at other shapes, which says where it is chosen.

    Raises ValueError for values that no kernel has.
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
            raise ValueError(f"dtypes has {', '.join(sorted(unknown))}; there are {', '.join(DTYPES)}")
        for pattern in self.shapes:
            fits(pattern, ())

    @property
    def id(self) -> str:
        """The name of a shipped entry; otherwise a content hash: one kernel for one problem on one
        architecture is one entry."""
        first = self.measurements[0]
        return self.name or content_id("entry", self.kernel.id, first.problem.id, first.architecture)

    @property
    def best(self) -> Measurement:
        """The measurement whose speedup is surely the largest."""
        return max(self.measurements, key=lambda each: each.evaluation.speedup_low)

    def measured(self, problem_id: str, device: str) -> Evaluation | None:
        """What was last found for the problem on the device with this name, if it was correct."""
        found = [m.evaluation for m in self.measurements if m.problem.id == problem_id]
        found += [check.evaluation for check in self.checks if check.problem_id == problem_id]
        found = [each for each in found if device and each.environment.get("device") == device]
        return found[-1] if found and found[-1].status is Status.CORRECT else None

    def checks_of(self, measurement: Measurement) -> list[RepeatedMeasurement]:
        """Those that repeat the measurement."""
        return [check for check in self.checks if check.problem_id == measurement.problem.id]

    def outcome(self, check: RepeatedMeasurement) -> str:
        """Why the card no longer holds there; "" where it does."""
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
        """Whether it may be used there: it is not confined to others, and did not fail there when it was last
        tried. "" stands for any."""
        failed = {check.architecture for check in self.checks if check.evaluation.timing is None}
        confined = bool(self.architectures) and architecture != "" and architecture not in self.architectures
        return not confined and architecture not in failed


class HitKind(StrEnum):
    """Why an entry was found for a problem, the closest first."""

    PROBLEM = "problem"
    """It was measured on this very problem."""
    REFERENCE = "reference"
    """It was measured on the same reference at other sizes or rules, and is right for these, too."""
    OP = "op"
    """It computes the same operation in another setting."""
    PART = "part"
    """It computes a part of what is asked for, or has that as a part."""
    RELATED = "related"
    """Something in it can be taken over."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """An entry that was found for a problem. `why` says why, in one line. `evaluation` is what was found for
    this problem on this device; None where that is not known."""

    entry: Entry
    kind: HitKind
    why: str
    evaluation: Evaluation | None = None

    @property
    def drop_in(self) -> bool:
        """Whether its `ModelNew` can stand for the problem's `Model`; otherwise it is only to be read."""
        return self.kind in (HitKind.PROBLEM, HitKind.REFERENCE)


def architecture_of(device: str, capability: str) -> str:
    """`cpu`, or the GPU's compute capability."""
    return "cpu" if device == "cpu" else capability
