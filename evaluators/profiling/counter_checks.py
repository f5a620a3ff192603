"""Checks on the counters of a kernel. The numbers are those of the report, without any replay time."""

from __future__ import annotations

from collections.abc import Callable

from evaluators.profiling import occupancy
from evaluators.profiling.evidence import MATTERS, SHORT_US, TENSOR_TO_SCALAR, Check, CheckEvidence, worst
from evaluators.profiling.facts import HALF, KernelCounters, ProfileFacts

SECTOR_BYTES, SECTOR_USE = 32.0, 0.5
CONFLICTS, CONFLICTS_BUSY = 0.3, 20.0
"""Share of the passes through shared memory that conflicts cause, and how busy L1 must be for it to
matter."""
SPILLS = 0.05
"""Share of memory instructions that access spilled registers."""
IDLE_MULTIPROCESSORS, MOST_WAVES = 0.2, 8.0
UNUSED_PERCENT, UNUSED_ISSUE_PERCENT, WAITING = 30.0, 20.0, 0.4
TENSOR_PERCENT, TF32_PERCENT = 20.0, 1.0
ATOMIC_NS, ATOMIC_SHARE = 0.5, 0.1
"""The least time of an atomic operation when all go to one address (a clock of the L2 cache), and the part of
the run time that all of them together would then take."""
REGISTER_OCCUPANCY, REGISTER_ISSUE_PERCENT = 0.5, 60.0
FULL_PERCENT = 85.0
FULL_SHARE = 0.2
"""Estimate for a kernel at the memory's limit, below that of real faults."""


def counted(check: Callable[[KernelCounters, ProfileFacts], CheckEvidence | None]) -> Check:
    """The check on each kernel with counters that takes long enough; the worst evidence counts."""

    def on_all(facts: ProfileFacts) -> CheckEvidence | None:
        assert facts.counters is not None
        total_us = sum(each.duration_us for each in facts.counters.kernels)
        found = []
        for each in facts.counters.kernels:
            share = each.duration_us / total_us if total_us else 1.0
            if share >= MATTERS and (evidence := check(each, facts)) is not None:
                found.append(
                    CheckEvidence(text=evidence.text, share=evidence.share * share, kernel=each.name)
                )
        return worst(found)

    return on_all


def _highest_percent(kernel: KernelCounters) -> float:
    """How busy the busiest of compute and memory is; 100 if unknown, because then no unit is known to be
    unused."""
    return max(
        kernel.get("sm__throughput.avg.pct_of_peak_sustained_elapsed", 100.0),
        kernel.get("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", 100.0),
    )


def uncoalesced(kernel: KernelCounters, _: ProfileFacts) -> CheckEvidence | None:
    """Global accesses that use a small part of each sector."""
    used = {
        direction: kernel.get(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{code}.ratio")
        for direction, code in (("loads", "ld"), ("stores", "st"))
    }
    bad = {name: bytes_ for name, bytes_ in used.items() if 0 < bytes_ < SECTOR_USE * SECTOR_BYTES}
    if not bad or kernel.duration_us < SHORT_US:
        return None
    words = ", ".join(f"{name} use {bytes_:.1f} of {SECTOR_BYTES:.0f}" for name, bytes_ in bad.items())
    moved = kernel.get("memory_l2_theoretical_sectors_global")
    ideal = kernel.get("memory_l2_theoretical_sectors_global_ideal", moved)
    needless = 1 - ideal / moved if moved else 1 - min(bad.values()) / SECTOR_BYTES
    sectors = f"; {needless:.0%} of {moved:.3g} sectors were needless" if moved else ""
    return CheckEvidence(
        text=f"global {words} bytes of each sector{sectors}", share=needless * _highest_percent(kernel) / 100
    )


def bank_conflicts(kernel: KernelCounters, _: ProfileFacts) -> CheckEvidence | None:
    """Accesses to shared memory that take several passes."""
    conflicts = kernel.get("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum")
    passes = kernel.get("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum")
    busy = kernel.get("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed")
    if not passes or conflicts / passes < CONFLICTS or busy < CONFLICTS_BUSY:
        return None
    ways = passes / max(passes - conflicts, 1)
    text = (
        f"{conflicts / passes:.0%} of {passes:.3g} passes through shared memory are bank conflicts "
        f"(on average {ways:.1f} passes where one would do); these passes keep L1 {busy:.0f} % busy"
    )
    return CheckEvidence(text=text, share=conflicts / passes * busy / 100)


def spills(kernel: KernelCounters, _: ProfileFacts) -> CheckEvidence | None:
    """Local memory has a notable part of all accesses."""
    local, everything = (
        sum(
            kernel.get(f"smsp__sass_inst_executed_op_{space}_{code}.sum")
            for space in spaces
            for code in ("ld", "st")
        )
        for spaces in (("local",), ("local", "global", "shared"))
    )
    if not everything or local / everything < SPILLS:
        return None
    registers = kernel.get("launch__registers_per_thread")
    text = (
        f"{local:.3g} loads and stores of local memory, {local / everything:.0%} of all; "
        f"{registers:.0f} registers per thread"
    )
    return CheckEvidence(text=text, share=local / everything)


def partial_wave(kernel: KernelCounters, _: ProfileFacts) -> CheckEvidence | None:
    """Multiprocessors that are idle while the last blocks run."""
    waves = kernel.get("launch__waves_per_multiprocessor")
    elapsed, active = kernel.get("gpc__cycles_elapsed.max"), kernel.get("sm__cycles_active.avg")
    if not (elapsed and active and 1 < waves < MOST_WAVES) or kernel.duration_us < SHORT_US:
        return None
    idle = 1 - active / elapsed
    if idle < IDLE_MULTIPROCESSORS or waves == int(waves):
        return None
    blocks = kernel.get("launch__grid_size")
    text = (
        f"{blocks:.0f} blocks are {waves:.2f} waves; "
        f"multiprocessors are idle {idle:.0%} of the time on average"
    )
    return CheckEvidence(text=text, share=idle)


def latency(kernel: KernelCounters, _: ProfileFacts) -> CheckEvidence | None:
    """No unit is busy, and warps wait for memory."""
    highest = _highest_percent(kernel)
    issue = kernel.get("smsp__issue_active.avg.pct_of_peak_sustained_active", 100.0)
    cycles = {stall.reason: stall.cycles for stall in kernel.stalls}
    waiting = cycles.get("long_scoreboard", 0.0) / (sum(cycles.values()) or 1.0)
    if kernel.duration_us < SHORT_US or waiting < WAITING:
        return None
    if highest > UNUSED_PERCENT or issue > UNUSED_ISSUE_PERCENT:
        return None
    active = kernel.get("sm__warps_active.avg.pct_of_peak_sustained_active")
    text = (
        f"no unit is busier than {highest:.0f} %; warps wait for memory {waiting:.0%} of their time, "
        f"{active:.0f} % of the possible warps are active, "
        f"and schedulers issue in {issue:.0f} % of the cycles"
    )
    return CheckEvidence(text=text, share=1 - highest / 100)


def short_launches(facts: ProfileFacts) -> CheckEvidence | None:
    """Kernels that are shorter than their launch."""
    assert facts.counters is not None
    slowest_us = max(each.duration_us for each in facts.counters.kernels)
    if slowest_us >= SHORT_US:
        return None
    text = f"the longest profiled kernel takes {slowest_us:.2g} us, less than a launch costs"
    return CheckEvidence(text=text, share=1 - slowest_us / SHORT_US / 2)


def idle_tensor_cores(kernel: KernelCounters, facts: ProfileFacts) -> CheckEvidence | None:
    """Products in half precision while tensor cores do little."""
    if not (facts.task.operations and facts.task.dtype in HALF):
        return None
    busy = kernel.get("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 100.0)
    if busy >= TENSOR_PERCENT:
        return None
    fma = kernel.get("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed")
    rate = facts.task.operations / (kernel.duration_us or 1) / 1e6
    text = (
        f"tensor cores are busy {busy:.1f} % of the time, scalar multiply-add units {fma:.0f} %; "
        f"{rate:.3g} TFLOP/s in {facts.task.dtype}"
    )
    return CheckEvidence(text=text, share=1 - max(busy / 100, 1 / TENSOR_TO_SCALAR))


def no_tf32(kernel: KernelCounters, facts: ProfileFacts) -> CheckEvidence | None:
    """Products whose factors may be rounded, without tensor cores."""
    if not (facts.task.operations and facts.task.lower):
        return None
    busy = kernel.get("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 100.0)
    if busy >= TF32_PERCENT:
        return None
    fma = kernel.get("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed")
    text = (
        f"factors may be rounded to {', '.join(facts.task.lower)}, but tensor cores are busy {busy:.1f} % of "
        f"the time and scalar multiply-add units {fma:.0f} %"
    )
    return CheckEvidence(text=text, share=1 - 1 / TENSOR_TO_SCALAR)


def contended_atomics(kernel: KernelCounters, _: ProfileFacts) -> CheckEvidence | None:
    """The atomic operations could explain the time, and no unit is busy."""
    requests = sum(
        kernel.get(f"l1tex__t_requests_pipe_lsu_mem_global_op_{code}.sum") for code in ("red", "atom")
    )
    operations, highest = requests * occupancy.WARP, _highest_percent(kernel)
    duration_ns = kernel.duration_us * 1e3
    if not duration_ns or operations * ATOMIC_NS < ATOMIC_SHARE * duration_ns or highest > UNUSED_PERCENT:
        return None
    text = (
        f"up to {operations:.3g} atomic operations on global memory, "
        f"{duration_ns / operations:.2g} ns for each, while no unit is busier than {highest:.0f} %"
    )
    return CheckEvidence(text=text, share=1 - highest / 100)


def register_limit(kernel: KernelCounters, _: ProfileFacts) -> CheckEvidence | None:
    """Registers limit the occupancy, and schedulers often have nothing to issue."""
    limits = {
        name: kernel.get(f"launch__occupancy_limit_{name}", float("inf"))
        for name in ("registers", "shared_mem", "warps", "blocks")
    }
    possible = kernel.get("sm__maximum_warps_per_active_cycle_pct", 100.0)
    issue = kernel.get("smsp__issue_active.avg.pct_of_peak_sustained_active", 100.0)
    others = min(value for name, value in limits.items() if name != "registers")
    if (
        limits["registers"] >= others
        or possible >= 100 * REGISTER_OCCUPANCY
        or issue > REGISTER_ISSUE_PERCENT
    ):
        return None
    registers = kernel.get("launch__registers_per_thread")
    text = (
        f"{registers:.0f} registers per thread let {limits['registers']:.0f} blocks fit "
        f"where {others:.0f} could: occupancy {possible:.1f} %, "
        f"and schedulers issue in {issue:.0f} % of the cycles"
    )
    return CheckEvidence(text=text, share=1 - issue / 100)


def full_memory(kernel: KernelCounters, _: ProfileFacts) -> CheckEvidence | None:
    """The memory moves bytes at its peak."""
    busy = kernel.get("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed")
    if busy < FULL_PERCENT:
        return None
    moved = kernel.get("dram__bytes_read.sum") + kernel.get("dram__bytes_write.sum")
    return CheckEvidence(
        text=f"memory moves {moved / 1e6:.4g} MB at {busy:.0f} % of its peak", share=FULL_SHARE
    )
