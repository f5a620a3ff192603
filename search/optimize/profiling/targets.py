"""Computes what could be gained: the time of each operator and chain of a run, the least time that the
machine allows, and the speedup of the library's kernel."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from evaluators.reference.cost.machine_peaks import MachinePeaks
from evaluators.reference.cost.operation_count import Work
from evaluators.reference.cost.roofline import roofline
from evaluators.suites.traced.call import tensors_of
from kernel_library.catalogue.entry import Entry, Measurement
from kernel_library.catalogue.traits import family
from search.optimize.profiling.chains import find_chains
from search.optimize.profiling.record import Bound, LibraryKernel, SiteTime, Target, TargetCase
from search.optimize.profiling.recording import RecordedCall, RecordedRun
from search.optimize.profiling.timing import ProfileTiming


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The measured device: peak rates, `architecture` as the library names it, and the library's `entries`,
    of which with `backward` only the measurements of both passes count."""

    peaks: MachinePeaks
    architecture: str
    entries: Sequence[Entry] = ()
    backward: bool = False


def operators_of(run: RecordedRun, timing: ProfileTiming, machine: Machine) -> list[Target]:
    """A target per operator that was called, the one with most time first."""
    members = [(place,) for place in range(len(run.calls))]
    sizes = [sum(call.reads.values()) + sum(call.writes.values()) for call in run.calls]
    return _targets(run, timing, machine, list(zip(members, sizes, strict=True)))


def chains_of(run: RecordedRun, timing: ProfileTiming, machine: Machine) -> list[Target]:
    """A target per chain of operators that could be one kernel, the one with most time first."""
    found = [(chain.places, chain.bytes) for chain in find_chains(run)]
    return _targets(run, timing, machine, found)


def of_both_passes(run: RecordedRun, timing: ProfileTiming, machine: Machine) -> list[Target]:
    """A target per operator and per chain of the forward, with the time and the operations of both passes.
    Each pass moves at least the bytes of the forward: the gradients are as large as what they belong to."""
    forward = run.forward
    call_ms = list(timing.call_ms[: run.forward_calls])
    operations = [each.operations for each in forward.calls]
    for call, taken_ms in zip(run.calls, timing.call_ms, strict=True):
        if call.origin is not None:
            call_ms[call.origin] += taken_ms
            operations[call.origin] += call.operations
    calls = [replace(each, operations=own) for each, own in zip(forward.calls, operations, strict=True)]
    both = replace(forward, calls=calls)
    timed = replace(timing, call_ms=call_ms, quickest_ms=2 * timing.quickest_ms)
    groups = [
        *(
            ((place,), sum(each.reads.values()) + sum(each.writes.values()))
            for place, each in enumerate(calls)
        ),
        *((chain.places, chain.bytes) for chain in find_chains(both)),
    ]
    return _targets(both, timed, replace(machine, backward=True), [(own, 2 * size) for own, size in groups])


def merge_shapes(by_shape: Sequence[Sequence[Target]], weights: Sequence[float]) -> list[Target]:
    """Merges the targets of several input shapes: those with the same operators become one, with the weighted
    average times. The library kernel is that of the shape where the target takes most time."""
    found: dict[tuple[str, ...], list[Target]] = defaultdict(list)
    for shape, (targets, weight) in enumerate(zip(by_shape, weights, strict=True)):
        for each in targets:
            cases = tuple(_weighted(case, shape, weight) for case in each.cases)
            found[each.operators].append(replace(each, cases=cases))
    merged = []
    for own in found.values():
        cases = tuple(sorted((case for each in own for case in each.cases), key=lambda each: -each.time_ms))
        merged.append(replace(max(own, key=lambda each: each.time_ms), cases=cases))
    return sorted(merged, key=lambda each: (-each.time_ms, each.name))


def _weighted(case: TargetCase, shape: int, weight: float) -> TargetCase:
    sites = {site: replace(each, time_ms=weight * each.time_ms) for site, each in case.sites.items()}
    time_ms, floor_ms = weight * case.time_ms, weight * case.floor_ms
    return replace(case, shape=shape, sites=sites, time_ms=time_ms, floor_ms=floor_ms)


def _targets(
    run: RecordedRun, timing: ProfileTiming, machine: Machine, groups: Iterable[tuple[tuple[int, ...], int]]
) -> list[Target]:
    """Turns groups of calls (with the bytes that they move) into targets, one per sequence of operators."""
    by_operators: dict[tuple[str, ...], list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    for places, moved in groups:
        by_operators[tuple(run.calls[place].operator for place in places)].append((places, moved))
    found = []
    for operators, own in by_operators.items():
        first = [run.calls[place] for place in own[0][0]]
        target = Target(
            operators=operators,
            kind="chain" if len(operators) > 1 else first[0].kind.value,
            cases=_cases(run.calls, timing, machine, own),
        )
        found.append(replace(target, library=library_kernel(first, target.cases[0].dtype, machine)))
    return sorted(found, key=lambda each: (-each.time_ms, each.name))


def _cases(
    calls: Sequence[RecordedCall],
    timing: ProfileTiming,
    machine: Machine,
    groups: Sequence[tuple[tuple[int, ...], int]],
) -> tuple[TargetCase, ...]:
    """A case per set of arguments, the one with most time first."""
    by_arguments: dict[tuple[str, ...], list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    for places, moved in groups:
        by_arguments[tuple(calls[place].arguments for place in places)].append((places, moved))
    cases = []
    for arguments, own in by_arguments.items():
        taken: dict[str, list[float]] = defaultdict(list)
        for places, _ in own:
            site = common_site([calls[place].site for place in places])
            taken[site].append(sum(timing.call_ms[place] for place in places))
        members = [calls[place] for place in own[0][0]]
        operations, dtype, moved = sum(each.operations for each in members), _dtype(members), own[0][1]
        reached_ms = [
            sum(timing.call_ms[place] for place in places if calls[place].operations) for places, _ in own
        ]
        floor_ms, bound = floor_of(
            moved,
            operations,
            dtype,
            machine.peaks,
            quickest_ms=timing.quickest_ms,
            reached_ms=sum(reached_ms) / len(own),
        )
        cases.append(
            TargetCase(
                arguments=arguments,
                calls=len(own),
                time_ms=sum(sum(each) for each in taken.values()),
                floor_ms=len(own) * floor_ms,
                bytes=moved,
                operations=operations,
                dtype=dtype,
                bound=bound,
                sites={site: SiteTime(calls=len(each), time_ms=sum(each)) for site, each in taken.items()},
            )
        )
    return tuple(sorted(cases, key=lambda each: (-each.time_ms, each.arguments)))


def floor_of(
    moved: int, operations: int, dtype: str, peaks: MachinePeaks, *, quickest_ms: float, reached_ms: float
) -> tuple[float, Bound]:
    """The least time of one call in ms, and what limits it. `reached_ms` is the current time of the call's
    contractions; it caps the compute limit, because they may be faster than the peak measured on others.
    """
    memory_ms = roofline(Work(bytes=moved, operations=0), peaks, dtype, lower=False).floor_ms
    compute_ms = roofline(Work(bytes=0, operations=operations), peaks, dtype, lower=False).floor_ms
    limits = {
        Bound.MEMORY: memory_ms,
        Bound.COMPUTE: min(compute_ms, reached_ms),
        Bound.LAUNCH: quickest_ms,
    }
    bound = max(limits, key=lambda each: limits[each])
    return limits[bound], bound


def library_kernel(calls: Sequence[RecordedCall], dtype: str, machine: Machine) -> LibraryKernel | None:
    """The library's fastest kernel for these calls, by each kernel's measurement of the closest size on this
    architecture; it is not yet measured at the model's sizes.

    Returns None for a chain whose family comes from a single one of its operators, because that kernel would
    not cover the others.
    """
    names = [family_name(call) for call in calls]
    op, _ = family(names)
    if len(names) > 1 and any(family([name])[0] == op for name in names):
        return None
    elements = max((_elements(call) for call in calls), default=0)
    found: list[tuple[float, str, Measurement]] = []
    for entry in machine.entries:
        own = [
            each
            for each in entry.measurements
            if each.architecture == machine.architecture
            and each.problem.dtype == dtype
            and each.problem.backward == machine.backward
        ]
        if own and entry.op == op and entry.runs_on(machine.architecture):
            closest = min(own, key=lambda each: _distance(each, elements))
            found.append((closest.evaluation.speedup_low, entry.id, closest))
    if not found:
        return None
    speedup, entry_id, measurement = max(found, key=lambda each: each[:2])
    where = f"{measurement.problem.name} {', '.join(measurement.inputs)}".strip()
    return LibraryKernel(entry=entry_id, speedup=speedup, measured_at=where)


def family_name(call: RecordedCall) -> str:
    """The operator's name in the library's families."""
    name = call.name.rstrip("_")
    if name.startswith("_scaled_dot_product") and not name.endswith("backward"):
        return "attention"
    if name == "convolution" and call.call is not None:
        weight = next(tensors_of(call.call.arguments[1]))
        transposed = "_transpose" if call.call.arguments[6] else ""
        return f"conv{transposed}{len(weight.shape) - 2}d"
    return name


def common_site(sites: Sequence[str]) -> str:
    """The innermost module that contains all of these sites."""
    parts = [site.split(".") if site else [] for site in sites]
    shared: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def _dtype(calls: Sequence[RecordedCall]) -> str:
    """The dtype of the first contraction, whose rate counts; of the first call where there is none."""
    found = [call.dtype for call in calls if call.operations] or [call.dtype for call in calls]
    return found[0]


def _elements(call: RecordedCall) -> int:
    """Elements of the largest tensor argument."""
    if call.call is None:
        return 0
    given = tensors_of((*call.call.arguments, *call.call.keywords.values()))
    return max((math.prod(each.shape) for each in given), default=0)


def _distance(measurement: Measurement, elements: int) -> float:
    """Distance of a size from the measurement's, in powers of two."""
    sizes: Mapping[str, int] = {
        shape: math.prod(map(int, shape.split("x"))) for shape in measurement.inputs if shape
    }
    return abs(math.log2(1 + max(sizes.values(), default=0)) - math.log2(1 + elements))
