"""Problems of benchmarks are recognised by hashes and by their references."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from evaluators.records.problem import Problem
from search.harvest import benchmarks
from search.harvest.benchmarks import in_folder, main, shipped
from search.harvest.corpus import HarvestError
from tests.search.harvest.story import problem, reference

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (problem("relu"), "structure"),
        (
            Problem(name="file/mine", source=reference("relu").replace("torch.relu(x)", "x.relu_()")),
            "operators",
        ),
        (problem("erfc"), None),
        (problem("erfc", name="level3/LeNet5"), "name"),
        (problem("erfc", name="file/lenet5"), "name"),
    ],
    ids=["same model", "same operations", "another", "named alike", "named alike, by a user"],
)
def test_kernelbench_is_recognised_by_its_hashes(asked: Problem, why: str | None) -> None:
    assert shipped("kernelbench").why(asked, 0.7) == why


def test_only_hashes_ship() -> None:
    data = json.loads((ROOT / "search/harvest/kernelbench.json").read_text())
    assert data["references"] == 270
    hashes = [each for key in ("structures", "operators", "names") for each in data[key]]
    assert len(hashes) > 600
    assert all(re.fullmatch("[0-9a-f]{12}", each) for each in hashes)


def test_an_unknown_benchmark_is_named() -> None:
    with pytest.raises(HarvestError, match="available: kernelbench"):
        shipped("nope")


def test_similar_references_of_a_folder_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "level9").mkdir()
    lines = "\n".join(f"        x = torch.{op}(x)" for op in ("erfc", "exp2", "sinc", "sgn", "frac", "logit"))
    theirs = reference("erfc").replace("        return torch.erfc(x)", f"{lines}\n        return x")
    (tmp_path / "level9" / "7_Chain.py").write_text(theirs)
    (tmp_path / "notes.py").write_text("print('no reference')")
    found = in_folder(tmp_path)
    longer = Problem(name="file/mine", source=theirs.replace("return x", "return torch.digamma(x)"))
    assert found.why(longer, 0.7) == "near"
    assert found.why(longer, 0.99) is None
    assert found.why(problem("erfc"), 0.7) is None
    assert found.why(problem("erfc", name="chain"), 0.7) == "name"


def test_a_folder_without_references_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HarvestError, match="no Python file with a class Model"):
        in_folder(tmp_path)


def test_the_file_of_hashes_is_what_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1_Erfc.py").write_text(reference("erfc"))
    assert main([str(tmp_path), "a1b2c3"]) == 0
    (tmp_path / "mine.json").write_text(capsys.readouterr().out)
    monkeypatch.setattr(benchmarks, "FOLDER", tmp_path)
    assert shipped("mine").why(problem("erfc"), 0.7) == "structure"
    assert shipped("mine").why(problem("relu"), 0.7) is None
