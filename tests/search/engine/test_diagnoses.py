"""Kernels are profiled between rounds: which, how often, and what becomes of the diagnoses."""

from __future__ import annotations

import asyncio
from pathlib import Path

from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from search.proposers.llm.measured_history import MeasuredHistory
from search.proposers.llm.prompts import Prompts
from search.records.events import KernelDiagnosed, RoundClosed
from search.records.journal import Journal, replay
from tests.search.fakes import PROBLEM, build, search, state_of


class FakeDiagnoser:
    """Has a diagnosis of every kernel."""

    def __init__(self, *, waits: bool = False) -> None:
        self.kernels: list[str] = []
        self._waits = waits
        self.cancelled = False

    async def diagnose(self, problem: Problem, kernel: Kernel, evaluation: Evaluation) -> Diagnosis:
        assert evaluation.timing is not None
        self.kernels.append(kernel.id)
        try:
            await asyncio.sleep(3600 if self._waits else 0)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return Diagnosis(reached=("static",), occupancy=f"that of {kernel.id}")


class BrokenDiagnoser(FakeDiagnoser):
    async def diagnose(self, problem: Problem, kernel: Kernel, evaluation: Evaluation) -> Diagnosis:
        self.kernels.append(kernel.id)
        return Diagnosis(missing={"profile": "the kernel could not be profiled"})


def test_seeds_are_profiled_once_before_their_round(tmp_path: Path) -> None:
    path, diagnoser = tmp_path / "journal.jsonl", FakeDiagnoser()
    search(path, rounds=4, seed=1, diagnoser=diagnoser)
    state, events = state_of(path), replay(path)
    assert len(diagnoser.kernels) == len(set(diagnoser.kernels)) > 2
    assert set(state.diagnoses) == set(diagnoser.kernels)
    first_closed = next(n for n, event in enumerate(events) if isinstance(event, RoundClosed))
    assert not any(isinstance(event, KernelDiagnosed) for event in events[:first_closed])
    seeds = [state.tree.variants[each.parent] for each in state.tree.ideas.values() if each.parent]
    assert {each.kernel.id for each in seeds} <= set(state.diagnoses)
    for number in (2, 3, 4):
        best = state.tree.before(number).best(2)
        assert {each.kernel.id for each in best} <= set(state.diagnoses)


def test_a_search_without_profiles_is_the_same_search(tmp_path: Path) -> None:
    with_, without = tmp_path / "with.jsonl", tmp_path / "without.jsonl"
    search(with_, diagnoser=FakeDiagnoser())
    search(without)
    assert state_of(with_).tree.variants == state_of(without).tree.variants


def test_a_resumed_search_profiles_nothing_again(tmp_path: Path) -> None:
    path, first, second = tmp_path / "journal.jsonl", FakeDiagnoser(), FakeDiagnoser()
    search(path, rounds=2, diagnoser=first)
    search(path, rounds=3, diagnoser=second)
    assert first.kernels
    assert not set(first.kernels) & set(second.kernels)


def test_a_kernel_that_cannot_be_profiled_is_tried_once_and_not_shown(tmp_path: Path) -> None:
    path, diagnoser = tmp_path / "journal.jsonl", BrokenDiagnoser()
    finished = search(path, rounds=4, seed=1, diagnoser=diagnoser)
    assert finished.reason == "rounds"
    assert len(diagnoser.kernels) == len(set(diagnoser.kernels))
    state = state_of(path)
    best = state.tree.best()[0].seed
    assert MeasuredHistory(diagnoses=state.diagnoses).diagnosis(best) == ""


def test_a_stop_ends_a_profile(tmp_path: Path) -> None:
    diagnoser = FakeDiagnoser(waits=True)

    async def stopped() -> str:
        with Journal(tmp_path / "journal.jsonl") as journal:
            engine = build(journal, rounds=3, diagnoser=diagnoser, grace_s=1.0)
            running = asyncio.ensure_future(engine.run())
            while not diagnoser.kernels:
                await asyncio.sleep(0.01)
            engine.request_stop("interrupted")
            return (await running).reason

    assert asyncio.run(asyncio.wait_for(stopped(), 30)) == "interrupted"
    assert diagnoser.cancelled


def test_the_prompt_for_ideas_has_the_diagnosis_of_its_seed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    search(path, rounds=3, diagnoser=FakeDiagnoser())
    state = state_of(path)
    seed = next(each.seed for each in state.tree.variants.values() if each.kernel.id in state.diagnoses)
    evidence = MeasuredHistory(state.tree.history(), diagnoses=state.diagnoses)
    text = Prompts().ideas(PROBLEM, {}, seed, evidence, [], 2)
    assert f"Occupancy: that of {seed.kernel.id}." in text
    without = Prompts().ideas(PROBLEM, {}, seed, MeasuredHistory(state.tree.history()), [], 2)
    assert "What its profile shows" not in without
