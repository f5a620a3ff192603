"""What a run takes from the library of kernels, and what it offers to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from kernel_library.catalogue.entry import Entry, Hit, HitKind, Measurement
from search.records.events import RoundClosed, RunStarted
from search.records.journal import replay
from search.records.tree import LIBRARY, Seed, speedups_of
from tests.search.engine_fakes import cut
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
    verdict_by_hash,
)


@dataclass
class FakeLibrary:
    hits: list[Hit] = field(default_factory=list)
    asked: int = 0
    added: list[Entry] = field(default_factory=list)
    refuses: str | None = None

    def lookup(self, problem: Problem, k: int, environment: Mapping[str, str] | None = None) -> list[Hit]:
        self.asked += 1
        return self.hits[:k]

    def best(self, problem: Problem, environment: Mapping[str, str]) -> Entry | None:
        return next((hit.entry for hit in self.hits if hit.kind is HitKind.PROBLEM), None)

    def refusal(self, entry: Entry) -> str | None:
        return self.refuses

    def add(self, entry: Entry) -> bool:
        self.added.append(entry)
        return True


def hit(name: str, speedup: float, kind: HitKind = HitKind.PROBLEM) -> Hit:
    measurement = Measurement(problem=PROBLEM, evaluation=correct(speedup))
    found = measurement.evaluation if kind is HitKind.PROBLEM else None
    entry = Entry(kernel=kernel(name), measurements=(measurement,))
    return Hit(entry=entry, kind=kind, why=f"by its {kind}", evaluation=found)


def as_seed(hit: Hit) -> Seed:
    entry = hit.entry
    return Seed(id=entry.id, kernel=entry.kernel, evaluation=hit.evaluation, why=hit.why, drop_in=hit.drop_in)


@pytest.mark.slow
def test_the_library_seeds_the_first_round_and_is_asked_once(tmp_path: Path) -> None:
    part, straight = tmp_path / "part.jsonl", tmp_path / "straight.jsonl"
    library = FakeLibrary([hit("gemm", 200.0, HitKind.RELATED), hit("liger", 100.0)])
    search(straight, library=library)
    taken, first, *_ = state_of(straight).tree.ideas.values()
    assert taken.parent == first.parent == library.hits[1].entry.id
    assert (taken.proposer, first.proposer) == (LIBRARY, "fake")
    assert library.hits[0].entry.id not in {idea.parent for idea in state_of(straight).tree.ideas.values()}
    for lines in (1, 6, 20):
        cut(straight, part, lines)
        other = FakeLibrary([hit("newer", 200.0)])
        search(part, library=other)
        assert other.asked == 0
        assert contents(state_of(part).tree) == contents(state_of(straight).tree)
        assert any(
            e.entries == tuple(map(as_seed, library.hits)) for e in replay(part) if isinstance(e, RunStarted)
        )


def judge_by(speedups: Mapping[str, float]) -> Callable[[Kernel], Evaluation]:
    """These kernels have these speedups; any other has 1 if it is correct at all."""

    def verdict(kernel: Kernel) -> Evaluation:
        if kernel.id in speedups:
            return correct(speedups[kernel.id])
        evaluation = verdict_by_hash(kernel)
        return correct(1.0) if evaluation.timing else evaluation

    return verdict


def test_the_librarys_kernels_are_measured_first_and_are_to_beat(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    hits = [hit("old", 100.0), hit("gemm", 200.0, HitKind.RELATED), hit("slow", 50.0)]
    library, (old, gemm, slow) = FakeLibrary(hits), [each.entry for each in hits]
    evaluator = FakeEvaluator(verdict=judge_by({old.kernel.id: 3.0, slow.kernel.id: 0.5}))
    finished = search(path, rounds=3, library=library, evaluator=evaluator)
    tree = state_of(path).tree
    taken = [idea for idea in tree.ideas.values() if idea.proposer == LIBRARY]
    assert [(idea.parent, idea.round) for idea in taken] == [(old.id, 1), (slow.id, 1)]
    assert f"{old.id} as it is (by its problem)" in taken[0].text
    assert evaluator.seen[old.kernel.id] == evaluator.seen[slow.kernel.id] == 1
    assert gemm.kernel.id not in evaluator.seen
    assert finished.best is not None and finished.best.kernel == old.kernel
    assert library.added == [], "it came from there"
    assert [round.best.kernel for round in replay(path) if isinstance(round, RoundClosed) and round.best] == [
        old.kernel
    ] * 3
    # From the second round on their variants stand for them, with what was measured here.
    starts = {idea.parent for idea in tree.ideas.values() if idea.round > 1}
    assert finished.best.id in starts and not starts & {old.id, slow.id}
    speedups = speedups_of([], tree.history())
    assert (speedups[old.id], speedups[slow.id]) == (3.0, 0.5)


def test_a_kernel_of_the_library_that_fails_here_is_not_built_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    broken = hit("old", 100.0)
    evaluator = FakeEvaluator(
        verdict=lambda kernel: failed() if kernel == broken.entry.kernel else verdict_by_hash(kernel)
    )
    proposer = FakeProposer()
    search(path, rounds=2, library=FakeLibrary([broken]), evaluator=evaluator, proposer=proposer, repairs=1)
    tree = state_of(path).tree
    (variant,) = [v for v in tree.variants.values() if v.kernel == broken.entry.kernel]
    assert variant.id not in proposer.repaired
    assert not {idea.parent for idea in tree.ideas.values() if idea.round > 1} & {broken.entry.id, variant.id}


def test_what_a_proposer_cannot_build_on_is_measured_and_left(tmp_path: Path) -> None:
    class Narrow(FakeProposer):
        def extends(self, problem: Problem, kernel: Kernel) -> bool:
            return kernel != foreign.entry.kernel

    path, foreign = tmp_path / "journal.jsonl", hit("old", 100.0)
    evaluator = FakeEvaluator(verdict=judge_by({foreign.entry.kernel.id: 3.0}))
    finished = search(path, rounds=3, library=FakeLibrary([foreign]), evaluator=evaluator, proposer=Narrow())
    tree = state_of(path).tree
    assert finished.best is not None and finished.best.kernel == foreign.entry.kernel
    asked_for = [idea for idea in tree.ideas.values() if idea.proposer != LIBRARY]
    assert {idea.parent for idea in asked_for if idea.round == 1} == {""}
    assert len(asked_for) == 3 * 4
    assert not {idea.parent for idea in asked_for} & {foreign.entry.id, finished.best.id}


def test_an_unreadable_library_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Away(FakeLibrary):
        def lookup(self, problem: Problem, k: int, environment: Mapping[str, str] | None = None) -> list[Hit]:
            raise OSError("no route to host")

    library = Away()
    finished = search(tmp_path / "journal.jsonl", library=library)
    assert finished.best is not None and len(library.added) == 1
    assert "no route to host" in caplog.text


def test_only_a_confirmed_winner_is_offered_to_the_library(tmp_path: Path) -> None:
    library = FakeLibrary()
    finished = search(tmp_path / "held.jsonl", library=library)
    assert finished.best is not None
    assert [e.kernel for e in library.added] == [finished.best.kernel]
    (added,) = library.added
    assert added.measurements == (Measurement(problem=PROBLEM, evaluation=finished.confirmed),)
    tree = state_of(tmp_path / "held.jsonl").tree
    line = tree.lineage(finished.best)
    assert [each.parent for each in line] == ["", *(each.id for each in line[:-1])]
    assert added.lineage.ideas == tuple(tree.ideas[each.idea].text for each in line)
    assert (added.lineage.start, added.lineage.run) == ("", str(tmp_path))
    library = FakeLibrary()
    broken = FakeEvaluator(thorough=lambda kernel: failed(Status.INCORRECT))
    search(tmp_path / "broken.jsonl", library=library, evaluator=broken)
    assert library.added == []


def test_a_winner_goes_to_the_library_with_its_speedup_over_the_best_there(tmp_path: Path) -> None:
    known = hit("old", 100.0)
    library = FakeLibrary([known])
    evaluator = FakeEvaluator(verdict=judge_by({known.entry.kernel.id: 0.6}))
    finished = search(tmp_path / "journal.jsonl", library=library, evaluator=evaluator)
    assert finished.best is not None
    (added,) = library.added
    against = added.measurements[0].against
    assert against is not None
    assert (against.entry, against.faster) == (known.entry.id, True)
    assert against.speedup == pytest.approx(1 / 0.6)
    assert evaluator.compared[-1] == [added.kernel.id, known.entry.kernel.id]


def test_a_winner_that_the_library_refuses_is_not_compared_with_its_best(tmp_path: Path) -> None:
    known = hit("old", 100.0)
    library = FakeLibrary([known], refuses="it is too slow")
    evaluator = FakeEvaluator(verdict=judge_by({known.entry.kernel.id: 0.6}))
    search(tmp_path / "journal.jsonl", library=library, evaluator=evaluator)
    assert library.added == []
    assert not any(known.entry.kernel.id in kernels for kernels in evaluator.compared)
