"""Definitions of FlashInfer Trace and SOL-ExecBench as problems, and solutions as kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluators.app.kernel_file import read_kernel
from evaluators.base.usage_error import UsageError
from evaluators.evaluate.__main__ import main
from evaluators.reference.loading import BadReference
from evaluators.suites.definitions import Definitions, load_definition_problem, source_of
from evaluators.suites.suite import SuiteMissing

SCALE: dict[str, Any] = {
    "name": "scale_rows_h32",
    "axes": {
        "rows": {"type": "var"},
        "columns": {"type": "const", "value": 32},
        "half": {"type": "expr", "expression": "columns // 2"},
    },
    "inputs": {
        "x": {"shape": ["rows", "columns"], "dtype": "float32"},
        "weight": {"shape": ["half"], "dtype": "float32"},
        "factor": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "half"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(x, weight, factor):\n"
    "    return torch.tanh(x[:, ::2]) * weight * factor",
}
GATHER: dict[str, Any] = {
    "name": "gather_e8",
    "custom_inputs_entrypoint": "make",
    "axes": {"tokens": {"type": "var"}, "experts": {"type": "const", "value": 8}},
    "inputs": {
        "table": {"shape": ["experts", "experts"], "dtype": "bfloat16"},
        "index": {"shape": ["tokens"], "dtype": "int64"},
    },
    "outputs": {"rows": {"shape": ["tokens", "experts"], "dtype": "bfloat16"}},
    "reference": "import torch\n\ndef make(values, device):\n"
    "    return {'index': torch.randint(values['experts'], (values['tokens'],), device=device)}\n\n"
    "def run(table, index):\n    return table[index]",
}
SOLUTION: dict[str, Any] = {
    "name": "by hand",
    "definition": "scale_rows_h32",
    "author": "a test",
    "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::scale"},
    "sources": [
        {
            "path": "main.py",
            "content": "import torch\n\n\ndef scale(x, weight, factor, y):\n"
            "    y.copy_(torch.tanh(x[:, ::2]) * (weight * factor))\n",
        }
    ],
}


def workloads(name: str, count: int) -> list[dict[str, Any]]:
    """With the sizes 8, 16, …, and in FlashInfer's form, as the workload of a trace without a solution."""
    kinds = {"weight": {"type": "random"}, "factor": {"type": "scalar", "value": 0.5}}
    inputs = kinds if name == "scale_rows_h32" else {"index": {"type": "custom"}}
    axis = "rows" if name == "scale_rows_h32" else "tokens"
    return [{"uuid": str(n), "axes": {axis: 8 * n}, "inputs": inputs} for n in range(1, count + 1)]


def write(path: Path, *rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows))


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of each suite."""
    write(tmp_path / "fib/definitions/scaling/scale_rows_h32.json", SCALE)
    rows = [{"definition": SCALE["name"], "workload": each} for each in workloads(SCALE["name"], 20)]
    write(tmp_path / "fib/workloads/scaling/scale_rows_h32.jsonl", *rows)
    write(tmp_path / "sol/L1/gather/definition.json", GATHER)
    write(tmp_path / "sol/L1/gather/workload.jsonl", *workloads(GATHER["name"], 1))
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "fib"))
    monkeypatch.setenv("SOL_EXECBENCH_ROOT", str(tmp_path / "sol"))
    return tmp_path


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


def test_workloads_from_files_are_left_out() -> None:
    stored = {"x": {"type": "safetensors", "path": "a", "tensor_key": "x"}}
    rows = [{"axes": {"rows": 8}, "inputs": stored}]
    with pytest.raises(BadReference, match="all 1 workloads read tensors from files"):
        source_of(SCALE, rows, timed_workloads=4, checked_workloads=8)
    assert "rows = 16" in source_of(
        SCALE, [*rows, workloads(SCALE["name"], 2)[1]], timed_workloads=4, checked_workloads=8
    )


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, sets: Path) -> None:
    with pytest.raises(BadReference, match=r"no definition scale_rows_h3; did you mean scale_rows_h32\?"):
        load_definition_problem("flashinfer/scale_rows_h3")
    monkeypatch.delenv("FIB_DATASET_PATH")
    with pytest.raises(SuiteMissing, match="set FIB_DATASET_PATH to the folder"):
        load_definition_problem("flashinfer/scale_rows_h32")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"definition": "other"}, "its definition other was not found"),
        (
            {"spec": SOLUTION["spec"] | {"language": "cuda"}},
            "it is in cuda; only solutions in one Python file",
        ),
        ({"sources": SOLUTION["sources"] * 2}, "it has 2 files; only solutions in one Python file"),
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
    ("factor", "status"), [("factor", "correct"), ("(factor if len(x) > 8 else 1)", "incorrect")]
)
def test_a_solution_is_judged(
    factor: str, status: str, sets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that is wrong on the smallest workload alone."""
    text = json.dumps(SOLUTION).replace("weight * factor", f"weight * {factor}")
    (sets / "solution.json").write_text(text)
    call = [
        "problem=flashinfer/scale_rows_h32",
        f"kernel={sets / 'solution.json'}",
        "device=cpu",
        "json=true",
    ]
    quick = [
        "evaluator.plan.max_s=0.2",
        "evaluator.plan.precision=0.2",
        "problem.timed_workloads=2",
        "problem.checked_workloads=1",
    ]
    main([*call, *quick, "evaluator.compile_mode=", "thorough=false"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == status
