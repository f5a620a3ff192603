"""Makes the diagnosis from the facts of a profile: the findings, and the few figures that readers need."""

from __future__ import annotations

from collections.abc import Mapping

from evaluators.profiling import launches
from evaluators.profiling.counters import UNITS
from evaluators.profiling.facts import KernelCounters, ProfileFacts, ScalarLoop, TraceFacts
from evaluators.profiling.rules import findings
from evaluators.records.diagnosis import BusyUnit, Diagnosis, KernelTime, Level, TrafficBytes, WarpStall

STALLS = {
    "long_scoreboard": "waiting for global or local memory",
    "short_scoreboard": "waiting for shared memory or special functions",
    "mio_throttle": "queue of shared memory and special functions full",
    "lg_throttle": "queue of global and local memory full",
    "tex_throttle": "queue of texture accesses full",
    "barrier": "waiting at a barrier",
    "membar": "waiting at a memory fence",
    "drain": "waiting for stores at the end",
    "gmma": "waiting for tensor cores (wgmma)",
    "warpgroup_arrive": "waiting for tensor cores (wgmma)",
    "math_pipe_throttle": "arithmetic unit busy",
    "dispatch_stall": "dispatch held back",
    "branch_resolving": "waiting for a branch",
    "imc_miss": "waiting for constants",
    "no_instruction": "waiting for instructions",
    "sleeping": "sleeping",
    "wait": "fixed latency of the instruction before",
    "misc": "other reasons",
}
"""The profiler's stall reasons in words."""
NO_STALL = ("selected", "not_selected")
"""Warps that issue, or could."""
LEAST_STALL = 0.05


def diagnosis_of(
    facts: ProfileFacts,
    *,
    device: str = "",
    missing: Mapping[Level, str] | None = None,
    isolation: str = "",
    seconds: Mapping[str, float] | None = None,
) -> Diagnosis:
    """The diagnosis of a kernel with these facts.

    Args:
        facts: the facts of the levels that were reached.
        device: the device's name.
        missing: why other levels were not reached.
        isolation: the confinement of the profiled process.
        seconds: how long each level took.

    Returns:
        The diagnosis, with the figures of the highest level that has them.
    """
    known = {Level.STATIC: facts.static, Level.TRACE: facts.trace, Level.COUNTERS: facts.counters}
    kernel = facts.counters.kernels[0] if facts.counters is not None else None
    trace = facts.trace
    return Diagnosis(
        device=device,
        reached=tuple(level.value for level, found in known.items() if found is not None),
        missing={level.value: why for level, why in (missing or {}).items()},
        findings=findings(facts),
        times=tuple(_times(facts)),
        call_us=_call_us(facts),
        gaps_us=launches.gaps_us(trace) if trace is not None and trace.launches else None,
        units=_units(kernel) if kernel is not None else (),
        stalls=_stalls(kernel) if kernel is not None else (),
        traffic=_traffic(facts),
        occupancy=_occupancy(facts, kernel),
        warnings=_warnings(facts),
        advice=_advice(kernel) if kernel is not None else (),
        isolation=isolation,
        seconds=dict(seconds or {}),
    )


def _call_us(facts: ProfileFacts) -> float | None:
    trace = facts.trace
    if trace is not None and trace.launches:
        return launches.busy_us(trace) + launches.gaps_us(trace)
    return None if facts.call_ms is None else facts.call_ms * 1e3


def _times(facts: ProfileFacts) -> list[KernelTime]:
    if facts.trace is not None:
        return launches.kernel_times(facts.trace)
    if facts.counters is None:
        return []
    by_name: dict[str, list[float]] = {}
    for each in facts.counters.kernels:
        by_name.setdefault(each.name, []).append(each.duration_us)
    times = [
        KernelTime(kernel=name, launches=len(us), mean_us=sum(us) / len(us)) for name, us in by_name.items()
    ]
    return sorted(times, key=lambda each: -each.total_us)


def _units(kernel: KernelCounters) -> tuple[BusyUnit, ...]:
    found = [
        BusyUnit(unit=unit, percent=kernel.get(metric), busiest_part=kernel.busiest.get(metric, ""))
        for unit, (metric, _) in UNITS.items()
        if metric in kernel.metrics
    ]
    return tuple(sorted(found, key=lambda each: -each.percent))


def _stalls(kernel: KernelCounters) -> tuple[WarpStall, ...]:
    total = sum(each.cycles for each in kernel.stalls) or 1.0
    return tuple(
        WarpStall(
            reason=STALLS.get(each.reason, each.reason),
            share=each.cycles / total,
            places=each.places,
        )
        for each in kernel.stalls
        if each.reason not in NO_STALL and each.cycles / total >= LEAST_STALL
    )


def _traffic(facts: ProfileFacts) -> TrafficBytes | None:
    kernels = facts.counters.kernels if facts.counters is not None else ()

    def total(metric: str) -> int | None:
        values = [each.metrics[metric] for each in kernels if metric in each.metrics]
        return round(sum(values)) if values else None

    found = TrafficBytes(
        read=total("dram__bytes_read.sum"),
        written=total("dram__bytes_write.sum"),
        least=facts.task.least_bytes or None,
    )
    return None if found == TrafficBytes() else found


def _occupancy(facts: ProfileFacts, kernel: KernelCounters | None) -> str:
    """Theoretical occupancy with its limit, and the achieved one if there are counters."""
    launch = launches.longest(facts.trace) if facts.trace is not None else None
    if launch is not None and (fits := launches.occupancy_of(launch, facts.capability)) is not None:
        text = (
            f"at most {fits.share:.1%}, limited by {fits.limit} ({launch.registers} registers per thread, "
            f"{launch.shared_bytes} bytes of shared memory and {launch.threads} threads per block)"
        )
    elif kernel is not None and "sm__maximum_warps_per_active_cycle_pct" in kernel.metrics:
        limits = {
            word: kernel.get(f"launch__occupancy_limit_{name}", float("inf"))
            for word, name in (
                ("warps", "warps"),
                ("blocks", "blocks"),
                ("registers", "registers"),
                ("shared memory", "shared_mem"),
            )
        }
        possible = kernel.get("sm__maximum_warps_per_active_cycle_pct")
        registers = kernel.get("launch__registers_per_thread")
        text = (
            f"at most {possible:.1f} %, limited by {min(limits, key=lambda name: limits[name])} "
            f"({registers:.0f} registers per thread, "
            f"{kernel.get('launch__block_size'):.0f} threads per block)"
        )
    else:
        return _static_occupancy(facts)
    achieved = kernel.metrics.get("sm__warps_active.avg.pct_of_peak_sustained_active") if kernel else None
    return text if achieved is None else f"{text}; achieved {achieved:.1f} %"


def _static_occupancy(facts: ProfileFacts) -> str:
    """What the binary alone shows."""
    functions = facts.static.functions if facts.static is not None else ()
    most = max(functions, key=lambda each: each.registers, default=None)
    return f"unknown without a launch; {most.registers} registers per thread" if most is not None else ""


def _warnings(facts: ProfileFacts) -> tuple[str, ...]:
    if facts.static is None:
        return ()
    return (*facts.static.warnings, *map(_loop, facts.static.scalar_loops))


def _loop(loop: ScalarLoop) -> str:
    source = f" ({loop.source})" if loop.source else ""
    return f"loop in line {loop.line} is not vectorised{source}: {loop.reason}"


def _advice(kernel: KernelCounters) -> tuple[str, ...]:
    return tuple(f"{each.title} ({each.percent:.0f} % of the time): {each.message}" for each in kernel.rules)


def no_launches() -> TraceFacts:
    """The trace level of a CPU: the evaluator's own timing, without launches."""
    return TraceFacts(calls=1, launches=())
