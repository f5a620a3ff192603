from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from search.proposers.replay import Replay
from search.recordings.verdicts import RecordedEvaluations
from search.records.tree import LIBRARY, Expansion, Seed
from tests.search.fakes import (
    PROBLEM,
    FakeEvaluator,
    FakeProposer,
    contents,
    correct,
    failed,
    kernel,
    search,
    state_of,
)


def recording(folder: Path, **more: object) -> Path:
    folder.mkdir()
    proposer = FakeProposer(delay_s=0.002)
    search(folder / "journal.jsonl", proposer=proposer, evaluator=FakeEvaluator(delay_s=0.002), **more)
    return folder


def verdicts_of(folder: Path) -> RecordedEvaluations:
    return RecordedEvaluations(state_of(folder / "journal.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("repairs", [0, 1])
def test_with_the_recorded_evaluations_it_repeats_exactly(tmp_path: Path, repairs: int) -> None:
    recorded = recording(tmp_path / "recorded", repairs=repairs)
    path = tmp_path / "journal.jsonl"
    finished = search(path, proposer=Replay(str(recorded)), evaluator=verdicts_of(recorded), repairs=repairs)
    before, after = state_of(recorded / "journal.jsonl"), state_of(path)
    assert list(before.tree.ideas) == list(after.tree.ideas)
    assert before.tree.variants == after.tree.variants
    assert before.tree.best(5) == after.tree.best(5)
    assert (before.evaluations, before.statuses) == (after.evaluations, after.statuses)
    assert before.finished is not None
    assert (finished.reason, finished.best, finished.confirmed) == (
        before.finished.reason,
        before.finished.best,
        before.finished.confirmed,
    )


@pytest.mark.slow
def test_a_replay_is_replayed_alike(tmp_path: Path) -> None:
    recorded = recording(tmp_path / "recorded")
    again = tmp_path / "again"
    again.mkdir()
    search(again / "journal.jsonl", proposer=Replay(str(recorded)), evaluator=verdicts_of(recorded))
    third = tmp_path / "journal.jsonl"
    search(third, proposer=Replay(str(again)), evaluator=verdicts_of(again))
    assert contents(state_of(third).tree)["of"] == contents(state_of(recorded / "journal.jsonl").tree)["of"]


@pytest.mark.parametrize("verdict", [lambda kernel: correct(), lambda kernel: failed()])
def test_elsewhere_every_recorded_kernel_is_evaluated_all_the_same(tmp_path: Path, verdict: object) -> None:
    recorded = recording(tmp_path / "recorded")
    evaluator = FakeEvaluator(verdict=verdict)  # type: ignore[arg-type]
    path = tmp_path / "journal.jsonl"
    search(path, proposer=Replay(str(recorded)), evaluator=evaluator)
    before, after = state_of(recorded / "journal.jsonl").tree, state_of(path).tree
    assert {v.kernel.id for v in before.variants.values()} == set(evaluator.seen)
    assert [idea.text for idea in before.ideas.values()] == [idea.text for idea in after.ideas.values()]


@pytest.mark.slow
def test_an_interrupted_replay_resumes(tmp_path: Path) -> None:
    recorded = recording(tmp_path / "recorded")
    whole = (recorded / "journal.jsonl").read_text().splitlines(keepends=True)
    expected = contents(state_of(recorded / "journal.jsonl").tree)
    for lines in range(0, len(whole), 7):
        folder = tmp_path / str(lines)
        folder.mkdir()
        path = folder / "journal.jsonl"
        search(path, proposer=Replay(str(recorded)), evaluator=verdicts_of(recorded))
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
        search(path, proposer=Replay(str(recorded)), evaluator=verdicts_of(recorded))
        assert contents(state_of(path).tree)["of"] == expected["of"]


def test_a_search_that_measured_the_librarys_kernels_repeats(tmp_path: Path) -> None:
    entries = [Seed(id=name, kernel=kernel(name), drop_in=name != "gemm") for name in ("old", "gemm", "new")]
    recorded = recording(tmp_path / "recorded", entries=entries)
    path = tmp_path / "journal.jsonl"
    search(path, proposer=Replay(str(recorded)), evaluator=verdicts_of(recorded), entries=entries)
    before, after = state_of(recorded / "journal.jsonl").tree, state_of(path).tree
    assert [idea.parent for idea in before.ideas.values() if idea.proposer == LIBRARY] == ["old", "new"]
    assert list(before.ideas) == list(after.ideas)
    assert before.variants == after.variants


def test_past_its_end_there_are_no_ideas(tmp_path: Path) -> None:
    replay = Replay(str(recording(tmp_path / "recorded", rounds=2)))
    expansion = Expansion(seed=None, ideas=4, variants=1, round=3)
    assert asyncio.run(replay.propose(PROBLEM, expansion, [], random.Random(0))) == []


def test_a_recording_of_another_problem_is_refused(tmp_path: Path) -> None:
    proposer = Replay(str(recording(tmp_path / "recorded")))
    assert proposer.refusal(PROBLEM) is None
    other = replace(PROBLEM, name="level1/other", source="class M: ...")
    assert "not of level1/other" in str(proposer.refusal(other))


def test_what_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="journal"):
        Replay(str(tmp_path))
    (tmp_path / "journal.jsonl").write_text("")
    with pytest.raises(ValueError, match="no ideas"):
        Replay(str(tmp_path))


def test_a_kernel_that_was_not_recorded_gets_no_verdict(tmp_path: Path) -> None:
    evaluations = verdicts_of(recording(tmp_path / "recorded"))
    found = asyncio.run(evaluations.evaluate(PROBLEM, kernel("new")))
    assert (found.status.value, "no verdict" in found.log) == ("infrastructure_error", True)
