"""Runs that are asked to stop, cancelled or killed, and go on where they were."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from search.records.events import Event, IdeaProposed, RoundClosed, VariantEvaluated, VariantWritten
from search.records.journal import Journal, replay
from search.records.run_state import rebuild
from tests.search.engine_fakes import stopped
from tests.search.fakes import (
    FakeEvaluator,
    FakeProposer,
    Recorder,
    build,
    contents,
    correct,
    search,
    state_of,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", [IdeaProposed, VariantWritten, VariantEvaluated, RoundClosed])
def test_a_stopped_run_resumes_where_it_was(tmp_path: Path, kind: type[Event], n: int) -> None:
    path, undisturbed = tmp_path / "journal.jsonl", tmp_path / "undisturbed.jsonl"
    evaluator = FakeEvaluator(delay_s=0.003)
    finished = stopped(path, kind=kind, n=n, evaluator=evaluator, proposer=FakeProposer(delay_s=0.003))
    before = state_of(path)
    assert finished.reason == "interrupted"
    assert before.tree.rounds_closed == (n if kind is RoundClosed else 0)
    assert (finished.confirmed is not None) == bool(before.tree.best())
    proposer = FakeProposer()
    assert search(path, evaluator=evaluator, proposer=proposer).reason == "rounds"
    search(undisturbed)
    assert contents(state_of(path).tree) == contents(state_of(undisturbed).tree)
    assert set(evaluator.seen.values()) == {1}
    assert not before.implemented & set(proposer.implemented)


class Hangs(FakeEvaluator):
    """Never comes back."""

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        if thorough or not self.seen:
            return await super().evaluate(problem, kernel, thorough=thorough, on_stage=on_stage)
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.slow
def test_evaluations_that_outlast_the_grace_time_are_cancelled_and_picked_up(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    began = time.monotonic()
    finished = stopped(
        path, kind=VariantEvaluated, n=1, evaluator=Hangs(verdict=lambda k: correct()), grace_s=0.2
    )
    assert 0.2 <= time.monotonic() - began < 20.0, "they would never end"
    assert finished.reason == "interrupted"
    assert finished.confirmed == correct()
    waiting = [v for v in state_of(path).tree.variants.values() if v.evaluation is None]
    assert waiting
    evaluator, proposer = FakeEvaluator(), FakeProposer()
    search(path, rounds=1, evaluator=evaluator, proposer=proposer)
    assert evaluator.seen.total() == 11
    assert all(v.evaluation for v in state_of(path).tree.variants.values())


@pytest.mark.parametrize("confirm_s", [0.0, 0.1])
def test_a_confirmation_that_takes_too_long_after_a_stop_is_given_up(
    tmp_path: Path, confirm_s: float
) -> None:
    class Slow(FakeEvaluator):
        async def evaluate(
            self,
            problem: Problem,
            kernel: Kernel,
            *,
            thorough: bool = False,
            on_stage: Callable[[str], None] | None = None,
        ) -> Evaluation:
            if thorough:
                await asyncio.sleep(60)
            return await super().evaluate(problem, kernel)

    path = tmp_path / "journal.jsonl"
    finished = stopped(path, kind=RoundClosed, n=1, evaluator=Slow(), confirm_s=confirm_s)
    assert finished.best == state_of(path).tree.best()[0]
    assert finished.confirmed is None


CHILD = """
import logging, sys
from pathlib import Path
from tests.search.fakes import FakeEvaluator, FakeProposer, search
search(Path(sys.argv[1]), proposer=FakeProposer(delay_s=0.05), evaluator=FakeEvaluator(delay_s=0.1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("lines", [8, 20, 45])
def test_a_killed_process_loses_only_the_work_in_flight(tmp_path: Path, lines: int) -> None:
    path, undisturbed = tmp_path / "journal.jsonl", tmp_path / "undisturbed.jsonl"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 120
        while not path.exists() or path.read_bytes().count(b"\n") < lines:
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.005)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert path.read_bytes().count(b"\n") >= lines
    before = rebuild(replay(path))
    assert before.finished is None
    evaluator = FakeEvaluator()
    assert search(path, evaluator=evaluator).reason == "rounds"
    search(undisturbed)
    assert contents(state_of(path).tree) == contents(state_of(undisturbed).tree)
    assert not set(evaluator.seen) & set(before.verdicts)


@pytest.mark.slow
def test_a_running_search_cannot_be_joined(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 120
        while not path.exists() or not path.stat().st_size:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        with pytest.raises(ValueError, match="another process is running this search"):
            search(path)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()


def test_a_cancelled_run_leaves_nothing_running(tmp_path: Path) -> None:
    async def cancelled() -> set[asyncio.Task[Any]]:
        with Journal(tmp_path / "journal.jsonl") as journal:
            recorder = Recorder()
            task = asyncio.create_task(build(journal, evaluator=Hangs(), observers=[recorder]).run())
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(0.01)
            assert task.cancelled()
            assert recorder.closed == 1
            return asyncio.all_tasks() - {asyncio.current_task()}

    logging.getLogger("asyncio").setLevel(logging.ERROR)
    assert not asyncio.run(cancelled())
