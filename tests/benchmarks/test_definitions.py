"""The comparison with the evaluators of SOL-ExecBench and FlashInfer-Bench, with stubs of their clones."""

from __future__ import annotations

import ast
import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.definition_evaluators import flashinfer_jobs, solexec_jobs, summed_up
from benchmarks.definition_sets import Asked, lay_out
from benchmarks.definition_solutions import FAULTS, LIBRARY, from_library
from benchmarks.definitions import OPTIONS, differences, main, met, options_of, table
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Status
from kernel_library.catalogue.library import FolderLibrary
from tests.evaluators.suites.definitions.samples import GATHER, SCALE, SOLUTION, workloads, write

GEMM = {
    "name": "gemm_n4096_k4096",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 8}},
    "inputs": {name: {"shape": [axis, "N"], "dtype": "float32"} for name, axis in (("A", "M"), ("B", "N"))},
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(A, B):\n    return A @ B.T",
}
EVALUATOR = """
import json, sys
from pathlib import Path

folder = Path(sys.argv[1])
solution = json.loads((folder / "solution.json").read_text())
status = "INCORRECT_NUMERICAL" if solution["author"] == "wrong" else "PASSED"
if solution["author"] == "compile":
    sys.exit("ImportError: no compiler")
times = {"latency_ms": 1.0, "reference_latency_ms": 2.0, "speedup_factor": 2.0}
evaluation = {"status": status, "performance": times, "correctness": {"max_absolute_error": 3.0}, "log": ""}
with open(sys.argv[3], "w") as file:
    for line in (folder / "workload.jsonl").read_text().splitlines():
        file.write(json.dumps({"solution": solution["name"], "evaluation": evaluation}) + "\\n")
"""


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    rows = [{"uuid": str(m), "axes": {"M": m}, "inputs": {}} for m in (4, 64, 16, 8)]
    write(tmp_path / "fib/definitions/gemm/gemm_n4096_k4096.json", GEMM)
    write(tmp_path / "fib/workloads/gemm/gemm_n4096_k4096.jsonl", *({"workload": row} for row in rows))
    for definition in (SCALE, GATHER):
        folder = tmp_path / "sol/L1" / definition["name"]
        write(folder / "definition.json", definition)
        write(folder / "workload.jsonl", *workloads(definition["name"], 2))
    # A solution next to a definition is for it, and its source may be in a file.
    spec = SOLUTION["spec"] | {"language": "python"}
    write(folder / "solution.json", SOLUTION | {"spec": spec, "sources": [{"path": "main.py"}]})
    (folder / "main.py").write_text("def scale(table, index, rows):\n    rows.copy_(table[index])\n")
    (tmp_path / "clone/src/sol_execbench/cli").mkdir(parents=True)
    (tmp_path / "clone/src/sol_execbench/cli/main.py").write_text(EVALUATOR)
    given = {"solexec": str(tmp_path / "sol"), "flashinfer": str(tmp_path / "fib")}
    return OPTIONS | given | {"device": "cpu", "workloads": "2", "out": str(tmp_path / "out")}


def test_definitions_are_copied_with_solutions(folders: dict[str, str], tmp_path: Path) -> None:
    asked = lay_out(tmp_path / "sets", folders)
    assert [(each.problem, each.author) for each in asked] == [
        ("flashinfer/gemm_n4096_k4096", "eager"),
        ("flashinfer/gemm_n4096_k4096", "compile"),
        ("flashinfer/gemm_n4096_k4096", "wrong"),
        ("solexec/gather_e8", "a test (theirs)"),
        ("solexec/gather_e8", "eager"),
        ("solexec/gather_e8", "compile"),
        ("solexec/scale_rows_h32", "eager"),
        ("solexec/scale_rows_h32", "compile"),
    ]
    assert [row["axes"]["M"] for row in asked[0].workloads] == [64, 4]
    assert asked[3].solution["spec"]["languages"] == ["pytorch"]
    assert "table[index]" in json.loads(asked[3].file.read_text())["sources"][0]["content"]
    of_solexec = list(solexec_jobs(asked, tmp_path / "jobs/solexec"))
    assert [each for job in of_solexec for each in job.asked] == asked
    # FlashInfer Trace has neither axes that are expressions nor inputs by the definition's own function.
    (job,) = flashinfer_jobs(asked, tmp_path / "jobs/flashinfer")
    assert [each.author for each in job.asked] == ["eager", "compile", "wrong"]
    there = json.loads((job.folder / "solutions/gemm_n4096_k4096_eager.json").read_text())
    assert there["spec"]["language"] == "python"


def test_a_missing_page_table_is_drawn(folders: dict[str, str], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    name = {"type": "safetensors", "path": "nowhere.safetensors", "tensor_key": "kv_indptr"}
    axes = {"M": 1, "num_pages": 9, "len_indptr": 3, "num_kv_indices": 6}
    row = {"uuid": "7", "axes": axes, "inputs": {"kv_indptr": name}}
    write(tmp_path / "fib/workloads/gemm/gemm_n4096_k4096.jsonl", row)
    first = lay_out(tmp_path / "sets", folders)[0]
    tensors = load_file(tmp_path / "sets" / first.workloads[0]["inputs"]["kv_indptr"]["path"])
    assert tensors["kv_indptr"].tolist() == [0, 3, 6]
    assert len(set(tensors["kv_indices"].tolist())) == 6


@pytest.mark.slow
def test_verdicts_of_their_evaluator_are_saved_and_shown(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = folders | {"only": "solexec", "sol_execbench": str(tmp_path / "clone"), "names": "gemm"}
    assert main([f"{key}={value}" for key, value in given.items()]) == 0
    shown = capsys.readouterr().out
    assert "| flashinfer/gemm_n4096_k4096 | eager | - | PASSED 2.00x (" in shown
    assert "| flashinfer/gemm_n4096_k4096 | wrong | - | INCORRECT_NUMERICAL (" in shown
    assert "gemm_n4096_k4096_compile: solexec has no verdict: ImportError: no compiler" in shown
    with (tmp_path / "out/definitions.csv").open() as file:
        rows = {row["author"]: row for row in csv.DictReader(file)}
    assert rows["wrong"]["solexec_words"] == "largest error 3.0"
    (tmp_path / "clone/src/sol_execbench/cli/main.py").write_text("raise SystemExit('error: not again')")
    main([f"{key}={value}" for key, value in given.items()])
    shown = capsys.readouterr().out
    assert "| eager | - | PASSED 2.00x (" in shown  # saved
    assert "compile: solexec has no verdict: error: not again" in shown


def test_what_traces_say_together() -> None:
    passed = {"status": "PASSED", "performance": {"speedup_factor": 3.0}}
    failed = {"status": "RUNTIME_ERROR", "log": "Traceback\nKeyError: 'x'\n"}
    assert summed_up([passed, passed], 2, "").speedup == 3.0
    assert summed_up([passed, failed], 2, "").words == "KeyError: 'x'"
    assert summed_up([passed], 2, "first\nsome Error\nlast").status == ""
    assert summed_up([], 2, "Compilation failed\nx.cu: error: y\n1 of 2").words == "x.cu: error: y"


def test_differences_are_listed(folders: dict[str, str], tmp_path: Path) -> None:
    asked = [each for each in lay_out(tmp_path / "sets", folders) if each.author in ("eager", "wrong")]
    passed = summed_up([{"status": "PASSED", "performance": {"speedup_factor": 1.0}}], 1, "")

    def with_ours(each: Asked, status: Status) -> Asked:
        return replace(each, ours=Evaluation(status=status, log="nan"), our_words="nan", solexec=passed)

    right = [with_ours(e, Status.INCORRECT if e.author == "wrong" else Status.CORRECT) for e in asked]
    assert met(right)
    assert not met([with_ours(each, Status.CORRECT) for each in asked])
    assert not met(asked)
    says = FAULTS["flashinfer/gemm_n4096_k4096"].says
    (line,) = differences(right)
    assert f"gemm_n4096_k4096_wrong: {says}: ours incorrect nan; solexec PASSED" in line
    assert len(table(right)) == 2 + len(right)


def test_written_solutions_have_the_function_that_is_called() -> None:
    known = FolderLibrary("none").entries()
    codes = [each.code for each in FAULTS.values()]
    for problem in LIBRARY:
        found = from_library(known, problem, "9.0")
        assert found is not None, problem
        codes.append(found[1])
    for code in codes:
        assert "run" in {each.name for each in ast.parse(code).body if isinstance(each, ast.FunctionDef)}
    assert len({each.says for each in FAULTS.values()}) == len(FAULTS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["only=ours,theirs", "solexec=x"], "only=theirs; known are ours, flashinfer, solexec"),
        (["workloads=0", "solexec=x"], "workloads=0; it must be a whole number above 0"),
        ([], "there is nothing to judge; give solexec=FOLDER or flashinfer=FOLDER"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        options_of(arguments)
