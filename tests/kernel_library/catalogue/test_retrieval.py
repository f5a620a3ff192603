"""What is found for a problem, in which order, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Problem
from kernel_library.catalogue.entry import Entry, Hit, HitKind, RepeatedMeasurement
from kernel_library.catalogue.retrieval import bests, rank
from kernel_library.catalogue.traits import traits_of
from tests.kernel_library.entries import CPU, GPU, entry, reference, shipped

SOFTMAX, CONV, MATMUL = (shipped(f"level1/{name}") for name in ("softmax", "conv2d", "matmul"))
FUSED = shipped("level2/conv2d_relu_maxpool")


def described(problem: Problem, source: str = "kernel", speedup: float = 2.0, **fields: object) -> Entry:
    """An entry as it stands in the library."""
    traits = traits_of(problem)
    known = {"op": traits.op, "parts": traits.parts, "shapes": traits.inputs, "dtypes": (problem.dtype,)}
    return entry(problem, source, speedup, **{**known, **fields})


def find(problem: Problem, *entries: Entry, environment: dict[str, str] = GPU) -> list[Hit]:
    return rank(problem, traits_of(problem), entries, environment)


def test_the_same_problem_then_its_operation_then_related_ones() -> None:
    gemm, conv, fused = described(MATMUL), described(CONV), described(FUSED)
    other = described(reference("F.conv2d(a[0], a[1])", "torch.randn(1, 3, 9, 9), torch.randn(4, 3, 3, 3)"))
    bigger = described(shipped("level1/conv2d", sizes={"batch": 7}), shapes=("...",), name="conv2d/gemm")
    found = find(CONV, gemm, described(SOFTMAX), fused, other, conv, bigger)
    assert [hit.entry for hit in found] == [conv, bigger, other, fused, gemm]
    assert [hit.kind for hit in found] == [*HitKind]
    assert [hit.drop_in for hit in found] == [True, True, False, False, False]
    assert [hit.evaluation for hit in found] == [conv.measurements[0].evaluation, None, None, None, None]
    assert [hit.why.partition("; 2.00x at level1/matmul")[0] for hit in found] == [
        "for this problem, measured on this device",
        "for the same reference: 2.00x at level1/conv2d (float32) on NVIDIA H200",
        "the same operation (conv2d); 2.00x at file/mine (float32) on NVIDIA H200",
        "conv2d_relu_maxpool has it as a part; 2.00x at level2/conv2d_relu_maxpool (float32) on NVIDIA H200",
        "matmul for conv2d: a convolution is a matmul over gathered patches (implicit GEMM)",
    ]
    assert all("\n" not in hit.why for hit in found)


@pytest.mark.parametrize(
    ("asked", "known", "kind"),
    [
        (FUSED, CONV, HitKind.PART),
        (FUSED, MATMUL, HitKind.RELATED),
        (
            reference("F.scaled_dot_product_attention(*a)", "*[torch.randn(1, 2, 8, 4)] * 3"),
            SOFTMAX,
            HitKind.PART,
        ),
        (
            reference("F.cross_entropy(*a)", "torch.randn(4, 6), torch.randint(0, 6, (4,))"),
            SOFTMAX,
            HitKind.RELATED,
        ),
        (reference("F.gelu(a[0] @ a[1])", "torch.randn(4, 4), torch.randn(4, 4)"), MATMUL, HitKind.PART),
        (
            reference("torch.relu(a[0])", "torch.randn(4)"),
            reference("F.relu(a[0])", "torch.randn(5)"),
            HitKind.OP,
        ),
        (reference("torch.relu(a[0].sum(1))", "torch.randn(4, 4)"), FUSED, None),
        (SOFTMAX, MATMUL, None),
        (reference("torch.tensor(a[0].sum().item())", "torch.randn(4)"), MATMUL, None),
    ],
)
def test_operations_are_related(asked: Problem, known: Problem, kind: HitKind | None) -> None:
    assert [hit.kind for hit in find(asked, described(known))] == ([] if kind is None else [kind])


@pytest.mark.parametrize(
    ("change", "fields", "kind"),
    [
        ({"sizes": {"batch": 7}}, {"shapes": ("*x1..",)}, HitKind.REFERENCE),
        ({"sizes": {"batch": 7}}, {"shapes": ("*x1..", "*")}, HitKind.OP),
        ({"sizes": {"batch": 7}}, {"shapes": ("1..6x*",)}, HitKind.OP),
        ({"sizes": {"batch": 7}}, {"shapes": ("*x1..",), "name": ""}, HitKind.OP),
        ({"dtype": "float16"}, {"dtypes": ("float32", "float16")}, HitKind.REFERENCE),
        ({"dtype": "float16"}, {}, HitKind.OP),
        ({"tolerance": "kernelbench"}, {}, HitKind.REFERENCE),
        ({"tolerance": "strict"}, {}, HitKind.OP),
        ({"libraries": "any"}, {}, HitKind.REFERENCE),
        ({"libraries": "no_library"}, {}, HitKind.OP),
        ({"device": "cpu"}, {}, None),
    ],
)
def test_a_kernel_is_a_drop_in_only_where_it_is_right(
    change: dict[str, object], fields: dict[str, object], kind: HitKind | None
) -> None:
    rules = {"tolerance": "kernelbench_v02", "libraries": "any"}
    if change.get("libraries") == "any":
        rules["libraries"] = "no_library"
    known = described(shipped("level1/softmax", **rules), **{"name": "softmax/online", **fields})
    found = find(shipped("level1/softmax", **{**rules, **change}), known)
    assert [hit.kind for hit in found] == ([] if kind is None else [kind])


def test_what_does_not_run_here_is_only_there_to_be_read() -> None:
    confined = described(SOFTMAX, architectures=("8.9",), environment={**GPU, "architecture": "8.9"})
    failed = RepeatedMeasurement(
        problem_id=SOFTMAX.id, evaluation=Evaluation(status=Status.CRASHED, environment=GPU)
    )
    for known in (confined, described(SOFTMAX, checks=(failed,))):
        (hit,) = find(SOFTMAX, known)
        assert (hit.kind, hit.evaluation) == (HitKind.OP, None)
    (hit,) = find(SOFTMAX, confined, environment={})
    assert (hit.kind, hit.evaluation) == (HitKind.PROBLEM, None)


def test_the_best_come_before_the_history() -> None:
    slow, fast = described(SOFTMAX, "slow", 1.5), described(SOFTMAX, "fast", 3.0)
    elsewhere = described(SOFTMAX, "old", 1.2, environment={**GPU, "device": "L40S", "architecture": "8.9"})
    related = described(shipped("level1/layernorm"), "norm")
    entries = [slow, fast, elsewhere, related]
    assert [hit.entry for hit in find(SOFTMAX, *entries)] == [fast, elsewhere, related, slow]
    assert set(bests(entries).values()) == {fast.id, elsewhere.id, related.id}
    shared = replace(slow, name="softmax/two", measurements=(*slow.measurements, *related.measurements))
    assert shared.id in bests([fast, shared]).values()


def test_of_one_kind_those_for_this_architecture_and_dtype_come_first() -> None:
    problem = reference("torch.softmax(a[0], 1)", "torch.randn(3, 5)")
    half = described(shipped("level1/softmax", dtype="float16"), "half", 9.0)
    old = described(SOFTMAX, "old", 8.0, environment={**GPU, "architecture": "8.9"})
    right = [described(shipped("level1/softmax", sizes={"batch": n}), str(n), float(n)) for n in (2, 3)]
    assert [hit.entry for hit in find(problem, half, old, *right)] == [right[1], right[0], half, old]


def test_a_cpu_gets_only_kernels_for_cpus() -> None:
    here = shipped("level1/softmax", device="cpu")
    known = described(here)
    (hit,) = find(here, known, described(SOFTMAX), environment=CPU)
    assert (hit.entry, hit.evaluation) == (known, known.measurements[0].evaluation)
