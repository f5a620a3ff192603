"""The frames say what the run's state and the console say."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from search.observers import wording
from search.observers.run_progress import Progress
from search.recordings.verdicts import RECORDINGS
from search.records.journal import Journal, JournalError, replay
from search.records.run_state import RunState, rebuild
from search.report.gains import gains_by
from search.report.run_frames import RunFrames, load_run
from tests.search.observers.conftest import scripts
from tests.search.report.synthetic import SyntheticRun

STAGES = ("killed", "nothing correct", "stopped before it did anything", "two models")
SOFTMAX = Path(__file__).parents[1] / "recordings" / "softmax_cpu"


@pytest.fixture(scope="module", params=["synthetic", "conv2d_h200", "softmax_cpu"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    if request.param == "synthetic":
        folder = tmp_path_factory.mktemp("run")
        SyntheticRun(folder, rounds=4, ideas=3, branch=4, lines=5)
        return load_run(folder)
    return load_run(SOFTMAX if request.param == "softmax_cpu" else RECORDINGS / request.param)


@pytest.fixture
def state(run: RunFrames) -> RunState:
    return rebuild(replay(run.folder / "journal.jsonl"))


def test_every_idea_and_variant_is_there(run: RunFrames, state: RunState) -> None:
    assert set(run.ideas.index) == set(state.tree.ideas)
    assert set(run.variants.index) == set(state.tree.variants)
    for outcome in state.tree.history():
        row = run.ideas.loc[outcome.idea.id]
        assert row["text"] == outcome.idea.text
        assert (row["best"] or None) == (outcome.best and outcome.best.id)
        assert row["variants"] == len(outcome.variants)


def test_statuses_are_counted_as_the_console_counts_them(run: RunFrames, state: RunState) -> None:
    own = run.variants[~run.variants["reused"].astype(bool)]
    assert Counter(own["status"]) == {status.value: n for status, n in state.statuses.items()}
    assert len(own) == run.rounds["evaluations"].sum() == state.evaluations


def test_the_winner_and_its_path(run: RunFrames, state: RunState) -> None:
    best = state.tree.best()[0]
    lineage = tuple(each.id for each in state.tree.lineage(best))
    assert run.variants.at[best.id, "lineage"] == lineage
    assert set(run.variants.index[run.variants["on_path"]]) == set(lineage)
    assert best.evaluation is not None and best.evaluation.timing is not None
    assert run.variants.at[best.id, "kernel_ms"] == best.evaluation.timing.kernel_ms
    assert run.variants.at[best.id, "speedup_low"] == best.evaluation.timing.speedup_low
    assert run.variants.at[best.id, "new_best"]


def test_ideas_tell_where_they_come_from(run: RunFrames, state: RunState) -> None:
    for id, row in run.ideas.iterrows():
        above = run.ideas.loc[row["parent_idea"], "lineage"] if row["parent_idea"] else ()
        assert row["lineage"] == (*above, id)
        assert row["depth"] == len(row["lineage"])
        seed = state.tree.variants.get(row["parent"])
        assert row["parent_idea"] == (seed.idea if seed else "")
        assert row["start"] == run.ideas.loc[row["lineage"][0], "parent"]
    assert run.ideas["depth"].max() > 1, "no idea here builds on another"


def test_rounds_are_those_of_the_trajectory(run: RunFrames) -> None:
    progress = Progress(past=replay(run.folder / "journal.jsonl"))
    rows = wording.trajectory(progress)
    assert [str(each) for each in run.rounds.index] == [row[0] for row in rows]
    assert [wording.times(each) for each in run.rounds["speedup"]] == [row[5] for row in rows]
    assert run.rounds["device_s"].sum() <= progress.device_s + 1e-9


def test_what_was_paid_adds_up(run: RunFrames, state: RunState) -> None:
    assert len(run.calls) == state.spent.calls
    assert math.isclose(run.calls["dollars"].sum(), float(state.spent.dollars), abs_tol=1e-9)
    assert run.rounds["tokens"].iloc[-1] == state.spent.tokens
    assert gains_by(run, "model")["dollars"].sum() == pytest.approx(float(state.spent.dollars))


def test_every_variant_is_in_the_row_of_its_language(run: RunFrames) -> None:
    found = gains_by(run, "language")
    assert found["variants"].to_dict() == run.variants["language"].value_counts().to_dict()
    assert found["correct"].sum() == (run.variants["status"] == "correct").sum()
    for language, row in found.iterrows():
        own = run.variants[run.variants["language"] == language]
        assert row["ideas"] == own["idea"].nunique()
        assert row["best_speedup"] == pytest.approx(own["speedup"].max(), nan_ok=True)


def test_each_kernel_of_a_model_has_the_call_that_wrote_it(run: RunFrames) -> None:
    for id, row in run.variants.iterrows():
        assert row["calls"], f"nobody wrote {id}"
        about = {run.calls.at[call, "about"] for call in row["calls"]}
        assert about == {f"variant {row['repairs']}" if row["repairs"] else f"idea {row['idea']}"}
    for _, idea in run.ideas.iterrows():
        assert "ideas" in {run.calls.at[call, "purpose"] for call in idea["calls"]}


@pytest.mark.parametrize("name", STAGES)
def test_a_run_at_any_stage_has_frames(name: str, tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(each for each in scripts()[name] if type(each).__name__ != "VariantStage")
    run = load_run(tmp_path)
    assert len(run.variants) == len(run.progress.state.tree.variants)
    assert len(gains_by(run, "category")) == run.ideas["category"].nunique()


def test_a_run_that_has_not_started_is_reported(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(JournalError, match="has not started"):
        load_run(tmp_path)
