"""Definitions of FlashInfer Trace and SOL-ExecBench as problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from evaluators.reference.loading import BadReference, load_module
from evaluators.suites.definitions.files import Definitions
from evaluators.suites.definitions.reference import load_definition_problem, source_of
from evaluators.suites.suite import SuiteMissing
from tests.evaluators.suites.definitions.samples import SCALE, workloads, write


def test_workloads_become_cases(sets: Path) -> None:
    problem = load_definition_problem("flashinfer/scale_rows_h32")
    timed = [case.sizes["rows"] for case in problem.cases if case.weight]
    assert timed == [160, 112, 56, 8]
    assert len(problem.cases) == 12
    assert all(case.sizes["factor"] == 0.5 for case in problem.cases)
    assert "torch.randn((columns // 2,), dtype=torch.float32)" in problem.source
    assert "def get_held_out" in problem.source
    assert (
        len(
            load_definition_problem("flashinfer/scale_rows_h32", timed_workloads=1, checked_workloads=0).cases
        )
        == 0
    )


def test_the_suites_list_their_definitions(sets: Path) -> None:
    assert [each.problem for each in Definitions("flashinfer").entries()] == ["flashinfer/scale_rows_h32"]
    assert [each.problem for each in Definitions("solexec", "L1").entries()] == ["solexec/gather"]
    with pytest.raises(SuiteMissing, match="no definitions of L2; it has L1"):
        Definitions("solexec", "L2").entries()


def test_inputs_that_the_definition_makes(sets: Path) -> None:
    problem = load_definition_problem("solexec/gather")
    assert 'made = make({"tokens": tokens, "experts": experts}, torch.empty(0).device)' in problem.source
    assert problem.dtype == "bfloat16"
    assert not problem.cases


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"axes": {"rows": {"type": "odd"}}}, "of the type odd, which is unknown"),
        ({"axes": SCALE["axes"] | {"half": {"type": "expr", "expression": "f(1)"}}}, "more than arithmetic"),
        ({"inputs": {"x y": SCALE["inputs"]["x"]}}, "'x y', which cannot be a name"),
        ({"inputs": {"x": {"shape": ["rows"], "dtype": "float4"}}}, "of type float4, which is not supported"),
        ({"reference": None}, "the definition scale_rows_h32 is incomplete"),
    ],
)
def test_a_bad_definition_is_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadReference, match=said) as refused:
        source_of(SCALE | change, workloads(SCALE["name"], 2), timed_workloads=4, checked_workloads=8)
    assert "\n" not in str(refused.value)


def with_stored_weights(root: Path, count: int) -> list[dict[str, Any]]:
    """Workloads whose weights are in files; that of the first is missing."""
    rows = workloads(SCALE["name"], count)
    for number, row in enumerate(rows):
        path = f"blob/{number}.safetensors"
        row["inputs"] = row["inputs"] | {
            "weight": {"type": "safetensors", "path": f"./{path}", "tensor_key": "w"}
        }
        if number:
            (root / path).parent.mkdir(exist_ok=True)
            save_file({"w": torch.full((16,), float(number))}, root / path)
    return rows


def test_tensors_of_workloads_come_from_their_files(sets: Path) -> None:
    rows = [*with_stored_weights(sets / "fib", 3), *workloads(SCALE["name"], 4)[3:]]
    write(sets / "fib/workloads/scaling/scale_rows_h32.jsonl", *rows)
    problem = load_definition_problem("flashinfer/scale_rows_h32")
    assert [case.sizes for case in problem.cases] == [
        {"rows": 32, "factor": 0.5, "stored": ""},
        {"rows": 24, "factor": 0.5, "stored": "3"},
        {"rows": 16, "factor": 0.5, "stored": "2"},
    ]
    drawn, _, second = (load_module(problem.source, each.sizes).get_inputs()[1] for each in problem.cases)
    assert torch.equal(second, torch.ones(16))
    assert drawn.std() > 0.1
    rows = with_stored_weights(sets / "fib", 1)
    with pytest.raises(BadReference, match=r"the file ./blob/0.safetensors of its workloads' tensors is not"):
        source_of(SCALE, rows, timed_workloads=4, checked_workloads=8)


def test_the_heaviest_workloads_are_timed(sets: Path) -> None:
    rows = workloads(SCALE["name"], 6)
    for row, weight in zip(rows, (0.1, 0.5, None, 0.2, 0.1, 3), strict=True):
        row |= {} if weight is None else {"weight": weight}
    write(sets / "fib/workloads/scaling/scale_rows_h32.jsonl", *rows)
    problem = load_definition_problem("flashinfer/scale_rows_h32", timed_workloads=3)
    timed = [(case.sizes["rows"], case.weight) for case in problem.cases if case.weight]
    assert timed == [(48, 3), (32, 0.2), (16, 0.5)]
    with pytest.raises(BadReference, match="has the weight 0; it must be a positive number"):
        source_of(SCALE, [rows[0] | {"weight": 0}], timed_workloads=4, checked_workloads=8)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, sets: Path) -> None:
    with pytest.raises(BadReference, match=r"no definition scale_rows_h3; did you mean scale_rows_h32\?"):
        load_definition_problem("flashinfer/scale_rows_h3")
    monkeypatch.delenv("FIB_DATASET_PATH")
    with pytest.raises(SuiteMissing, match="set FIB_DATASET_PATH to the folder"):
        load_definition_problem("flashinfer/scale_rows_h32")
