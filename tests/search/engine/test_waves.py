"""Variants in waves: later ones are asked for once earlier ones have verdicts, and are told them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel
from search.proposers.llm.proposer import LLMProposer
from search.records.budget import Budget
from search.records.journal import Journal
from search.records.model_calls import Answer, Purpose, Question
from tests.search.engine_fakes import cut
from tests.search.fakes import (
    Clock,
    FakeEvaluator,
    ScriptedModel,
    build,
    code_answer,
    correct,
    failed,
    ideas_answer,
    search,
    state_of,
)

SIZE: dict[str, Any] = {"rounds": 1, "ideas": 1, "branch": 5, "keep": 1}


def number_of(question: Question) -> int:
    found = re.search(r"This is variant (\d) of \d", question.prompt)
    return int(found[1]) if found else 0


def numbered(question: Question) -> str:
    """One idea, and a kernel for each number."""
    if question.purpose is Purpose.IDEAS:
        return ideas_answer("Stage the tile in shared memory.")
    return code_answer(number_of(question) or "repaired")


def verdict(kernel: Kernel) -> Evaluation:
    """The first is wrong, the others are as fast as their number says."""
    name = kernel.source.rpartition("# ")[2].strip()
    return failed() if name == "1" else correct(float(name) if name.isdigit() else 9.0)


def prompts(model: ScriptedModel) -> dict[int, str]:
    return {number: each.prompt for each in model.asked if (number := number_of(each))}


def told(prompt: str) -> list[str]:
    return re.findall(r"^- (variant \d: .*)$", prompt, re.MULTILINE)


def test_each_wave_is_told_the_verdicts_of_all_before_it_in_order(tmp_path: Path) -> None:
    asked = []
    for name in ("one", "two"):  # calls and evaluations take differently long each time
        model = ScriptedModel(numbered, delay_s=0.02)
        evaluator = FakeEvaluator(verdict=verdict, delay_s=0.02)
        search(tmp_path / name, proposer=LLMProposer({"m": model}, wave=2), evaluator=evaluator, **SIZE)
        asked.append(prompts(model))
    first, second = asked
    assert first == second
    lines = [
        "variant 1: incorrect: it is incorrect",
        "variant 2: 0.5 ms, 2x as fast as eager [1.98, 2.02]",
        "variant 3: 0.5 ms, 3x as fast as eager [2.97, 3.03]",
        "variant 4: 0.5 ms, 4x as fast as eager [3.96, 4.04]",
    ]
    assert {number: told(prompt) for number, prompt in first.items()} == {
        1: [],
        2: [],
        3: lines[:2],
        4: lines[:2],
        5: lines,
    }


def test_a_resumed_wave_is_asked_for_as_if_nothing_had_happened(tmp_path: Path) -> None:
    path, model = tmp_path / "whole.jsonl", ScriptedModel(numbered)
    search(path, proposer=LLMProposer({"m": model}, wave=2), evaluator=FakeEvaluator(verdict=verdict), **SIZE)
    names = [line.split('"', 4)[3] for line in path.read_text().splitlines()]
    third = [at for at, name in enumerate(names) if name == "variant_written"][2]
    assert len(cut(path, tmp_path / "cut.jsonl", third + 1).tree.variants) == 3
    again = ScriptedModel(numbered)
    resumed = LLMProposer({"m": again}, wave=2)
    search(tmp_path / "cut.jsonl", proposer=resumed, evaluator=FakeEvaluator(verdict=verdict), **SIZE)
    assert prompts(again) == {number: prompts(model)[number] for number in (4, 5)}
    assert state_of(tmp_path / "cut.jsonl").tree.variants == state_of(path).tree.variants


def test_a_repair_does_not_hold_up_the_next_wave(tmp_path: Path) -> None:
    last_asked = asyncio.Event()

    class Slow(ScriptedModel):
        async def complete(self, question: Question) -> Answer:
            if number_of(question) == 5:
                last_asked.set()
            if question.purpose is Purpose.REPAIR:
                await last_asked.wait()
            return await super().complete(question)

    async def run() -> str:
        with Journal(tmp_path / "journal.jsonl") as journal:
            proposer = LLMProposer({"m": Slow(numbered)}, wave=2)
            engine = build(
                journal, proposer=proposer, evaluator=FakeEvaluator(verdict=verdict), repairs=1, **SIZE
            )
            return (await asyncio.wait_for(engine.run(), 20)).reason

    assert asyncio.run(run()) == "rounds"
    variants = state_of(tmp_path / "journal.jsonl").tree.variants.values()
    assert sorted(bool(each.repairs) for each in variants) == [False] * 5 + [True]


@pytest.mark.parametrize("limit", ["evaluations", "calls", "seconds"])
def test_a_limit_ends_the_waves(limit: str, tmp_path: Path) -> None:
    clock = Clock()

    def judged(kernel: Kernel) -> Evaluation:
        clock.now_s += 5
        return verdict(kernel)

    # Three kernels; three kernels and the question for ideas; the time of the first kernel.
    budget = Budget(rounds=9, **{limit: {"evaluations": 3, "calls": 4, "seconds": 5}[limit]}, clock=clock)
    path, model = tmp_path / "journal.jsonl", ScriptedModel(numbered)
    parts = {"proposer": LLMProposer({"m": model}, wave=2), "evaluator": FakeEvaluator(verdict=judged)}
    with Journal(path) as journal:
        engine = build(journal, budget=budget, outstanding=1, **parts, ideas=1, branch=5, keep=1)
        assert asyncio.run(asyncio.wait_for(engine.run(), 20)).reason == limit
    assert sorted(prompts(model)) == {"evaluations": [1, 2, 3], "calls": [1, 2, 3], "seconds": [1, 2]}[limit]


def test_a_wave_without_a_kernel_is_the_last(tmp_path: Path) -> None:
    def answer(question: Question) -> str:
        return "no code" if number_of(question) in (2, 3) else numbered(question)

    model = ScriptedModel(answer)
    proposer = LLMProposer({"m": model}, wave=2)
    finished = search(tmp_path / "journal.jsonl", proposer=proposer, **SIZE)
    assert finished.reason == "rounds"
    assert [number_of(each) for each in model.asked if number_of(each)] == [1, 2, 2, 2, 2]
    with pytest.raises(ValueError, match="wave is 0"):
        LLMProposer({"m": model}, wave=0)
