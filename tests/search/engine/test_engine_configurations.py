"""Kernels that declare configurations: the run has the best one, the journal has what was written."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluators.records.evaluation import ConfigurationResult, Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from search.engine.run_folder import RunFolder, finalise
from search.proposers.llm.measured_history import MeasuredHistory
from search.proposers.replay import Replay
from search.recordings.verdicts import RecordedEvaluations
from search.records.journal import replay
from search.records.tree import Idea, Seed, Variant
from tests.search.engine_fakes import cut
from tests.search.fakes import FakeEvaluator, FakeProposer, contents, correct, search, state_of

WRITTEN = Kernel(source='CONFIGS = {"B": [1, 2, 3]}\nB = 1\nclass ModelNew: ...\n', language="triton")
PLAIN = Kernel(source="B = 2\nclass ModelNew: ...\n", language="triton")
OTHER = Kernel(source="class ModelNew: ...\n", language="triton")


class DeclaringProposer(FakeProposer):
    """Writes the same kernels for every idea: one that declares configurations, and one about as fast."""

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        assert {WRITTEN, OTHER}.issuperset(written), "as it wrote them"
        for kernel in (WRITTEN, OTHER)[:n]:
            yield kernel


def verdict(kernel: Kernel) -> Evaluation:
    if kernel != WRITTEN:
        return correct(4.0 if kernel == PLAIN else 3.99)
    timing = correct(4.0).timing
    results = (
        ConfigurationResult(values={"B": 2}, timing=timing, chosen=True),
        ConfigurationResult(values={"B": 1}, timing=timing),
        ConfigurationResult(values={"B": 3}, cause="incorrect: off by one"),
    )
    return replace(correct(4.0), configurations=results)


def run(path: Path, **parts: Any) -> Any:
    past = replay(path) if path.exists() else []
    parts = {"proposer": DeclaringProposer(), "evaluator": FakeEvaluator(verdict=verdict), **parts}
    return search(path, ideas=1, branch=2, rounds=2, observers=[RunFolder(path.parent, past)], **parts)


def test_the_best_configuration_is_the_variants_kernel(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(verdict=verdict)
    finished = run(path := tmp_path / "journal.jsonl", evaluator=evaluator)
    state = state_of(path)
    declaring = [each for each in state.tree.variants.values() if each.written == WRITTEN]
    assert len(declaring) == 2
    assert {each.kernel for each in state.tree.variants.values()} == {PLAIN, OTHER}
    assert set(evaluator.seen.values()) == {1}, "equal kernels share the verdict"
    assert evaluator.confirmed == [PLAIN.id]
    assert finished.best.kernel == PLAIN
    assert state.finished == finished
    assert set(*evaluator.compared) == {PLAIN.id, OTHER.id}
    assert finished.best.evaluation.configurations == verdict(WRITTEN).configurations, "also once compared"
    finalise(tmp_path, state)
    for file in (tmp_path / "best.py", *(tmp_path / "variants").iterdir()):
        assert "CONFIGS" not in file.read_text()
    assert (tmp_path / "best.py").read_text().endswith(PLAIN.source)
    assert "CONFIGS" in path.read_text(), "the journal keeps what was written"
    history = MeasuredHistory(state.tree.history(), (), state.tree.ranking)
    assert "(B=2 is the best of 3 configurations, which take" in history.tried(None)
    assert "1 excluded: B=3 (incorrect: off by one)" in history.tried(None)


def test_it_is_resumed_and_replayed_alike(tmp_path: Path) -> None:
    run(path := tmp_path / "journal.jsonl")
    expected, lines = state_of(path), len(path.read_text().splitlines())
    for number in range(1, lines):
        (folder := tmp_path / str(number)).mkdir()
        cut(path, part := folder / "journal.jsonl", number)
        run(part)
        assert contents(state_of(part).tree) == contents(expected.tree), f"cut after line {number}"
    repeated = Replay(str(tmp_path))
    (folder := tmp_path / "replayed").mkdir()
    run(folder / "journal.jsonl", proposer=repeated, evaluator=RecordedEvaluations(expected))
    again = state_of(folder / "journal.jsonl")
    assert list(again.tree.variants) == list(expected.tree.variants)
    assert again.finished is not None and expected.finished is not None
    assert again.finished.best == expected.finished.best


def test_a_kernel_without_a_right_configuration_stays_as_written() -> None:
    failed = Evaluation(status=Status.INCORRECT, configurations=verdict(WRITTEN).configurations[1:])
    variant = Variant(kernel=WRITTEN, idea="i", parent="", round=1).judged(failed)
    assert (variant.kernel, variant.declared) == (WRITTEN, None)
