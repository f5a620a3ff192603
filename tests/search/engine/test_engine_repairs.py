"""Variants that fail and are given back to the proposer."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel
from search.engine.pipeline import REPAIRABLE, REPAIRS_IN
from search.records.events import RoundClosed, VariantWritten
from search.records.journal import replay
from search.records.tree import Variant
from search.strategies.idea_branching import IdeaBranching
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


def test_failed_variants_can_wait_for_the_next_round(tmp_path: Path) -> None:
    """Each round has the repairs of the one before, and none are left but those of the last round."""
    path = tmp_path / "journal.jsonl"
    search(path, rounds=4, repairs=1, repairs_in="next_round")
    tree, events = state_of(path).tree, replay(path)
    mended = [each for each in tree.variants.values() if each.repairs]
    assert {each.round for each in mended} == {2, 3, 4}
    for variant in mended:
        failed_one = tree.variants[variant.repairs]
        assert variant.round == failed_one.round + 1 == tree.ideas[variant.idea].round + 1
        assert variant.id not in tree.before(variant.round).variants, "no strategy sees it before"
        assert variant.id in tree.before(variant.round + 1).variants
    of = {each.repairs for each in mended}
    left = [each for each in tree.variants.values() if each.id not in of and is_mendable(each)]
    assert left and {each.round for each in left} == {4}
    closed = 0
    for event in events:
        closed = event.round if isinstance(event, RoundClosed) else closed
        if isinstance(event, VariantWritten):
            assert event.variant.round == closed + 1


def is_mendable(variant: Variant) -> bool:
    """Whether it failed and is no repair."""
    return not variant.repairs and variant.evaluation is not None and variant.evaluation.status in REPAIRABLE


def test_a_repair_that_fails_is_repaired_a_round_later(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    evaluator = FakeEvaluator(verdict=lambda kernel: failed())
    search(path, rounds=3, ideas=1, branch=1, repairs=2, repairs_in="next_round", evaluator=evaluator)
    variants = state_of(path).tree.variants.values()
    mended = [(each.round, each.kernel.source.count("repaired")) for each in variants]
    assert sorted(mended) == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]


def test_only_a_search_with_rounds_can_wait(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    strategy = IdeaBranching(ideas=4, branch=3, keep=2, synchronous=False)
    with pytest.raises(ValueError, match="repairs_in=next_round needs rounds"):
        search(path, strategy=strategy, repairs_in="next_round")
    with pytest.raises(ValueError, match="repairs_in is 'never'"):
        search(path, repairs_in="never")


@pytest.mark.slow
@pytest.mark.parametrize("repairs_in", REPAIRS_IN)
def test_a_run_with_repairs_cut_anywhere_loses_none(tmp_path: Path, repairs_in: str) -> None:
    path, part = tmp_path / "journal.jsonl", tmp_path / "part.jsonl"
    chosen = {"rounds": 3, "ideas": 2, "branch": 2, "repairs": 1, "repairs_in": repairs_in}
    search(path, **chosen)
    expected = state_of(path).tree
    assert any(each.repairs for each in expected.variants.values())
    for lines in range(0, len(path.read_text().splitlines()) + 1, 2):
        cut(path, part, lines)
        search(part, **chosen)
        assert state_of(part).tree.variants == expected.variants, f"cut after line {lines}"
