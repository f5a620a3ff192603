"""The facts of a profile, by level, as the rules see them. Records only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HALF = ("float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the problem asks for.

    Attributes:
        dtype: The problem's dtype.
        lower: The narrower types to which a kernel may round the factors of products.
        operations: Multiplications and additions of matmuls, convolutions and attention; 0 if there are none.
        least_bytes: Bytes that a call must move at least; 0 if unknown.
        floor_ms: The least time of a call on this device; None: unknown.
    """

    dtype: str = "float32"
    lower: tuple[str, ...] = ()
    operations: int = 0
    least_bytes: int = 0
    floor_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class CompiledFunction:
    """A GPU function in a compiled binary. Instructions are counted as they stand in the code, not as often
    as they run.

    Attributes:
        stack_bytes: Stack frame of a thread: spilled registers, and arrays with variable indices.
        shared_bytes: Static shared memory of a block.
        spill_loads: Loads from local memory; `spill_stores` likewise.
        tensor: Tensor-core instructions, by name.
        scalar_math: Scalar multiplications and additions of floating-point numbers.
        atomics: Atomic operations on global memory.
        combines: Instructions by which threads combine values first: shuffles, barriers, shared atomics.
        load_bits: Loads from global memory by their width in bits; `store_bits` likewise.
    """

    name: str
    registers: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    spill_loads: int = 0
    spill_stores: int = 0
    tensor: Mapping[str, int] = field(default_factory=dict)
    scalar_math: int = 0
    atomics: int = 0
    combines: int = 0
    load_bits: Mapping[int, int] = field(default_factory=dict)
    store_bits: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ScalarLoop:
    """A loop that the compiler did not vectorise, and why."""

    line: int
    reason: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class StaticFacts:
    """What the compiler made: the functions of a GPU kernel, or the loops of C++ code.

    Attributes:
        vector_loops: Lines of the loops that were vectorised.
        warnings: What the compiler reported.
    """

    functions: tuple[CompiledFunction, ...] = ()
    scalar_loops: tuple[ScalarLoop, ...] = ()
    vector_loops: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KernelLaunch:
    """A launch in a trace. `shared_bytes` is a block's static and dynamic shared memory."""

    name: str
    start_ns: int
    duration_ns: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared_bytes: int

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """The launches of some calls, in the order of their starts."""

    calls: int
    launches: tuple[KernelLaunch, ...]


@dataclass(frozen=True, kw_only=True)
class SampledStall:
    """Why warps waited: cycles for each instruction issued, and the places with most samples."""

    reason: str
    cycles: float
    places: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VendorRule:
    """A rule of the vendor's profiler with the part of the run time that it estimates, in percent."""

    title: str
    message: str
    percent: float


@dataclass(frozen=True, kw_only=True)
class KernelCounters:
    """The counters of one launch. Metrics that the profiler did not collect are missing, never 0."""

    name: str
    metrics: Mapping[str, float]
    busiest: Mapping[str, str] = field(default_factory=dict)
    """The busiest part of a unit, by the unit's metric."""
    stalls: tuple[SampledStall, ...] = ()
    rules: tuple[VendorRule, ...] = ()

    def get(self, metric: str, default: float = 0.0) -> float:
        """The metric, or `default` if it was not collected."""
        return self.metrics.get(metric, default)

    @property
    def duration_us(self) -> float:
        """How long the launch took under the profiler, which distorts it."""
        return self.get("gpu__time_duration.sum") / 1e3


@dataclass(frozen=True, kw_only=True)
class CounterFacts:
    """The profiled launches of a call, the longest first."""

    kernels: tuple[KernelCounters, ...]


@dataclass(frozen=True, kw_only=True)
class ProfileFacts:
    """Everything that is known of a kernel. A level that was not reached is None.

    Attributes:
        capability: The GPU's compute capability, such as `9.0`; "" on a CPU.
        multiprocessors: Their number; 0: unknown.
        call_ms: The measured time of a call, from the evaluator; None: unknown.
    """

    task: Task
    capability: str = ""
    multiprocessors: int = 0
    call_ms: float | None = None
    static: StaticFacts | None = None
    trace: TraceFacts | None = None
    counters: CounterFacts | None = None
