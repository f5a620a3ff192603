"""Comparing and harvesting from Python gives the same as the commands."""

from __future__ import annotations

import csv
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

import ideatree
from search.compare import __main__ as command
from search.harvest.corpus import HarvestError

LANDSCAPE: dict[str, Any] = {
    "strategies": ["idea_branching"],
    "arms": {"wide": ["strategy=idea_branching", "strategy.keep=8"]},
    "proposer": "landscape",
    "branch": 2,
    "budget": {"evaluations": 24},
    "seeds": 3,
}
CALL = [
    *("problem=landscape", "proposer=landscape", "strategies=[idea_branching]", "branch=2", "seeds=3"),
    *('arms.wide=["strategy=idea_branching","strategy.keep=8"]', "budget.evaluations=24"),
]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> ideatree.Comparison:
    folder = tmp_path_factory.mktemp("compare") / "compared"
    return ideatree.compare("landscape", folder=folder, show=False, **LANDSCAPE)


@pytest.mark.slow
def test_compare_equals_the_command(compared: ideatree.Comparison, tmp_path: Path) -> None:
    assert command.main([*CALL, f"hydra.run.dir={tmp_path}"]) == 0
    assert (compared.folder / "curves.csv").read_text() == (tmp_path / "curves.csv").read_text()
    ours, its = (json.loads((each / "comparison.json").read_text()) for each in (compared.folder, tmp_path))
    words, its_words = (set(shlex.split(each.pop("command"))) for each in (ours, its))
    overrides = {each.pop("overrides", None) is not None for each in (ours, its)}
    assert ours == its
    assert overrides == {True}
    assert {each for each in words ^ its_words if not each.startswith("arms.")} == set(), "the order is free"
    assert ideatree.open_comparison(tmp_path).frames().searches.equals(compared.frames().searches)


@pytest.mark.slow
def test_frames_match_the_files(compared: ideatree.Comparison) -> None:
    frames = ideatree.open_comparison(compared.folder).frames()
    finals = {(each.problem, each.arm, each.seed): each.final for each in compared.searches}
    assert dict(frames.searches["final"]) == finals
    assert set(frames.searches["evaluations"]) == {24}
    assert len(frames.points) == sum(len(each.points) for each in compared.searches)
    last = frames.points.groupby(["problem", "arm", "seed"])["evaluations"].max()
    assert last.equals(frames.searches["evaluations"])
    body = json.loads((compared.folder / "comparison.json").read_text())
    (known,), (told,) = body["differences"], frames.differences.reset_index().to_dict("records")
    assert (told["first"], told["second"], told["is_real"]) == ("idea_branching", "wide", known["is_real"])
    assert (told["ratio"], told["ratio_low"]) == (known["ratio"]["value"], known["ratio"]["low"])
    assert told["sentence"].startswith(
        ("idea_branching and wide do not", "idea_branching finds", "wide finds")
    )
    assert list(frames.arms["speedup"]) == [each["value"] for each in body["arms"].values()]
    rows = list(csv.DictReader((compared.folder / "curves.csv").open()))
    assert [str(each) for each in frames.curves["median"]] == [row["median"] for row in rows]
    assert frames.unit == body["unit"] == "evaluations"


@pytest.mark.slow
def test_a_comparison_resumes(compared: ideatree.Comparison) -> None:
    lines = (compared.folder / "searches.jsonl").read_text().splitlines()
    (compared.folder / "searches.jsonl").write_text("\n".join(lines[:4]) + "\n")
    open_one = ideatree.open_comparison(compared.folder)
    assert len(open_one.searches) == 4
    again = ideatree.compare("landscape", folder=compared.folder, show=False, **LANDSCAPE)
    assert (compared.folder / "searches.jsonl").read_text().splitlines()[:4] == lines[:4]
    assert {each.to_json() for each in again.searches} == set(lines)


@pytest.mark.slow
def test_a_wrong_comparison_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ideatree.UsageError, match="needs a budget"):
        ideatree.compare("landscape", folder=tmp_path, proposer="landscape", strategies=["beam", "puct"])
    with pytest.raises(ideatree.UsageError, match="did you mean seeds"):
        ideatree.compare("landscape", folder=tmp_path, strategies=["beam", "puct"], seds=3)
    with pytest.raises(OSError):
        ideatree.open_comparison(tmp_path / "nowhere")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_harvest_equals_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("datasketch")
    run, out = ideatree.open_run("conv2d_h200"), tmp_path / "sft"
    asked: dict[str, Any] = {"runs": [run.folder], "libraries": [], "license": "mit"}
    assert ideatree.harvest("sft", out=out, options={"min_speedup": 3}, **asked) == out
    said = capsys.readouterr().out
    lines = (out / "jsonl" / "train.jsonl").read_text().splitlines()
    assert f"rows {len(lines)} (train {len(lines)}" in said
    rows = [json.loads(line) for line in lines]
    assert all(row["kernel_speedup_low"] > 3 for row in rows)
    assert {row["kernel_license"] for row in rows} == {"mit"}
    with pytest.raises(ideatree.UsageError, match="exists already"):
        ideatree.harvest("sft", out=out, **asked)
    with pytest.raises(HarvestError, match="nothing to write"):
        ideatree.harvest("sft", out=tmp_path / "no", options={"min_speedup": 1000}, show=False, **asked)
    assert capsys.readouterr().out == ""
