"""Solutions as kernels, kernels as solutions, and verdicts as traces."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evaluators.app.kernel_file import read_kernel
from evaluators.base.usage_error import UsageError
from evaluators.evaluate.__main__ import main
from evaluators.records.evaluation import CaseResult, Correctness, Evaluation, Status, Timing
from evaluators.records.problem import Kernel
from evaluators.reference.loading import load_module
from evaluators.score import __main__ as score
from evaluators.suites.definitions.files import definition_of
from evaluators.suites.definitions.reference import load_definition_problem
from evaluators.suites.definitions.solutions import read_solution, solution_of
from evaluators.suites.definitions.traces import traces_of
from tests.evaluators.suites.definitions.samples import SOLUTION, write

HEADER = (
    "#pragma once\n#include <torch/extension.h>\nvoid scale(at::Tensor, at::Tensor, double, at::Tensor);\n"
)
LOOP = """
  const int64_t rows = x.size(0), columns = x.size(1), half = columns / 2;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < half; ++j) out[i * half + j] = std::tanh(in[i * columns + 2 * j]) * w[j] * factor;
}
"""
TORCH = {
    "spec": {"language": "cpp", "binding": "torch", "entry_point": "src/main.cpp::scale"},
    "sources": [
        {"path": "include/scale.h", "content": HEADER},
        {
            "path": "src/main.cpp",
            "content": '#include "../include/scale.h"\n'
            'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scale", &scale); }',
        },
        {
            "path": "src/loop.cpp",
            "content": '#include <cmath>\n#include "include/scale.h"\n'
            "void scale(at::Tensor x, at::Tensor weight, double factor, at::Tensor y) {\n"
            "  auto in = x.data_ptr<float>(), w = weight.data_ptr<float>(), out = y.data_ptr<float>();"
            + LOOP,
        },
    ],
}
FFI = {
    "spec": {"language": "cpp", "entry_point": "main.cpp::scale"},
    "sources": [
        {
            "path": "main.cpp",
            "content": "#include <cmath>\n#include <tvm/ffi/container/tensor.h>\n"
            "#include <tvm/ffi/function.h>\nusing tvm::ffi::TensorView;\n"
            "void f(TensorView x, TensorView weight, double factor, TensorView y) {\n"
            "  auto in = (const float*)x.data_ptr(), w = (const float*)weight.data_ptr();\n"
            "  auto out = (float*)y.data_ptr();" + LOOP + "TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, f);",
        }
    ],
}
QUICK = [
    "device=cpu",
    "evaluator.plan.max_s=0.2",
    "evaluator.plan.precision=0.2",
    "evaluator.compile_mode=",
    "problem.timed_workloads=2",
    "problem.checked_workloads=1",
]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"definition": "other"}, "its definition other was not found"),
        ({"spec": SOLUTION["spec"] | {"language": "basic"}}, "it is in basic, which is not supported"),
        ({"spec": SOLUTION["spec"] | {"language": "cuda"}}, "none of its files ends in .cpp"),
        ({**TORCH, "sources": TORCH["sources"][:1] + TORCH["sources"][2:]}, "no file has PYBIND11_MODULE"),
        (
            {"sources": [*SOLUTION["sources"], {"path": "more.py", "content": ""}]},
            "it has 2 files; a solution in Python must have one",
        ),
        ({"spec": {}}, "it is no solution"),
    ],
)
def test_a_solution_that_cannot_be_judged(change: dict[str, Any], said: str, sets: Path) -> None:
    write(sets / "solution.json", SOLUTION | change)
    with pytest.raises(UsageError, match=said):
        read_kernel(sets / "solution.json", "auto")


def test_a_solution_becomes_a_kernel(sets: Path) -> None:
    write(sets / "solution.json", SOLUTION)
    source = read_kernel(sets / "solution.json", "auto").source
    assert "rows = x.shape[0]" in source
    assert "y = torch.empty([rows, columns // 2], dtype=torch.float32, device=x.device)" in source
    write(
        sets / "solution.json", SOLUTION | {"spec": SOLUTION["spec"] | {"destination_passing_style": False}}
    )
    assert "return scale(x, weight, factor)" in read_kernel(sets / "solution.json", "auto").source


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "correct"),
        ({"factor)": "(factor if len(x) > 8 else 1))"}, "incorrect"),
    ],
)
def test_a_solution_is_judged(
    change: dict[str, str], status: str, sets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that is wrong on the smallest workload alone."""
    text = json.dumps(SOLUTION)
    for old, new in change.items():
        text = text.replace(old, new)
    (sets / "solution.json").write_text(text)
    call = ["problem=flashinfer/scale_rows_h32", f"kernel={sets / 'solution.json'}", "json=true"]
    main([*call, *QUICK, "thorough=false"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == status


@pytest.mark.slow
def test_headers_of_cutlass_are_in_the_folder_of_the_variable(
    sets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (sets / "clone" / "include" / "cutlass").mkdir(parents=True)
    (sets / "clone" / "include" / "cutlass" / "cutlass.h").write_text("#include <cmath>\n")
    monkeypatch.setenv("CUTLASS_DIR", str(sets / "clone"))
    change = TORCH | {"spec": TORCH["spec"] | {"languages": ["cutlass"]}}
    text = json.dumps(SOLUTION | change).replace("<cmath>", "<cutlass/cutlass.h>")
    (sets / "solution.json").write_text(text)
    call = ["problem=flashinfer/scale_rows_h32", f"kernel={sets / 'solution.json'}", "json=true"]
    main([*call, *QUICK, "thorough=false"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == "correct"


@pytest.mark.slow
def test_a_folder_of_solutions_is_scored(sets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In Python and C++, of one file and of several, with both bindings; and one that is wrong."""
    folder = sets / "solutions"
    for name, change in {"python": {}, "torch": TORCH, "ffi": FFI}.items():
        write(folder / f"{name}.json", SOLUTION | {"name": name} | change)
    wrong = json.dumps(SOLUTION | {"author": "another"}).replace("tanh", "sinh")
    (folder / "wrong.json").write_text(wrong)
    write(folder / "unknown.json", SOLUTION | {"definition": "unknown"})
    assert score.main([f"solutions={folder}", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "skipped: unknown.json: its definition unknown was not found" in out
    assert "4 solutions: correct 3, incorrect 1" in out
    rows = (folder / "traces/scaling/scale_rows_h32.jsonl").read_text().splitlines()
    traces = [json.loads(row) for row in rows]
    found = {(each["solution"], each["evaluation"]["status"]) for each in traces}
    right = {(name, "PASSED") for name in ("python", "torch", "ffi")}
    assert found == {*right, ("by hand", "INCORRECT_NUMERICAL")}
    authors = json.loads((folder / "solution_scores.json").read_text())["authors"]
    assert authors["a test"]["correct"]["value"] == 1
    assert 0 < authors["a test"]["SOL score"]["value"] < 1
    assert authors["another"]["SOL score"]["value"] == 0
    assert score.main([f"solutions={folder}", *QUICK]) == 0
    assert "1 of 4" not in capsys.readouterr().err


@pytest.mark.parametrize("problem", ["flashinfer/scale_rows_h32", "solexec/gather"])
def test_a_kernel_becomes_a_solution(problem: str, sets: Path) -> None:
    """Which read back is the kernel again."""
    opened = load_definition_problem(problem)
    source = opened.source + "\n\nclass ModelNew(Model):\n    pass\n"
    kernel = Kernel(source=source, language="triton")
    solution = solution_of(opened, kernel, name="a winner", description="It is fast.")
    assert solution is not None
    write(sets / "winner.json", solution)
    read = read_solution(sets / "winner.json")
    assert read.definition.problem == problem
    module = load_module(read.source, {})
    inputs = module.get_inputs()
    assert torch.equal(module.ModelNew()(*inputs), module.run(*inputs))


def timed(ms: float) -> Timing:
    return Timing(kernel_ms=ms, eager_ms=1.0, speedup=1 / ms, speedup_low=0.9 / ms, speedup_high=1.1 / ms)


def test_verdicts_become_traces(sets: Path) -> None:
    problem = load_definition_problem("flashinfer/scale_rows_h32", timed_workloads=2, checked_workloads=3)
    errors = Correctness(checked_calls=3, normwise_error=1e-7, eager_error=1e-7, largest_error=1e-6)
    other = "output 0 is (8, 16) torch.float64; the reference's is (8, 16) torch.float32"
    found = {
        160: Evaluation(status=Status.CORRECT, timing=timed(0.5), correctness=errors),
        8: Evaluation(status=Status.INCORRECT, log=other),
        16: Evaluation(status=Status.CORRECT, correctness=errors),
        24: Evaluation(status=Status.REJECTED, rule="work", log="a library does it"),
    }
    names = {case.sizes["rows"]: case.name for case in problem.cases}
    names |= {rows: f"rows={rows} factor=0.5" for rows in found}
    cases = tuple(
        CaseResult(name=names[rows], weight=float(rows in (8, 160)), held_out=False, evaluation=each)
        for rows, each in found.items()
    )
    whole = Evaluation(
        status=Status.INCORRECT, log=other, cases=cases, environment={"device": "H200", "torch": "2"}
    )
    definition = definition_of("flashinfer/scale_rows_h32")
    traces = {each["workload"]["axes"]["rows"]: each for each in traces_of("s", definition, problem, whole)}
    statuses = {rows: each["evaluation"]["status"] for rows, each in traces.items()}
    assert statuses == {160: "PASSED", 8: "INCORRECT_DTYPE", 24: "RUNTIME_ERROR"}
    passed = traces[160]["evaluation"]
    assert passed["performance"] == {
        "latency_ms": 0.5,
        "reference_latency_ms": 1.0,
        "speedup_factor": 2.0,
    }
    assert passed["correctness"]["max_absolute_error"] == 1e-6
    assert traces[8]["evaluation"]["correctness"] is None
    assert traces[24]["evaluation"]["log"] == "work: a library does it"
    held_out = CaseResult(name="rows=9", weight=0.0, held_out=True, evaluation=found[8])
    elsewhere = replace(whole, cases=(cases[0], cases[2], held_out))
    rejected = [each["evaluation"] for each in traces_of("s", definition, problem, elsewhere)]
    assert [each["status"] for each in rejected] == ["INCORRECT_DTYPE"] * 2
    assert rejected[0]["performance"] is None
    failed = Evaluation(status=Status.COMPILE_ERROR, log="no")
    assert len(list(traces_of("s", definition, problem, failed))) == len(problem.cases)


def test_the_sol_score_lies_between_eager_and_the_roofline() -> None:
    from evaluators.records.evaluation import Roofline

    floor = Roofline(bytes=1, operations=1, floor_ms=0.2, bound="memory")
    scores = {
        ms: Evaluation(status=Status.CORRECT, timing=timed(ms), roofline=floor).sol_score
        for ms in (1.0, 0.6, 0.2, 0.1)
    }
    assert scores == {1.0: 0.5, 0.6: pytest.approx(2 / 3), 0.2: 1.0, 0.1: 1.0}
    assert Evaluation(status=Status.CORRECT, timing=timed(1.0)).sol_score is None
    assert not math.isnan(scores[0.6] or 0)
