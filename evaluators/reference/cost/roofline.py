"""The roofline: the least time that this machine needs for a problem's work (Williams, Waterman & Patterson,
Roofline, CACM 2009), and the check that rejects measurements below it."""

from __future__ import annotations

from evaluators.records.evaluation import Roofline
from evaluators.reference.cost.machine_peaks import MachinePeaks
from evaluators.reference.cost.operation_count import Work

TRUST = {"cuda": 0.9, "cpu": 0.5}
"""The share of a floor below which a time is rejected: a CPU is shared, and its measured peaks are noisy."""
SHORT_CUTS = 4.0
"""The factor by which an honest kernel may undercut the cautious count of arithmetic: Winograd's convolution
saves a factor of 2.25, and 8-bit floats run at twice the half-precision rate."""


def roofline(work: Work, peaks: MachinePeaks, dtype: str, *, lower: bool) -> Roofline:
    """The floor, in ms, for the problem's dtype, with or without factors of `lower` precision: the larger of
    memory time and compute time."""
    memory_ms = max(work.bytes, 1) / peaks.bytes_per_s * 1e3
    compute_ms = work.operations / peaks.peak(dtype, lower=lower) * 1e3
    return Roofline(
        bytes=work.bytes,
        operations=work.operations,
        floor_ms=max(memory_ms, compute_ms),
        bound="memory" if memory_ms >= compute_ms else "compute",
    )


def too_fast(
    *, kernel_ms: float, eager_ms: float, work: Work, peaks: MachinePeaks, footprint_bytes: int
) -> str | None:
    """Why `kernel_ms` per call is impossible; None if it is possible.

    `footprint_bytes` is the size of all input sets through which the calls rotate. A cache of C bytes holds C
    of them, so that at the median call at most 2 C / footprint of the inputs are cached. The parameters may
    be cached when a call begins, and the outputs when it ends. If eager PyTorch itself is below the floor,
    the floor is wrong for this problem.
    """
    cold = max(0.0, 1 - 2 * peaks.cache_bytes / max(footprint_bytes, 1))
    moved = work.needed_input_bytes * cold + sum(
        max(0, each - peaks.cache_bytes) for each in (work.needed_output_bytes, work.needed_parameter_bytes)
    )
    fastest = max(peaks.operations_per_s.values())
    memory_ms = moved / peaks.bytes_per_s * 1e3 * TRUST[peaks.device]
    compute_ms = work.needed_operations / fastest * 1e3 * TRUST[peaks.device] / SHORT_CUTS
    floor_ms = max(memory_ms, compute_ms)
    if kernel_ms >= floor_ms or eager_ms < floor_ms:
        return None
    if memory_ms >= compute_ms:
        what = f"{moved / 1e6:.4g} MB must move, and memory gives {peaks.bytes_per_s / 1e9:.4g} GB/s"
    else:
        what = (
            f"{work.needed_operations / 1e9:.4g} billion operations are needed, and the fastest matmul "
            f"reaches {fastest / 1e12:.4g} TFLOP/s"
        )
    return (
        f"the kernel took {kernel_ms:.4g} ms per call, below this machine's minimum of {floor_ms:.4g} ms: "
        f"{what} (problem.floor=false lifts this check for a problem with an algebraic short cut)"
    )
