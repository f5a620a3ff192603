"""What an evaluation found. An inconsistent record cannot be built (after flashinfer-bench's `trace.py`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from evaluators.base.cause import cause_of

CLOCKS_BEFORE, CLOCKS_AFTER = "clocks_before", "clocks_after"
"""The facts of an environment that have a GPU's state before and after the measurement (see
`evaluators.system.nvml`)."""


class Status(StrEnum):
    """The verdict on one kernel. An INFRASTRUCTURE_ERROR is ours, and an UNFIT_REFERENCE cannot judge any
    kernel; everything else is the kernel's own doing. DECLINED: its `supports` says that it is not for such
    a case."""

    CORRECT = "correct"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    INCORRECT = "incorrect"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    REJECTED = "rejected"
    DECLINED = "declined"
    UNFIT_REFERENCE = "unfit_reference"
    INFRASTRUCTURE_ERROR = "infrastructure_error"

    @property
    def is_of_the_kernel(self) -> bool:
        """Whether it says something of the kernel."""
        return self not in (Status.UNFIT_REFERENCE, Status.INFRASTRUCTURE_ERROR)


class Stage(StrEnum):
    """Of a measurement, in this order; COMPARING is all of a head-to-head. They name the parts of
    `Evaluation.stages_s`."""

    STARTING = "starting"
    LOADING = "loading"
    CHECKING = "checking"
    COUNTING = "counting"
    """Whose code did the work?"""
    TIMING = "timing"
    ENDING = "ending"
    COMPARING = "comparing"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Kernel and baselines, measured in alternating blocks of one session.

    `speedup` is the median of paired ratios eager / kernel, `speedup_low` and `speedup_high` its 95 %
    interval. Times are medians per call in ms. `compile_ms` is None where `torch.compile` was not timed.
    `kernel_samples_ms` and `eager_samples_ms` hold one median a block, in the order of measurement.
    """

    kernel_ms: float
    eager_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float
    compile_ms: float | None = None
    kernel_samples_ms: tuple[float, ...] = ()
    eager_samples_ms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("kernel_ms", "eager_ms", "speedup", "speedup_low", "speedup_high"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"timing.{name} is {value}; it must be finite and positive")
        if not self.speedup_low <= self.speedup <= self.speedup_high:
            raise ValueError("the speedup lies outside its own interval")
        if self.compile_ms is not None and not self.compile_ms > 0:
            raise ValueError(f"timing.compile_ms is {self.compile_ms}; it must be positive or absent")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timing:
        """Raises TypeError or ValueError when `data` is not what `dataclasses.asdict` writes of a timing."""
        fields = dict(data)
        kernel, eager = fields.pop("kernel_samples_ms", ()), fields.pop("eager_samples_ms", ())
        return cls(kernel_samples_ms=tuple(kernel), eager_samples_ms=tuple(eager), **fields)

    @property
    def speedup_vs_compile(self) -> float | None:
        """`torch.compile`'s time over the kernel's, from the same session; None where it was not timed."""
        return None if self.compile_ms is None else self.compile_ms / self.kernel_ms


@dataclass(frozen=True, kw_only=True)
class Correctness:
    """How far the outputs were from the reference.

    `normwise_error` is ‖out − ref‖ / ‖ref‖ against the reference in float64 and `eager_error` the same
    for eager PyTorch at the task's own dtype, both the worst over the checked calls on the problem's own
    inputs. `distributions` says for each further input distribution that was tried whether the kernel was
    right there, `untried` why others were not. `benchmark_rules`: whether KernelBench's own rules, which
    compare with eager on the problem's own inputs alone, would have passed. `spread`: how far two answers to
    the same inputs were apart, normwise, the worst output; 0 where they were equal, None where calls were too
    slow to try. `statistic`: of random outputs, which are compared by statistical tests and have no errors
    (see `evaluators.reference.random_outputs`), the largest, as a share of what is allowed; None of others.
    """

    checked_calls: int
    normwise_error: float
    eager_error: float
    distributions: Mapping[str, bool] = field(default_factory=dict)
    untried: Mapping[str, str] = field(default_factory=dict)
    benchmark_rules: Mapping[str, bool] = field(default_factory=dict)
    spread: float | None = None
    statistic: float | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Correctness:
        """Raises TypeError when `data` is not what `dataclasses.asdict` writes of one. Older records
        say `families` for the distributions."""
        return cls(**{"distributions" if name == "families" else name: value for name, value in data.items()})


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """What the machine allows for the problem: see `evaluators.reference.cost.roofline`.

    `bytes` that must move at least and `operations` of the reference, by one call; `floor_ms` the time that
    the measured peaks need for them, and `bound` which of the two says so, `memory` or `compute`.
    """

    bytes: int
    operations: int
    floor_ms: float
    bound: str

    def __post_init__(self) -> None:
        if self.bound not in ("memory", "compute"):
            raise ValueError(f"roofline.bound is {self.bound!r}; it must be memory or compute")
        if not (math.isfinite(self.floor_ms) and self.floor_ms > 0):
            raise ValueError(f"roofline.floor_ms is {self.floor_ms}; it must be finite and positive")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Roofline:
        """Raises TypeError or ValueError when `data` is not what `dataclasses.asdict` writes of one."""
        return cls(**data)

    def share(self, kernel_ms: float) -> float:
        """How much of the roofline a kernel of this time reaches, 0 to about 1."""
        return self.floor_ms / kernel_ms


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What was found on a case of a problem; name, weight and `held_out` are the case's own.
    The environment is that of the whole evaluation."""

    name: str
    weight: float
    held_out: bool
    evaluation: Evaluation

    @property
    def title(self) -> str:
        """The case in a table, and in a log."""
        return f"case {self.name}{' (held out)' if self.held_out else ''}"

    @property
    def passes(self) -> bool:
        """Whether the kernel is right there, or says that it is not for such a case."""
        return self.evaluation.status in (Status.CORRECT, Status.DECLINED)

    @property
    def fails(self) -> bool:
        """Whether the kernel is wrong there; where the reference cannot judge, that is not known."""
        return not self.passes and self.evaluation.status is not Status.UNFIT_REFERENCE

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseResult:
        """Raises as `Evaluation.from_json` does."""
        return cls(**{**data, "evaluation": Evaluation.from_json(data["evaluation"])})


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The verdict on one kernel for one problem.

    `timing` is present exactly when the status is `correct`, and the problem is one that is timed. `log`
    is written for the proposer to read. `rule` names what a `rejected` kernel broke. `environment` says
    where it was measured: device, driver, torch, clocks, isolation level. `device_s` is how long the device
    was held, and `stages_s` where that time went. `own_share` is the part of the computing that the kernel's
    own code did, None where that is not known (see `evaluators.judge.attribution.stack_samples`). `cases`: of a
    problem with several, those that were tried; everything else sums them up (see `evaluators.records.cases`).
    """

    status: Status
    timing: Timing | None = None
    correctness: Correctness | None = None
    log: str = ""
    rule: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    device_s: float = 0.0
    build_s: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)
    roofline: Roofline | None = None
    own_share: float | None = None
    cases: tuple[CaseResult, ...] = ()

    def __post_init__(self) -> None:
        if self.timing is not None and self.status is not Status.CORRECT:
            raise ValueError(f"a {self.status.value} evaluation has a timing")
        if bool(self.rule) != (self.status is Status.REJECTED):
            raise ValueError("an evaluation names the broken rule exactly when it is rejected")

    @property
    def roofline_share(self) -> float | None:
        """Floor over kernel time; None where either is not known."""
        return self.roofline.share(self.timing.kernel_ms) if self.roofline and self.timing else None

    @property
    def cause(self) -> str:
        """Of a failure: why, in one line, out of the log; of several cases that of the first that fails."""
        failed = next((each for each in self.cases if each.fails), None)
        if failed is not None:
            return f"{failed.title} {failed.evaluation.status.value}: {failed.evaluation.cause}"
        return cause_of(self.log)

    @property
    def speedup(self) -> float:
        """Speedup against eager; 0 for anything that is not correct, so that it sorts last."""
        return self.timing.speedup if self.timing else 0.0

    @property
    def speedup_low(self) -> float:
        """The lower end of the speedup's 95 % interval, which is what may be relied on; 0 for anything that
        is not correct."""
        return self.timing.speedup_low if self.timing else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, from which `from_json` restores an equal record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evaluation:
        """Raises ValueError, TypeError or KeyError when `data` is not what `to_json` writes."""
        fields = dict(data)
        timing, correctness = fields.pop("timing"), fields.pop("correctness")
        roofline = fields.pop("roofline", None)
        cases = tuple(map(CaseResult.from_json, fields.pop("cases", ())))
        return cls(
            cases=cases,
            status=Status(fields.pop("status")),
            timing=None if timing is None else Timing.from_json(timing),
            correctness=None if correctness is None else Correctness.from_json(correctness),
            roofline=None if roofline is None else Roofline.from_json(roofline),
            **fields,
        )
