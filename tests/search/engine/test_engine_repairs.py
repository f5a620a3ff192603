"""Variants that fail and are given back to the proposer."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel
from tests.search.engine_fakes import cut
from tests.search.fakes import FakeEvaluator, FakeProposer, correct, failed, search, state_of


@pytest.mark.parametrize("repairs", [0, 1, 2])
def test_variants_that_fail_are_given_back(tmp_path: Path, repairs: int) -> None:
    def verdict(kernel: Kernel) -> Evaluation:
        mended = kernel.source.count("repaired")
        return [failed(Status.COMPILE_ERROR), failed(Status.INCORRECT), correct()][mended]

    path, proposer = tmp_path / "journal.jsonl", FakeProposer()
    search(path, rounds=1, repairs=repairs, proposer=proposer, evaluator=FakeEvaluator(verdict=verdict))
    state = state_of(path)
    assert len(state.tree.variants) == 12 * (1 + repairs)
    assert len(proposer.repaired) == 12 * repairs
    assert state.statuses[Status.CORRECT] == (12 if repairs == 2 else 0)
    for variant in state.tree.variants.values():
        mended = variant.kernel.source.count("repaired")
        assert bool(variant.repairs) == bool(mended)
        if variant.repairs:
            assert state.tree.variants[variant.repairs].kernel.source.count("repaired") == mended - 1


@pytest.mark.parametrize("status", [Status.REJECTED, Status.INFRASTRUCTURE_ERROR])
def test_what_no_log_helps_against_is_not_given_back(tmp_path: Path, status: Status) -> None:
    proposer = FakeProposer()
    evaluator = FakeEvaluator(verdict=lambda kernel: failed(status))
    search(tmp_path / "journal.jsonl", rounds=1, repairs=1, proposer=proposer, evaluator=evaluator)
    assert proposer.repaired == []


def test_repairs_stay_within_the_evaluations(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    evaluator = FakeEvaluator(verdict=lambda kernel: failed())
    search(path, rounds=9, evaluations=17, repairs=3, evaluator=evaluator)
    assert evaluator.seen.total() == 17
    assert all(variant.evaluation for variant in state_of(path).tree.variants.values())


@pytest.mark.slow
def test_a_run_with_repairs_cut_anywhere_loses_none(tmp_path: Path) -> None:
    path, part = tmp_path / "journal.jsonl", tmp_path / "part.jsonl"
    search(path, rounds=2, repairs=1)
    expected = state_of(path).tree
    for lines in range(0, len(path.read_text().splitlines()) + 1, 3):
        cut(path, part, lines)
        search(part, rounds=2, repairs=1)
        assert state_of(part).tree.variants == expected.variants, f"cut after line {lines}"
