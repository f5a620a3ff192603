"""Several runs at once as data frames."""

from __future__ import annotations

from pathlib import Path

import pytest

import ideatree
from evaluators.base.usage_error import UsageError
from search.pack.__main__ import main as pack

pytest.importorskip("pandas")
RECORDING = "conv2d_h200"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recording as a packed run, next to other files."""
    folder = tmp_path_factory.mktemp("runs")
    place = ideatree.open_run(RECORDING).folder
    assert pack([f"run={place}", f"out={folder}/packed.tar.xz"]) == 0
    (folder / "README.md").write_text("about")
    (folder / "empty").mkdir()
    return folder


def test_frames_of_several_runs_are_one_below_the_other(runs: Path) -> None:
    run = ideatree.open_run(RECORDING).frames()
    corpus = ideatree.open_corpus([RECORDING, runs / "packed.tar.xz"])
    assert list(corpus.searches.index) == [RECORDING, "packed"]
    assert len(corpus.ideas) == 2 * len(run.ideas)
    assert len(corpus.variants) == 2 * len(run.variants)
    assert len(corpus.rounds) == 2 * len(run.rounds)
    assert corpus.variants.loc[RECORDING].index.equals(run.variants.index)


def test_a_search_is_summed_up(runs: Path) -> None:
    run = ideatree.open_run(RECORDING)
    frames = run.frames()
    (found,) = ideatree.open_corpus(runs).searches.to_dict("records")
    assert found["problem"] == "level1/conv2d"
    assert found["device"] == "NVIDIA H200"
    assert (found["rounds"], found["ideas"]) == (len(frames.rounds), len(frames.ideas))
    assert found["evaluations"] == len(frames.variants)
    assert found["correct"] == (frames.variants["status"] == "correct").sum()
    assert found["best"] == frames.variants["speedup_low"].idxmax()
    assert found["best_round"] == frames.variants.loc[found["best"], "round"]
    assert found["characters_answered"] == sum(len(each.answer) for each in frames.texts.values()) > 0


def test_predictions_stand_next_to_what_was_measured(runs: Path) -> None:
    ideas = ideatree.open_corpus(runs).ideas
    assert {"predicted_gain", "refuted_by", "gain", "repeats"} <= {*ideas.columns}
    assert not ideas["repeats"].all()


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no runs"):
        ideatree.open_corpus(tmp_path)


def test_runs_with_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two runs have the name"):
        ideatree.open_corpus([RECORDING, RECORDING])
