"""Finds the entries that help with a problem: those for it, those for its operation, and related ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evaluators.records.problem import LIBRARY_POLICIES, Problem, as_strict
from kernel_library.catalogue.entry import Entry, Hit, HitKind, architecture_of
from kernel_library.catalogue.traits import Traits
from kernel_library.overrides.shapes import all_fit

RELATIONS = (
    ("conv1d", "matmul", "a convolution is a matmul over gathered patches (implicit GEMM)"),
    ("conv2d", "matmul", "a convolution is a matmul over gathered patches (implicit GEMM)"),
    ("conv3d", "matmul", "a convolution is a matmul over gathered patches (implicit GEMM)"),
    ("conv_transpose2d", "matmul", "a transposed convolution is a matmul whose results are scattered"),
    ("conv_transpose2d", "conv2d", "a transposed convolution also gathers patches, at other places"),
    ("conv1d", "conv2d", "the same gathering of patches in another number of dimensions"),
    ("conv3d", "conv2d", "the same gathering of patches in another number of dimensions"),
    ("attention", "matmul", "attention is two matmuls around a softmax"),
    ("attention", "softmax", "attention is two matmuls around a softmax, which can be kept online"),
    ("swiglu", "matmul", "a gated MLP is matmuls that share an input, and a product of their outputs"),
    ("log_softmax", "softmax", "both need the maximum of each row and its sum of exponentials"),
    ("logsumexp", "softmax", "both need the maximum of each row and its sum of exponentials"),
    ("cross_entropy", "softmax", "both need the maximum of each row and its sum of exponentials"),
    ("cross_entropy", "log_softmax", "the loss is one element of the log-softmax of each row"),
    ("rmsnorm", "layernorm", "both scale each row by a statistic of it"),
    ("groupnorm", "layernorm", "the same statistics over other groups of elements"),
    ("batchnorm", "layernorm", "the same statistics over other groups of elements"),
    ("softmax", "layernorm", "both reduce each row, then go over it again"),
    ("softmax", "rmsnorm", "both reduce each row, then go over it again"),
    ("softmax", "sum", "it begins with reductions over each row"),
    ("layernorm", "sum", "it begins with reductions over each row"),
    ("rmsnorm", "sum", "it begins with a reduction over each row"),
    ("mean", "sum", "a mean is a sum, scaled"),
    ("max", "sum", "the same reduction with another operator"),
    ("linalg_vector_norm", "sum", "the same reduction with another operator"),
    ("avgpool", "maxpool", "the same windows with another operator"),
)
"""Pairs of operations that can learn from each other, and what they have in common."""
RELATED: Mapping[frozenset[str], str] = {frozenset((one, other)): why for one, other, why in RELATIONS}
LIGHT = {"relu", "gelu", "silu", "sigmoid", "tanh", "exp", "leaky_relu", "elu", "hardtanh", "mean", "var"}
"""Cheap operations: having one in common does not make a kernel worth reading."""


def bests(entries: Sequence[Entry]) -> dict[tuple[str, str], str]:
    """The id of the fastest entry for each problem id and architecture: of the entries that no other one beat
    (see `slower`), the one with the largest lower end of its speedup's interval, then the first by id."""
    behind = slower(entries)
    best: dict[tuple[str, str], tuple[bool, float, str]] = {}
    for entry in entries:
        for measurement in entry.measurements:
            place = (measurement.problem.id, measurement.architecture)
            standing = ((*place, entry.id) in behind, -measurement.evaluation.speedup_low, entry.id)
            best[place] = min(best.get(place, standing), standing)
    return {place: id for place, (_, _, id) in best.items()}


def slower(entries: Iterable[Entry]) -> set[tuple[str, str, str]]:
    """The entries that lost to another in one session, as ids of problem, architecture and entry. The later
    entry of the two loses unless it is significantly faster."""
    there = {(m.problem.id, m.architecture, entry.id): m for entry in entries for m in entry.measurements}
    found = set()
    for (problem, architecture, id), measurement in there.items():
        against = measurement.against
        if against is not None and (problem, architecture, against.entry) in there:
            found.add((problem, architecture, against.entry if against.faster else id))
    return found


def rank(
    problem: Problem, traits: Traits, entries: Sequence[Entry], environment: Mapping[str, str]
) -> list[Hit]:
    """The entries that help with the problem, the most helpful first. The best entry for a problem comes
    before those it replaced; then the order is by kind, by whether the entry was measured on this
    architecture, by whether it supports this dtype, and by the lower end of its speedup's interval.

    `environment` is the target device as in an evaluation. Kernels that do not run on its architecture only
    serve as examples; kernels for a CPU do not help on a GPU or the other way round.
    """
    best = set(bests(entries).values())
    device = environment.get("device", "")
    architecture = architecture_of(problem.device, environment.get("architecture", ""))
    found = []
    for entry in entries:
        if any(m.problem.device == problem.device for m in entry.measurements):
            hit = _hit(problem, traits, entry, architecture, device)
            if hit is not None:
                found.append(hit)

    def key(hit: Hit) -> tuple[object, ...]:
        entry = hit.entry
        architectures = {m.architecture for m in entry.measurements}
        speedup = (hit.evaluation or entry.best.evaluation).speedup_low
        kind, dtype = [*HitKind].index(hit.kind), problem.dtype in entry.dtypes
        return entry.id not in best, kind, architecture not in architectures, not dtype, -speedup, entry.id

    return sorted(found, key=key)


def _hit(problem: Problem, traits: Traits, entry: Entry, architecture: str, device: str) -> Hit | None:
    usable = entry.runs_on(architecture)
    if usable and any(m.problem.id == problem.id for m in entry.measurements):
        found = entry.measured(problem.id, device)
        why = (
            f"for this problem: {_gain(entry)}"
            if found is None
            else "for this problem, measured on this device"
        )
        return Hit(entry=entry, kind=HitKind.PROBLEM, why=why, evaluation=found)
    if usable and _is_right_for(problem, traits, entry):
        return Hit(entry=entry, kind=HitKind.REFERENCE, why=f"for the same reference: {_gain(entry)}")
    relations = [*_relations(traits, entry)]
    if not relations:
        return None
    kind, why = min(relations, key=lambda each: [*HitKind].index(each[0]))
    return Hit(entry=entry, kind=kind, why=f"{why}; {_gain(entry)}")


def _relations(traits: Traits, entry: Entry) -> Iterable[tuple[HitKind, str]]:
    """All relations between the operations."""
    if not traits.op or not entry.op:
        return
    if entry.op == traits.op:
        yield HitKind.OP, f"the same operation ({entry.op})"
    # A cheap operation counts only if it is the whole problem.
    mine, theirs = _heavy(traits.op, traits.parts), _heavy(entry.op, entry.parts)
    if entry.op in mine:
        yield HitKind.PART, f"{entry.op} is a part of it"
    if traits.op in theirs:
        yield HitKind.PART, f"{entry.op} has it as a part"
    for one in mine:
        for other in theirs:
            if one == other:
                yield HitKind.PART, f"both have {one} as a part"
            elif reason := RELATED.get(frozenset((one, other))):
                yield HitKind.RELATED, f"{other} for {one}: {reason}"


def _is_right_for(problem: Problem, traits: Traits, entry: Entry) -> bool:
    """Whether the entry's kernel was correct for the same reference under rules at least as strict, and
    supports this dtype and these shapes. Kernels found by a search support only the sizes checked."""
    return (
        problem.dtype in entry.dtypes
        and _in_range(entry.shapes, traits.inputs)
        and any(
            m.problem.source == problem.source
            and m.problem.device == problem.device
            and (entry.name or m.problem.overrides == problem.overrides)
            and as_strict(m.problem, problem)
            and LIBRARY_POLICIES.index(m.problem.libraries) >= LIBRARY_POLICIES.index(problem.libraries)
            for m in entry.measurements
        )
    )


def _in_range(patterns: Sequence[str], inputs: Sequence[str]) -> bool:
    """Whether every input matches the entry's shape pattern."""
    shapes = [[int(size) for size in each.split("x") if size] for each in inputs]
    return len(patterns) == len(shapes) and all_fit(patterns, shapes)


def _heavy(op: str, parts: Sequence[str]) -> list[str]:
    return [each for each in dict.fromkeys((op, *parts)) if each == op or each not in LIGHT]


def _gain(entry: Entry) -> str:
    best = entry.best
    where = best.evaluation.environment.get("device", "unknown device")
    return f"{best.evaluation.speedup:.2f}x at {best.problem.name} ({best.problem.dtype}) on {where}"
