"""The trace level: the launches of a call, and what they show without any counter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from evaluators.profiling.facts import KernelLaunch, TraceFacts
from evaluators.profiling.occupancy import Occupancy, occupancy
from evaluators.records.diagnosis import KernelTime


def of_profiler_events(events: Sequence[Mapping[str, Any]], calls: int) -> TraceFacts:
    """The kernels among the events of a trace that torch.profiler exported, for this many calls."""
    launches = [
        KernelLaunch(
            name=str(event["name"]),
            start_ns=round(event["ts"] * 1e3),
            duration_ns=round(event["dur"] * 1e3),
            grid=_three(event["args"]["grid"]),
            block=_three(event["args"]["block"]),
            registers=int(event["args"]["registers per thread"]),
            shared_bytes=int(event["args"]["shared memory"]),
        )
        for event in events
        if event.get("cat") == "kernel"
    ]
    return trace_facts(launches, calls)


def trace_facts(launches: Sequence[KernelLaunch], calls: int) -> TraceFacts:
    """The facts of these launches, in the order of their starts."""
    return TraceFacts(calls=calls, launches=tuple(sorted(launches, key=lambda each: each.start_ns)))


def kernel_times(trace: TraceFacts) -> list[KernelTime]:
    """The kernels with their launches in a call, the longest in total first."""
    by_name: dict[str, list[int]] = defaultdict(list)
    for each in trace.launches:
        by_name[each.name].append(each.duration_ns)
    times = [
        KernelTime(kernel=name, launches=len(each) / trace.calls, mean_us=sum(each) / len(each) / 1e3)
        for name, each in by_name.items()
    ]
    return sorted(times, key=lambda each: -each.total_us)


def longest(trace: TraceFacts) -> KernelLaunch | None:
    """A launch of the kernel that takes most of a call's time; None if nothing ran."""
    times = kernel_times(trace)
    return next((each for each in trace.launches if times and each.name == times[0].kernel), None)


def share_of_time(trace: TraceFacts, name: str) -> float:
    """The part of the kernels' time that one kernel takes."""
    total_ns = sum(each.duration_ns for each in trace.launches)
    own_ns = sum(each.duration_ns for each in trace.launches if each.name == name)
    return own_ns / total_ns if total_ns else 0.0


def busy_us(trace: TraceFacts) -> float:
    """Time of a call's kernels together."""
    return sum(each.duration_ns for each in trace.launches) / trace.calls / 1e3


def gaps_us(trace: TraceFacts) -> float:
    """Time of a call between its launches. The gaps between calls do not count."""
    each_call = len(trace.launches) // trace.calls
    if not each_call:
        return 0.0
    total_ns = 0
    for first in range(0, each_call * trace.calls, each_call):
        end_ns = trace.launches[first].start_ns
        for each in trace.launches[first : first + each_call]:
            total_ns += max(0, each.start_ns - end_ns)
            end_ns = max(end_ns, each.start_ns + each.duration_ns)
    return total_ns / trace.calls / 1e3


def occupancy_of(launch: KernelLaunch, capability: str) -> Occupancy | None:
    """The launch's theoretical occupancy."""
    return occupancy(
        capability,
        registers=launch.registers,
        shared_bytes=launch.shared_bytes,
        threads=launch.threads,
    )


def idle_share_of_last_blocks(launch: KernelLaunch, multiprocessors: int) -> float:
    """The part of the multiprocessors' time that is lost because the blocks cannot be dealt out evenly, if
    all blocks take equally long."""
    each = launch.blocks / multiprocessors
    return 1 - each / -(-launch.blocks // multiprocessors)


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*map(int, values), 1, 1)[:3]
    return x, y, z
