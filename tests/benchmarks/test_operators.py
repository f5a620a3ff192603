"""The benchmark of many shapes: its sets, its table, and the measurements that it keeps."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import operators
from benchmarks.operator_cases import PEERS
from benchmarks.operator_rows import Row, in_json
from benchmarks.operators import SETS
from benchmarks.training_cases import training_cases
from benchmarks.transformer_cases import transformer_cases
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Passes, Status
from evaluators.records.timing import timing_of
from evaluators.reference.reference_model import ReferenceModel
from kernel_library.catalogue.originals import ORIGINALS
from tests.kernel_library.entries import entry, shipped


def evaluation(kernel_ms: float, saved_bytes: int = 2**20) -> Evaluation:
    samples, eager = [kernel_ms] * 11, [1.0] * 11
    passes = Passes(
        forward_ms=kernel_ms / 3, eager_forward_ms=0.4, saved_bytes=saved_bytes, eager_saved_bytes=2**22
    )
    return Evaluation(status=Status.CORRECT, timing=timing_of(samples, eager), passes=passes)


@pytest.mark.parametrize(("name", "families"), [("training", 9), ("transformer", 20)])
def test_twenty_shapes_for_each_family(name: str, families: int) -> None:
    cases = SETS[name]("cuda")
    assert {*Counter(each.operator.op for each in cases).values()} == {20}
    assert len({each.operator.op for each in cases}) == families
    assert len({each.name for each in cases}) == len(cases)


def test_peers_are_of_families() -> None:
    """Those of a recorded search alone are in the folder of the transformer's, too."""
    for name, cases in SETS.items():
        known = {each.operator.op for each in cases("cuda")}
        alone = {"attention", "layernorm"} if name == "transformer" else set()
        assert {file.parent.name for file in (PEERS / name).glob("*/*.py")} <= known | alone, name


def test_most_shapes_of_training_are_in_half_precision() -> None:
    cases = training_cases("cuda")
    halves = sum(each.dtype != "float32" for each in cases)
    assert halves > 3 * (len(cases) - halves) > 0


@pytest.mark.parametrize("op", sorted({each.operator.op for each in transformer_cases("cpu")}))
def test_each_family_of_the_transformers_set_is_a_problem(op: str) -> None:
    """Its first inputs and weights are those by which a kernel is chosen."""
    case = next(each for each in transformer_cases("cpu") if each.operator.op == op)
    problem = case.to_problem()
    assert not problem.backward and not problem.cases
    reference = ReferenceModel(problem, seed=1)
    inputs = [[*each.shape] for each in reference.draw(1)]
    first = [[*each] for each in case.operator.inputs(case.sizes)]
    assert inputs[: len(first)] == first
    weights = [[*each.shape] for each in [*reference.draw(1), *reference.eager.parameters()]]
    assert all([*each] in weights for each in case.operator.weights(case.sizes))


@pytest.mark.parametrize("op", sorted({each.operator.op for each in training_cases("cpu")}))
def test_each_family_is_a_problem_with_gradients(op: str) -> None:
    case = next(each for each in training_cases("cpu") if each.operator.op == op)
    problem = case.to_problem()
    assert problem.backward and not problem.cases
    reference = ReferenceModel(problem, seed=1)
    gradients = reference.draw(1)[-1]
    loss = op in ("cross_entropy", "linear_cross_entropy")
    assert gradients[0].dim() == (0 if loss else len(case.shapes[0]))
    if op == "rotary":
        assert reference._gradients == ["q", "k"], "the angles have none"


def rows(cases: int = 3) -> list[Row]:
    """Ahead of the fastest peer, without a kernel of ours, and behind."""
    first, second, third = training_cases("cuda")[:cases]
    crashed = Evaluation(status=Status.CRASHED, log="ModuleNotFoundError: nowhere")
    return [
        Row(first, {"mine": evaluation(0.5)}, {"liger": evaluation(0.8), "quack": crashed}),
        Row(second, {}, {"compile": evaluation(1.01)}),
        Row(third, {"mine": evaluation(0.9)}, {"liger": evaluation(0.6, 2**23)}),
    ]


def run(folder: Path, known: list[Row], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of a call that merges these rows and measures nothing."""
    store = JsonlStore(folder / "part1.jsonl")
    for row in known:
        store.put(row.case.name, {"ours": in_json(row.ours), "peers": in_json(row.peers)})
    monkeypatch.setitem(SETS, "training", lambda device: [row.case for row in known])
    monkeypatch.setattr("benchmarks.operators.KernelProcess", lambda *_: pytest.fail("it measures"))
    given = [f"out={folder / 'new' / 'all.jsonl'}", f"merge={store.path}", "limit_s=0"]
    return operators.main(["set=training", *given])


def test_the_table_and_what_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, rows(), monkeypatch) == 0
    said = capsys.readouterr().out
    assert "ahead or even (within 2%) at 2 of 3 shapes" in said
    assert f"behind: {rows()[2].case.name}: 0.667x of liger" in said
    assert "library 0.25 (2)" in said and "liger 1.12 (9)" in said
    assert "0 not measured in time" in said
    with (tmp_path / "new" / "all.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [each["kernel"] for each in table] == [
        *("eager", "mine", "liger", "quack"),
        *("eager", "compile"),
        *("eager", "mine", "liger"),
    ]
    assert [each["kernel"] for each in table if each["used"] == "True"] == ["mine", "eager", "mine"]
    assert (table[1]["ms"], table[1]["saved_mib"]) == ("0.5", "1.0")
    assert table[3]["remark"] == "ModuleNotFoundError: nowhere" and not table[3]["ms"]


def test_a_wrong_kernel_of_ours_is_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = rows()
    wrong = Evaluation(status=Status.INCORRECT, log="the gradient of x: ...")
    assert run(tmp_path, [replace(first, ours={"mine": wrong}), *others], monkeypatch) == 1


def test_the_shapes_of_a_table_are_those_that_best_is_given() -> None:
    """Of weights that decide about the time, too, in the order of the family's interface, of which there is
    none for queries and keys together."""
    first = {each.operator.op: each for each in reversed(training_cases("cuda"))}
    assert first["linear_cross_entropy"].shapes == [(8192, 768), (50257, 768)]
    assert first["swiglu"].shapes == [(8192, 576), (1536, 576)]
    assert first.pop("rotary").shapes == [(8, 12, 1024, 64), (8, 12, 1024, 64)]
    for op, case in first.items():
        given = [torch.empty(each, device="meta") for each in case.shapes]
        whole = [each.shape for each in ORIGINALS[op].arguments(*given) if isinstance(each, torch.Tensor)]
        assert whole[: len(given)] == [each.shape for each in given] and len(whole) == ORIGINALS[op].tensors


WRAPPED = {
    "training/rotary": False,
    "library/cross_entropy": True,
    "library/rmsnorm": False,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_kernels_for_the_familys_problem_take_part(name: str) -> None:
    """Under any name of an operation; a loss gets its mean."""
    op = name.partition("/")[2]
    case = next(each for each in training_cases("cuda") if each.operator.op == op)
    problem = replace(shipped(name), backward=True, dtype=case.dtype)
    known = {"op": "else", "shapes": ("...x*",), "dtypes": (case.dtype,)}
    mine, forward = (
        entry(replace(problem, backward=each), "class ModelNew: ...\n", **known) for each in (True, False)
    )
    other = entry(replace(shipped("level1/softmax"), backward=True), **{**known, "op": op})
    (kernel,) = case.ours([mine, forward, other], "9.0").values()
    assert kernel.source.startswith(mine.kernel.source)
    assert ("class ModelNew(" in kernel.source) is WRAPPED[name]


def test_parts_and_wrong_calls(tmp_path: Path) -> None:
    families = ["a", "b", "c", "d", "e"]
    assert [operators.part_of(families, part) for part in ("1/2", "2/2", "1/1")] == [
        ["a", "c", "e"],
        ["b", "d"],
        families,
    ]
    for words, says in (
        (["part=3/2"], "part=3/2: give i/n"),
        (["only=nothing"], "no shape's name contains it"),
        (["famly=a"], "unknown key famly"),
        (["set=trainings"], "set=trainings: known are operators, transformer, training"),
        ([f"merge={tmp_path / 'nowhere'}", f"out={tmp_path / 'o'}"], "there is no such file"),
    ):
        with pytest.raises(UsageError, match=says):
            operators.main(["device=cpu", *words])
