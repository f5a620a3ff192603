"""Kernels that are timed together with their seeds: which, and what a model is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.records.evaluation import Evaluation, PairedSpeedup
from evaluators.records.problem import Kernel, Problem
from search.proposers.llm.measured_history import Gain, MeasuredHistory
from search.records.tree import LIBRARY, Seed
from tests.search.fakes import FakeEvaluator, kernel, search, state_of


class PairingEvaluator(FakeEvaluator):
    """Each kernel is a hundred times as fast as its seed."""

    def __init__(self) -> None:
        super().__init__()
        self.companions: dict[str, list[str]] = {}

    async def evaluate_beside(
        self,
        problem: Problem,
        kernel: Kernel,
        companions: Sequence[Kernel],
        *,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        self.companions[kernel.id] = [each.id for each in companions]
        found = await self.evaluate(problem, kernel, on_stage=on_stage)
        paired = [PairedSpeedup(over=each.id, speedup=100.0, low=99.0, high=101.0) for each in companions]
        return replace(found, paired=tuple(paired)) if found.timing else found


ENTRY = Seed(id="level1/fake/known", kernel=kernel("known"))


@pytest.mark.parametrize("entries", [(), (ENTRY,)])
def test_each_kernel_is_timed_with_its_seed_and_models_are_told(
    tmp_path: Path, entries: Sequence[Seed]
) -> None:
    """A kernel that starts from the reference is not, nor is the library's own."""
    path, evaluator = tmp_path / "journal.jsonl", PairingEvaluator()
    search(path, evaluator=evaluator, pairs_with_seed=True, entries=entries, comparisons=0)
    tree = state_of(path).tree
    seeds = {ENTRY.id: ENTRY.kernel.id} | {each.id: each.kernel.id for each in tree.variants.values()}
    history = MeasuredHistory(tree.history(), entries)
    for variant in tree.variants.values():
        starts = variant.parent and tree.ideas[variant.idea].proposer != LIBRARY
        expected = [seeds[variant.parent]] if starts else None
        assert evaluator.companions.get(variant.kernel.id) == expected
        if starts and variant.timing is not None:
            assert history.gain(variant) == Gain(value=100.0, low=99.0, high=101.0)
            assert "faster than its seed: 100x [99, 101]" in history.result(variant)


def test_without_it_nothing_is_paired(tmp_path: Path) -> None:
    evaluator = PairingEvaluator()
    search(tmp_path / "journal.jsonl", evaluator=evaluator, entries=[ENTRY])
    assert not evaluator.companions


def test_an_evaluator_that_cannot_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    search(tmp_path / "journal.jsonl", rounds=1, pairs_with_seed=True)
    assert "pair_with_seed=true has no effect" in caplog.text
