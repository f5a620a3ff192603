"""The result of an evaluation. An inconsistent record cannot be built (after flashinfer-bench's
`trace.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from evaluators.base.cause import cause_of
from evaluators.base.json_record import JsonRecord
from evaluators.records.resources import FunctionResources
from evaluators.records.time_spent import DeviceLease

CLOCKS_BEFORE, CLOCKS_AFTER = "clocks_before", "clocks_after"
"""Keys of an environment: a GPU's state before and after the measurement (see `evaluators.system.nvml`)."""
NOT_HERE = "the reference cannot be judged here"
"""How the log of an unfit reference begins if only this machine is too small for it or lacks something."""


class Status(StrEnum):
    """The verdict on one kernel.

    Two statuses say nothing about the kernel: INFRASTRUCTURE_ERROR is the evaluator's own failure, and
    UNFIT_REFERENCE means that the reference cannot judge any kernel. DECLINED: the kernel's `supports`
    excludes such a case. OUTPACED: right and timed in the quick stage of a race, and not judged further,
    because others were faster; it is not known whether the kernel is correct.
    """

    CORRECT = "correct"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    INCORRECT = "incorrect"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    REJECTED = "rejected"
    DECLINED = "declined"
    OUTPACED = "outpaced"
    UNFIT_REFERENCE = "unfit_reference"
    INFRASTRUCTURE_ERROR = "infrastructure_error"

    @property
    def is_of_the_kernel(self) -> bool:
        """Whether the status is a finding about the kernel."""
        return self not in (Status.UNFIT_REFERENCE, Status.INFRASTRUCTURE_ERROR)


class Stage(StrEnum):
    """A stage of a measurement; a key of `Evaluation.stages_s`. None includes another. Of a kernel whose
    process dies, only the stages are known that the worker sees: LOADING, CHECKING, COUNTING and TIMING then
    include the ones that belong to them."""

    OPENING = "opening"
    """Opening the problem on this device, if it was not open there."""
    STARTING = "starting"
    """Switching to the kernel's process, which is taken, resumed and spoken with."""
    COMPILING = "compiling"
    """Starting torch.compile's baseline and compiling, in the first thorough measurement of a problem."""
    CANARY = "canary"
    """A small copy that shows the state of a GPU."""
    CALIBRATING = "calibrating"
    """Measuring a block's overhead again, before the kernel is loaded and after it is timed."""
    BASELINE = "baseline"
    """Timing the baseline alone, before the kernel is loaded."""
    LOADING = "loading"
    """Importing the kernel's module and creating its model."""
    CHECKING = "checking"
    """Calls on the problem's own inputs."""
    NEAR_REPEATS = "near_repeats"
    """Calls on inputs that hardly differ from those before."""
    DISTRIBUTIONS = "distributions"
    """Calls on other input distributions, with other weights."""
    COUNTING = "counting"
    """Attributing the work to the kernel's own code or to libraries."""
    TIMING = "timing"
    """Blocks of the kernel and the baselines that alternate."""
    DRAWING = "drawing"
    """Drawing and placing fresh inputs, for checks and for timed blocks."""
    SPOT_CHECKS = "spot_checks"
    """Checks of the timed calls, and with other weights, between the blocks."""
    TIMING_CHECKS = "timing_checks"
    """On a GPU, whether the times are those of calls that were computed one by one."""
    ENDING = "ending"
    """Ending the kernel's process."""
    COMPARING = "comparing"
    """What a head-to-head takes apart from the other stages: starting and ending all processes."""
    CONFIGURATIONS = "configurations"
    """Choosing one of a kernel's configurations, before the chosen one is judged."""
    OTHER = "other"
    """Everything else: the host's messages, and tries that failed through no fault of the kernel."""


def summed_stages(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The seconds of each stage, added up."""
    found: dict[str, float] = {}
    for each in parts:
        for name, seconds in each.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


@dataclass(frozen=True, kw_only=True)
class Timing(JsonRecord):
    """Times of kernel and baselines, measured in alternating blocks of one session.

    Attributes:
        kernel_ms: The kernel's median time per call.
        eager_ms: Eager PyTorch's median time per call.
        speedup: Median of the paired ratios eager / kernel.
        speedup_low: Lower end of the speedup's 95 % interval.
        speedup_high: Upper end of the speedup's 95 % interval.
        compile_ms: `torch.compile`'s median time per call; None if it was not timed.
        kernel_samples_ms: The median of each of the kernel's blocks, in order of measurement.
        eager_samples_ms: The median of each of eager's blocks, in order of measurement.

    Raises:
        ValueError: A time or speedup is not finite and positive, or the speedup is outside its interval.
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

    @property
    def speedup_vs_compile(self) -> float | None:
        """`torch.compile`'s time divided by the kernel's, from the same session; None if not timed."""
        return None if self.compile_ms is None else self.compile_ms / self.kernel_ms


@dataclass(frozen=True, kw_only=True)
class Correctness(JsonRecord):
    """How far the outputs were from the reference.

    Attributes:
        checked_calls: Calls whose outputs were compared.
        normwise_error: The worst ‖out − ref‖ / ‖ref‖ on the problem's own inputs, against the reference in
            float64.
        eager_error: The same for eager PyTorch in the problem's own dtype.
        largest_error: The largest absolute error of an element on these inputs; None for random outputs, and
            in older records.
        distributions: Whether the kernel was right on each further input distribution that was tried.
        untried: Why each other distribution was not tried.
        benchmark_rules: Whether the kernel would pass KernelBench's own rules, which compare it with eager
            on the problem's own inputs only.
        spread: Normwise difference between two answers to the same inputs, for the worst output; None if
            calls were too slow to repeat.
        statistic: For random outputs, which are compared by statistical tests (see
            `evaluators.reference.random_outputs`): the largest statistic, as a share of the allowed one. None
            for other outputs.
    """

    checked_calls: int
    normwise_error: float
    eager_error: float
    largest_error: float | None = None
    distributions: Mapping[str, bool] = field(default_factory=dict)
    untried: Mapping[str, str] = field(default_factory=dict)
    benchmark_rules: Mapping[str, bool] = field(default_factory=dict)
    spread: float | None = None
    statistic: float | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Older records call the distributions `families`."""
        renamed = {"families": "distributions"}
        return super().from_json({renamed.get(name, name): value for name, value in data.items()})


@dataclass(frozen=True, kw_only=True)
class Roofline(JsonRecord):
    """The least time that the machine allows for one call (see `evaluators.reference.cost.roofline`).

    Attributes:
        bytes: Bytes that a call must move at least.
        operations: Operations of the reference's call.
        floor_ms: The time that these need at the machine's measured peaks.
        bound: Which of the two takes longer: `memory` or `compute`.
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

    def share(self, kernel_ms: float) -> float:
        """The part of the roofline that a kernel of this time reaches, 0 to about 1."""
        return self.floor_ms / kernel_ms


def share_text(share: float) -> str:
    """A share of the roofline as text. One above 1 only shows that the measured peaks were too low, so it has
    no number."""
    text = f"{share:.0%}"
    return text if share <= 1 or text == "100%" else ">100%"


@dataclass(frozen=True, kw_only=True)
class Passes(JsonRecord):
    """The two passes of a kernel for training. Its `Timing` is that of both.

    Attributes:
        forward_ms: The kernel's median time of a forward pass.
        eager_forward_ms: Eager PyTorch's, from blocks of the same session that alternate with the kernel's.
        saved_bytes: What the kernel's forward pass saves for the backward pass, in addition to the inputs,
            the weights and the outputs.
        eager_saved_bytes: The same for eager PyTorch.
    """

    forward_ms: float
    eager_forward_ms: float
    saved_bytes: int
    eager_saved_bytes: int

    def backward_ms(self, timing: Timing) -> tuple[float, float]:
        """The rest of the time of both passes, of the kernel and of eager PyTorch; at least 0, because the
        forward pass is timed on its own, when a busy machine may be slower."""
        own_ms, eager_ms = timing.kernel_ms - self.forward_ms, timing.eager_ms - self.eager_forward_ms
        return max(own_ms, 0.0), max(eager_ms, 0.0)


def passes_in_words(passes: Passes, timing: Timing) -> str:
    """The times of both passes and what the first saves, next to eager PyTorch's, in a sentence."""
    own_ms, eager_ms = passes.backward_ms(timing)
    return (
        f"Forward {passes.forward_ms:.3g} ms (eager {passes.eager_forward_ms:.3g}) and backward "
        f"{own_ms:.3g} ms (eager {eager_ms:.3g}); the forward pass saves "
        f"{passes.saved_bytes / 2**20:.3g} MiB (eager {passes.eager_saved_bytes / 2**20:.3g})."
    )


@dataclass(frozen=True, kw_only=True)
class QuickStage(JsonRecord):
    """What the quick stage of a race found out about a kernel that was not judged further.

    Attributes:
        timing: A short timing, without samples. It is not in `Evaluation.timing`, so that nothing ranks by
            it.
        threshold: The speedup that the upper end of its interval did not reach; None if the kernel was not
            to be judged further at any speed.
    """

    timing: Timing
    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class CaseResult(JsonRecord):
    """The evaluation of one case of a problem, with the case's name, weight and `held_out`. Its environment
    and resources are empty: the evaluation of the problem has them."""

    name: str
    weight: float
    held_out: bool
    evaluation: Evaluation

    @property
    def title(self) -> str:
        """The case's name in tables and logs."""
        return f"case {self.name}{' (held out)' if self.held_out else ''}"

    @property
    def passes(self) -> bool:
        """Whether the kernel is right in this case, or declines it."""
        return self.evaluation.status in (Status.CORRECT, Status.DECLINED)

    @property
    def fails(self) -> bool:
        """Whether the kernel is wrong in this case. If the reference cannot judge, it neither passes nor
        fails."""
        return not self.passes and self.evaluation.status is not Status.UNFIT_REFERENCE


@dataclass(frozen=True, kw_only=True)
class ConfigurationResult(JsonRecord):
    """One of the configurations that a kernel declares (see `evaluators.records.configurations`).

    Attributes:
        values: The values of the kernel's constants, by name.
        timing: Its time when the configurations were compared, without samples; None if it has none.
        cause: Why it was excluded, in one line; "" if it was not.
        chosen: Whether the evaluation is the verdict on this configuration. None is chosen of a kernel that
            is not correct.
    """

    values: Mapping[str, bool | int | float | str]
    timing: Timing | None = None
    cause: str = ""
    chosen: bool = False

    @property
    def name(self) -> str:
        """The values in words, for example `BLOCK=64 STAGES=3`."""
        return " ".join(f"{name}={value}" for name, value in self.values.items())


@dataclass(frozen=True, kw_only=True)
class PairedSpeedup(JsonRecord):
    """How many times as fast as another kernel this one is, from alternating blocks of one session.

    Attributes:
        over: The id of the other kernel.
        speedup: The median of the paired ratios of their times.
        low: Lower end of its 95 % interval.
        high: Upper end of its 95 % interval.
    """

    over: str
    speedup: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Evaluation(JsonRecord):
    """The verdict on one kernel for one problem.

    Attributes:
        status: The verdict.
        timing: The times; present only if the status is `correct` and the problem is timed.
        correctness: How far the outputs were from the reference; None if none could be compared.
        log: What happened, written for the proposer to read.
        rule: The rule that a `rejected` kernel broke; "" for any other status.
        environment: Where it was measured: device, driver, torch, clocks, isolation level.
        device_s: Seconds for which the evaluation occupied the device, on a CPU without the build.
        build_s: Seconds of the build.
        stages_s: `device_s` by `Stage`.
        lease: How long it waited for the device, and held it; None if that is not known, as in older
            journals, or if it never came to a device.
        roofline: The least time that the machine allows.
        own_share: The part of the computing done by the kernel's own code, 0 to 1; None if unknown (see
            `evaluators.judge.attribution.stack_samples`).
        cases: For a problem with several cases, those that were tried. All other fields summarize them (see
            `evaluators.records.cases`).
        configurations: For a kernel that declares configurations, all of them: the chosen one first, then the
            fastest, then those that were excluded. All other fields are about the chosen one.
        quick: What was measured of an `outpaced` kernel; None for any other status.
        resources: Registers, stack and shared memory of the GPU functions that the build compiled, those with
            the most registers first. Empty if unknown. Nothing is judged by them.
        paired: The speedups over the companions that the kernel was timed with.
        passes: The forward and the backward pass of a kernel for training; None for any other. Of a problem
            with several cases, each case has its own.

    Raises:
        ValueError: A status other than `correct` has a timing, one other than `rejected` names a rule, or one
            other than `outpaced` has a quick stage.
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
    lease: DeviceLease | None = None
    roofline: Roofline | None = None
    own_share: float | None = None
    cases: tuple[CaseResult, ...] = ()
    configurations: tuple[ConfigurationResult, ...] = ()
    quick: QuickStage | None = None
    resources: tuple[FunctionResources, ...] = ()
    paired: tuple[PairedSpeedup, ...] = ()
    passes: Passes | None = None

    def __post_init__(self) -> None:
        if self.timing is not None and self.status is not Status.CORRECT:
            raise ValueError(f"a {self.status.value} evaluation has a timing")
        if bool(self.rule) != (self.status is Status.REJECTED):
            raise ValueError("an evaluation names the broken rule exactly when it is rejected")
        if (self.quick is not None) != (self.status is Status.OUTPACED):
            raise ValueError("an evaluation has a quick stage exactly when it is outpaced")

    def held(self, lease: DeviceLease) -> Self:
        """The evaluation with its lease: what no stage explains of it is OTHER."""
        other_s = max(lease.held_s - lease.building_s - self.device_s, 0.0)
        stages_s = summed_stages([self.stages_s, {Stage.OTHER.value: other_s}]) if other_s else self.stages_s
        return replace(self, lease=lease, device_s=self.device_s + other_s, stages_s=stages_s)

    @property
    def is_lasting(self) -> bool:
        """Whether the machine has no part in it, so that it may be kept for later calls."""
        machines = self.status is Status.UNFIT_REFERENCE and self.log.startswith(NOT_HERE)
        return self.status is not Status.INFRASTRUCTURE_ERROR and not machines

    @property
    def roofline_share(self) -> float | None:
        """`roofline.floor_ms` divided by the kernel's time; None if either is unknown."""
        return self.roofline.share(self.timing.kernel_ms) if self.roofline and self.timing else None

    @property
    def sol_score(self) -> float | None:
        """SOL-ExecBench's score, between eager PyTorch (0.5) and the roofline (1):
        1 / (1 + (kernel − floor) / (eager − floor)). With several cases, their mean by weight. None if a time
        or the roofline is unknown, and if eager is at the roofline itself."""
        if self.cases:
            timed = [each for each in self.cases if each.weight and each.evaluation.timing is not None]
            found = [(each.weight, each.evaluation.sol_score) for each in timed]
            known = [(weight, score) for weight, score in found if score is not None]
            if self.timing is None or not known or len(known) < len(found):
                return None
            return sum(weight * score for weight, score in known) / sum(weight for weight, _ in known)
        if self.timing is None or self.roofline is None:
            return None
        kernel, eager = (ms - self.roofline.floor_ms for ms in (self.timing.kernel_ms, self.timing.eager_ms))
        return 1 / (1 + max(kernel, 0.0) / eager) if eager > 0 else None

    @property
    def cause(self) -> str:
        """Why the kernel failed, in one line from the log; with several cases, why the first one failed."""
        failed = next((each for each in self.cases if each.fails), None)
        if failed is not None:
            return f"{failed.title} {failed.evaluation.status.value}: {failed.evaluation.cause}"
        return cause_of(self.log)

    @property
    def speedup(self) -> float:
        """Speedup over eager; 0 for a kernel that is not correct, so that it sorts last."""
        return self.timing.speedup if self.timing else 0.0

    @property
    def speedup_low(self) -> float:
        """Lower end of the speedup's 95 % interval; 0 for a kernel that is not correct."""
        return self.timing.speedup_low if self.timing else 0.0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Every version has written `timing` and `correctness`, as null if there are none."""
        if missing := {"timing", "correctness"} - data.keys():
            raise KeyError(min(missing))
        return super().from_json(data)
