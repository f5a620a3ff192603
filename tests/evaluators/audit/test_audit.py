"""The audit of a suite: which references can judge, the stored results, the output."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.audit import __main__ as audit
from evaluators.baseline import __main__ as baseline
from evaluators.device.child_processes import UnfitProblem
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Problem
from evaluators.records.reference_audit import ReferenceAudit
from evaluators.reference.judging_power import audit as audit_reference
from evaluators.scheduler.pool import Pool
from evaluators.suites.kernelbench import ROOT, _of_clone
from tests.evaluators.suites.clone import SOURCE, make_clone


def audited(expression: str, **rules: str) -> ReferenceAudit:
    return audit_reference(Problem(name="x", source=SOURCE.format(expression=expression), **rules))


@pytest.mark.slow
def test_a_reference_that_judges_has_its_figures() -> None:
    found = audited("torch.softmax(x, -1)")
    assert found.judges
    assert (found.in_float64, found.draws_numbers, found.changes_inputs) == (True, False, False)
    assert (found.input_bytes, found.output_bytes, found.weight_bytes) == (16 * 64 * 4, 16 * 64 * 4, 0)
    assert 0 < found.eager_error < 1e-6
    assert found.tolerance is not None
    assert 1e-3 < found.tolerance < 1
    assert {"shifted", "small"} <= {*found.distributions}
    assert set(found.seconds) == {"reference", "distributions", "lazy answers"}
    # values of about 1/64: the flat 1e-2 takes what is as near to 0
    assert "zeros" not in found.fooled("kernelbench_v02")
    assert found.fooled("kernelbench")
    assert ReferenceAudit.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "says"),
    [("x * 0", "zeros"), ("x[:1].expand(16, 64) * 0 + 1", "the outputs for other inputs")],
)
def test_a_reference_that_cannot_judge_says_what_passes(expression: str, says: str) -> None:
    found = audited(expression)
    assert not found.judges
    assert says in [each.says for each in found.lazy if each.passes]


@pytest.mark.slow
def test_a_suite_is_audited_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ROOT, str(make_clone(tmp_path / "clone")))
    out = tmp_path / "out"
    call = ["suite=kernelbench/level1", "only=[2,Softmax*,23]", "device=cpu", f"out={out}"]
    assert audit.main(call) == 2
    assert "has no problem Softmax*" in capsys.readouterr().err
    call[1] = "only=[2,23]"
    assert audit.main(call) == 0
    said = capsys.readouterr().out
    assert "kernelbench/level1/2_Zeros: cannot judge: zeros pass" in said
    assert "kernelbench/level1/23_Softmax: judges" in said
    assert "2 problems: 1 can judge, 1 cannot" in said
    excluded = json.loads((out / "kernelbench_level1_excluded.json").read_text())
    assert list(excluded) == ["kernelbench/level1/2_Zeros"]
    rows = list(csv.DictReader((out / "kernelbench_level1.csv").open()))
    assert [row["problem"].rpartition("/")[2] for row in rows] == ["2_Zeros", "23_Softmax"]
    assert rows[0]["cannot judge"].startswith("zeros pass")
    assert rows[1]["cannot judge"] == ""
    assert 0 < float(rows[1]["eager error"]) < float(rows[1]["lazy error"])
    kept = (out / "kernelbench_level1.jsonl").read_text()
    assert kept.count("\n") == 2
    monkeypatch.setattr("evaluators.scheduler.pool.Pool.audit", None)  # nothing is audited again
    assert audit.main(call) == 0
    assert capsys.readouterr().out == said
    assert (out / "kernelbench_level1.jsonl").read_text() == kept
    assert audit.main([*call, "problem.tolerance=nothing"]) == 2
    assert "problem.tolerance is 'nothing'" in capsys.readouterr().err


def test_without_a_clone_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ROOT, str(tmp_path))
    assert audit.main(["suite=kernelbench/level2", f"out={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert "is not a clone of KernelBench" in said
    assert said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("main", [audit.main, baseline.main])
def test_a_bad_reference_stops_none_of_the_others(
    main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does one that this machine is too small for, which is nowhere listed as unable to judge."""
    level1 = make_clone(tmp_path / "clone") / "KernelBench" / "level1"
    (level1 / "1_Relu.py").write_text("import torch\n")
    (level1 / "4_Latin.py").write_bytes("# Länge".encode("latin-1"))
    monkeypatch.setenv(ROOT, str(tmp_path / "clone"))
    _of_clone.cache_clear()
    judges = ReferenceAudit(problem="x", unfit="zeros pass")
    steady = Evaluation(status=Status.CORRECT)

    async def audited(self: object, problem: Problem) -> ReferenceAudit:
        if "2_Zeros" in problem.name:
            raise UnfitProblem("the reference cannot be judged here: too large")
        return replace(judges, problem=problem.name)

    async def evaluated(self: object, problem: Problem, kernel: object, **_: object) -> Evaluation:
        return steady

    monkeypatch.setattr(Pool, "audit", audited)
    monkeypatch.setattr(Pool, "evaluate", evaluated)
    out = tmp_path / "out"
    assert main(["suite=kernelbench/level1", "device=cpu", f"out={out}"]) == 1
    said = capsys.readouterr().out
    assert "kernelbench/level1/1_Relu: cannot be opened: kernelbench/level1/1_Relu defines no Model" in said
    assert "kernelbench/level1/4_Latin: cannot be opened: the reference " in said
    assert "4_Latin.py cannot be read: it is not text in utf-8" in said
    if main is audit.main:
        assert "2_Zeros: could not be audited: the reference cannot be judged here: too large" in said
        excluded = json.loads((out / "kernelbench_level1_excluded.json").read_text())
        assert list(excluded) == ["kernelbench/level1/23_Softmax"]
        assert len(list(csv.DictReader((out / "kernelbench_level1.csv").open()))) == 1
    else:
        assert "2 problems: 0 measured" in said
    _of_clone.cache_clear()
