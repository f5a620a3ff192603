"""Finds chains: neighbouring calls that could be one kernel, because no other call reads their intermediate
values.

A *region* is a set of light calls (elementwise, reductions) with one last call, its end; the results of the
others are read only within the region. A chain is a region alone, a region with the contractions that feed it
(an epilogue), with the contraction that it feeds (a prologue), or with both where they are matmuls (an MLP,
or attention). A contraction feeds a region if its results are read only there; a region feeds a contraction
if nothing else reads the region's end. Chains overlap: they are alternatives. Regions grow from their ends
upwards, as operators are grouped by their post-dominators in Chen et al., TVM, OSDI 2018.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search.optimize.profiling.recording import OperatorKind, RecordedCall, RecordedRun

MOST_CALLS = 64
"""Maximum length of a chain; nobody writes a kernel for more."""
MATMULS = ("mm", "addmm", "bmm", "baddbmm")


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Calls by their index in the run, in order; `bytes` that one kernel for all of them reads and writes."""

    places: tuple[int, ...]
    bytes: int


def find_chains(run: RecordedRun) -> list[Chain]:
    """All chains of a run, in the order of their first calls."""
    flow = _Flow(run)
    regions = _regions(run.calls, flow)
    members: dict[int, list[int]] = defaultdict(list)
    for place, end in regions.items():
        members[end].append(place)
    found: dict[tuple[int, ...], None] = {}
    for end, region in members.items():
        feeding = [place for place in flow.contractions if flow.region_of_readers(place, regions) == end]
        fed = flow.only_reader(end)
        found[tuple(sorted(region))] = None
        found[tuple(sorted([*feeding, *region]))] = None
        if fed in flow.contractions and _in_one_kernel(run.calls, [*feeding, fed]):
            found[tuple(sorted([*feeding, *region, fed]))] = None
    kept = sorted(places for places in found if 1 < len(places) <= MOST_CALLS)
    return [Chain(places=places, bytes=moved(places, flow)) for places in kept]


def _in_one_kernel(calls: Sequence[RecordedCall], contractions: Sequence[int]) -> bool:
    """Whether these contractions fit into one kernel: only matmuls do, because a convolution needs the
    results of its neighbours."""
    return len(contractions) == 1 or all(calls[place].name in MATMULS for place in contractions)


class _Flow:
    """Which calls write a value, and which read it."""

    def __init__(self, run: RecordedRun) -> None:
        self.calls = run.calls
        self.kept = run.kept
        self.readers: dict[int, list[int]] = defaultdict(list)
        for place, call in enumerate(run.calls):
            if call.kind is not OperatorKind.VIEW:
                for value in call.reads:
                    self.readers[value].append(place)
        self.contractions = [
            place for place, call in enumerate(run.calls) if call.kind is OperatorKind.CONTRACTION
        ]

    def readers_of(self, place: int) -> set[int]:
        """The calls that read this call's results; empty where a result outlives the run."""
        writes = self.calls[place].writes
        if any(value in self.kept for value in writes):
            return set()
        return {reader for value in writes for reader in self.readers[value]}

    def only_reader(self, place: int) -> int | None:
        """The only call that reads this call's results; None where there are several or none."""
        readers = self.readers_of(place)
        return next(iter(readers)) if len(readers) == 1 else None

    def region_of_readers(self, place: int, regions: Mapping[int, int]) -> int | None:
        """The region that contains all readers; None where they are in several."""
        found = {regions.get(reader) for reader in self.readers_of(place)}
        return next(iter(found)) if len(found) == 1 else None


def _regions(calls: Sequence[RecordedCall], flow: _Flow) -> dict[int, int]:
    """For each light call, the end of its region."""
    regions: dict[int, int] = {}
    for place in reversed(range(len(calls))):
        if calls[place].kind is OperatorKind.LIGHT:
            joined = flow.region_of_readers(place, regions)
            regions[place] = place if joined is None else joined
    return regions


def moved(places: Sequence[int], flow: _Flow) -> int:
    """The bytes that the calls read from outside and write for the outside, each value once."""
    inside = set(places)
    written = {value: size for place in places for value, size in flow.calls[place].writes.items()}
    read: dict[int, int] = {}
    for place in places:
        for value, size in flow.calls[place].reads.items():
            if value not in written:
                read[value] = max(read.get(value, 0), size)
    left = sum(
        size
        for value, size in written.items()
        if value in flow.kept or not set(flow.readers[value]) <= inside
    )
    return sum(read.values()) + left
