"""When kernels are asked for, written and evaluated: side by side, and never too many at a time."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from evaluators.records.problem import Kernel, Problem
from search.proposers.llm.proposer import LLMProposer
from search.records.events import VariantEvaluated, VariantWritten
from search.records.model_calls import Answer, Limits, Purpose, Question
from search.records.tree import Idea, Seed
from tests.search.fakes import (
    FakeEvaluator,
    FakeProposer,
    Recorder,
    ScriptedModel,
    code_answer,
    correct,
    ideas_answer,
    search,
)


def test_no_more_evaluations_than_allowed_are_outstanding(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(delay_s=0.003)
    search(tmp_path / "journal.jsonl", evaluator=evaluator, outstanding=4)
    assert evaluator.most_running == 4


class Counting(FakeProposer):
    """Keeps how many kernels had been asked for and had no verdict, each time that some were asked for."""

    def __init__(self, evaluator: FakeEvaluator, delay_s: float) -> None:
        super().__init__(delay_s=delay_s)
        self.evaluator = evaluator
        self.asked = 0
        self.under_way: list[int] = []

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        self.asked += n
        self.under_way.append(self.asked - (self.evaluator.seen.total() - self.evaluator.running))
        async for each in super().implement(problem, idea, parent, n, written, rng):
            yield each


@pytest.mark.parametrize(("writing_s", "evaluating_s"), [(0, 0.003), (0.003, 0.003), (0.01, 0)])
def test_nothing_is_asked_for_while_the_queue_is_long(
    tmp_path: Path, writing_s: float, evaluating_s: float
) -> None:
    evaluator = FakeEvaluator(delay_s=evaluating_s)
    proposer = Counting(evaluator, writing_s)
    parts = {"evaluator": evaluator, "proposer": proposer, "ideas": 10}
    search(tmp_path / "journal.jsonl", outstanding=4, writing=6, **parts)
    assert len(proposer.under_way) > 12
    assert max(proposer.under_way) <= (2 * 4 - 1) + (6 - 1) + 3, "three variants an idea"
    assert max(proposer.under_way) >= 6, "there is enough to do"


@pytest.mark.slow
def test_the_evaluator_starts_on_the_first_kernel_while_the_others_are_written(tmp_path: Path) -> None:
    """64 calls at a time, and a model that takes its time: no idea, and no round, waits until it is whole."""
    at_a_time = [0, 0]

    async def answer(question: Question) -> str:
        if question.purpose is Purpose.IDEAS:
            return ideas_answer(*(f"idea number {i}: {word}" for i, word in enumerate("abcdefgh")))
        at_a_time[0] += 1
        at_a_time[1] = max(at_a_time)
        await asyncio.sleep(0.3 * int(re.findall(r"variant (\d) of 8", question.prompt)[0]))
        at_a_time[0] -= 1
        return code_answer(question.prompt.__hash__())

    class Slow(ScriptedModel):
        async def complete(self, question: Question) -> Answer:
            return Answer(text=await answer(question), usage=self.usage)

    recorder = Recorder()
    model = Slow(lambda question: "", limits=Limits(concurrency=64))
    evaluator = FakeEvaluator(verdict=lambda kernel: correct(), delay_s=0.02)
    parts = {"evaluator": evaluator, "proposer": LLMProposer({"slow": model}), "observers": [recorder]}
    search(tmp_path / "journal.jsonl", rounds=1, ideas=8, branch=8, outstanding=8, **parts)
    assert at_a_time[1] == 64
    written = [event.at_s for event in recorder.events if isinstance(event, VariantWritten)]
    judged = [event.at_s for event in recorder.events if isinstance(event, VariantEvaluated)]
    assert len(judged) == 64
    assert sum(at_s < max(written) for at_s in judged) >= 48, "all but those that were written last"
    assert min(judged) < min(written) + 0.3


def test_variants_are_evaluated_while_others_are_written(tmp_path: Path) -> None:
    recorder = Recorder()
    search(
        tmp_path / "journal.jsonl",
        rounds=1,
        ideas=8,
        proposer=FakeProposer(delay_s=0.02),
        observers=[recorder],
    )
    kinds = [type(event) for event in recorder.events]
    last_written = max(i for i, kind in enumerate(kinds) if kind is VariantWritten)
    assert kinds.index(VariantEvaluated) < last_written
