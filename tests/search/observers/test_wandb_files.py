"""What W&B keeps of a search without a network is read back: it says what the run's frames say."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ideatree
from search.observers.wandb import IDEAS, VARIANTS
from search.report.run_frames import RunFrames
from tests.search.observers.wandb_files import OfflineRun, away_from_home, offline_runs

pytestmark = pytest.mark.slow

ROUNDS, ALL_ROUNDS = 3, 7


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ideatree.Run]:
    """A search that stopped after three rounds and went on to the last; a recording gives the verdicts."""
    home = tmp_path_factory.mktemp("home")
    folder = tmp_path_factory.mktemp("runs") / "searched"
    with pytest.MonkeyPatch.context() as patch:
        away_from_home(patch, home)
        ideatree.search(
            "level1/conv2d",
            proposer="replay",
            replay={"run": "conv2d_h200", "evaluations": True},
            rounds=ROUNDS,
            wandb={"mode": "offline", "group": "of a test", "job_type": "an arm", "tags": ["first"]},
            folder=folder,
            show=False,
        )
        time.sleep(1.1)  # W&B names folders by the second
        yield ideatree.resume(folder, rounds=ALL_ROUNDS, show=False)


@pytest.fixture(scope="module")
def kept(searched: ideatree.Run) -> list[OfflineRun]:
    return offline_runs(searched.folder)


@pytest.fixture(scope="module")
def frames(searched: ideatree.Run) -> RunFrames:
    return searched.frames()


def told(value: Any) -> Any:
    """A value of a frame as a table of W&B has it."""
    if isinstance(value, tuple):
        return " > ".join(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value.item() if hasattr(value, "item") else value


def rows(frame: pd.DataFrame, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    records = frame.reset_index().to_dict("records")
    return [{name: told(row[name]) for name in columns} for row in records]


def test_a_resumed_run_continues_the_same_wandb_run(kept: list[OfflineRun]) -> None:
    first, second = kept
    assert first.run.run_id == second.run.run_id
    for each in kept:
        place = (each.run.project, each.run.run_group, each.run.job_type, tuple(each.run.tags))
        assert place == ("ideatree", "of a test", "an arm", ("first",))
        assert each.config["run"]["problem"] == "level1/conv2d"
    assert {row["round"] for row in first.table("ideas")} == set(range(1, ROUNDS + 1))
    before = [row for row in first.history if "best_ms" in row]
    again = second.history[: len(before)]
    assert [row["best_ms"] for row in again] == [row["best_ms"] for row in before], "it has the past, too"


def test_every_idea_is_there_with_its_lineage(kept: list[OfflineRun], frames: RunFrames) -> None:
    ideas = kept[-1].table("ideas")
    assert ideas == rows(frames.ideas, IDEAS)
    lineages = {row["id"]: row["lineage"].split(" > ") for row in ideas}
    assert max(map(len, lineages.values())) >= 4
    for row in ideas:
        *above, own = lineages[row["id"]]
        assert own == row["id"]
        assert above == lineages.get(row["parent_idea"], [])


def test_every_variant_is_there(kept: list[OfflineRun], frames: RunFrames) -> None:
    assert kept[-1].table("variants") == rows(frames.variants, VARIANTS)
    assert len(frames.variants) == 42


def test_the_trajectory_is_that_of_the_rounds(kept: list[OfflineRun], frames: RunFrames) -> None:
    history = [row for row in kept[-1].history if "evaluations_so_far" in row]
    steps = [row["_step"] for row in history]
    assert steps == [row["evaluations_so_far"] for row in history] == sorted(set(steps))
    assert steps[-1] == len(steps) == frames.rounds["evaluations"].sum()
    best = [row["best_speedup"] for row in history]
    assert all(one <= later for one, later in itertools.pairwise(best)), "this run ranks by the median"
    closed = [row for row in history if "round" in row]
    assert [row["best_ms"] for row in closed] == list(frames.rounds["kernel_ms"])
    assert [row["gpu_s"] for row in closed] == pytest.approx(list(frames.rounds["device_s"]))
    (by,) = [each.step_metric for each in kept[-1].of_kind["metric"] if each.glob_name == "best_*"]
    assert by == "evaluations_so_far"


def test_the_best_kernel_is_an_artifact(kept: list[OfflineRun], searched: ideatree.Run) -> None:
    (artifact,) = [each for each in kept[-1].of_kind["artifact"] if each.type == "kernel"]
    best = searched.best
    assert best is not None
    (entry,) = artifact.manifest.contents
    assert entry.path == "best.py"
    assert Path(entry.local_path).read_text() == best.kernel.source
    metadata = json.loads(artifact.metadata)
    assert metadata["best_variant"] == metadata["variant"]["id"] == best.id
    assert metadata["variant"]["language"] == best.kernel.language
    texts = {idea.id: idea.text for idea in searched.ideas}
    assert metadata["ideas"] == [texts[each.idea] for each in searched.lineage(best)]


def test_cost_and_winner_are_in_the_summary(kept: list[OfflineRun], searched: ideatree.Run) -> None:
    summary = json.loads((searched.folder / "summary.json").read_text())
    there = kept[-1].summary
    assert there["evaluations"] == summary["evaluations"]
    assert there["gpu_s"] == pytest.approx(summary["cost"]["gpu_s"])
    assert there["best_variant"] == summary["best"]["variant"]
    assert there["confirmed_ms"] == summary["best"]["kernel_ms"]


def test_the_report_is_a_file_of_the_run(kept: list[OfflineRun], searched: ideatree.Run) -> None:
    copy = kept[-1].files / "report.html"
    assert not copy.is_symlink()
    assert copy.read_bytes() == (searched.folder / "report.html").read_bytes()
    assert "report.html" in {file.path for files in kept[-1].of_kind["files"] for file in files.files}
