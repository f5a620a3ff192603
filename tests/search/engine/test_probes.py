"""Probes are asked for next to ideas, timed, and told to the next round. Nothing else may become of them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Status
from evaluators.records.probe import Probe, ProbeStatus, ProbeTimes, ProbeTrace, TraceMarks
from evaluators.records.problem import Kernel, Problem
from kernel_library.catalogue.library import FolderLibrary
from search.harvest.corpus import Corpus, read_runs
from search.harvest.formats.improvement import Improvement
from search.harvest.formats.kernelbook import Kernelbook
from search.harvest.formats.preference import Preference
from search.harvest.formats.repair import Repair
from search.harvest.formats.sft import Sft
from search.harvest.formats.trajectory import Trajectory
from search.prompt.sections import section_tables
from search.proposers.llm.proposer import LLMProposer
from search.records.events import ProbeMeasured, ProbeRequested, RoundClosed
from search.records.journal import Journal, replay
from search.records.model_calls import Limits, Purpose, Question
from search.records.tree import Variant
from tests.search.engine_fakes import scripted, stopped
from tests.search.fakes import (
    FakeEvaluator,
    FakeProposer,
    ScriptedModel,
    build,
    code_answer,
    failed,
    search,
    state_of,
)

TRACE = ProbeTrace.of(TraceMarks(names=("load", "store")), [[1, 5, 9]], 1)
TIMED = Probe(
    status=ProbeStatus.TIMED, times=ProbeTimes.of([0.001] * 6, [1.0] * 6), trace=TRACE, device_s=2.0
)


class ProbingEvaluator(FakeEvaluator):
    """Times probes at a thousand times eager's speed, faster than any kernel of a search."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.probed: list[Kernel] = []

    async def probe(
        self, problem: Problem, kernel: Kernel, *, on_stage: Callable[[str], None] | None = None
    ) -> Probe:
        await asyncio.sleep(0)
        self.probed.append(kernel)
        return TIMED


def probing(asked: int = 1, *, writes: bool = True) -> ScriptedModel:
    """A model that asks for `asked` probes with each answer, next to its ideas."""
    inner, numbers = scripted(), iter(range(10**6))

    def answer(question: Question) -> Any:
        if question.purpose is Purpose.PROBE:
            return code_answer(f"probe {next(numbers)}") if writes else "I cannot."
        text = inner.answer(question)
        if question.purpose is Purpose.IDEAS and "probes" in (question.schema or {})["properties"]:
            assert isinstance(text, str)
            base = json.loads(text)["ideas"][0]["seed"]
            probes = [
                {"question": f"is it the stores, {next(numbers)}?", "what": "no stores", "base": base}
                for _ in range(asked)
            ]
            return json.dumps(json.loads(text) | {"probes": probes})
        return text

    return ScriptedModel(answer, limits=Limits(tries=1, output_tokens=1000))


def run(path: Path, model: ScriptedModel, evaluator: Any = None, **parts: Any) -> None:
    evaluator = evaluator or ProbingEvaluator()
    parts = {"rounds": 3, "ideas": 2, "branch": 2, "keep": 1, "probes": 2} | parts
    search(path, proposer=LLMProposer({"one": model}), evaluator=evaluator, **parts)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal.jsonl"


@pytest.fixture(autouse=True)
def _folder(journal: Path) -> None:
    journal.parent.mkdir()


def test_probes_are_timed_and_told_to_the_next_round(journal: Path) -> None:
    model, evaluator = probing(), ProbingEvaluator()
    run(journal, model, evaluator)
    state, events = state_of(journal), replay(journal)
    assert len(evaluator.probed) == len(state.probes) == len(state.probed) == 3
    assert state.evaluations == len(evaluator.seen) == sum(evaluator.seen.values())
    assert state.device_s >= 3 * TIMED.device_s
    closed = [n for n, each in enumerate(events) if isinstance(each, RoundClosed)]
    assert next(n for n, each in enumerate(events) if isinstance(each, ProbeMeasured)) < closed[0]
    first, *later = [each for each in model.asked if each.purpose is Purpose.IDEAS]
    assert "at most 2 experiments" in first.prompt and "# Probes so far" not in first.prompt
    for part in ("# Probes so far", "is it the stores, 0?", "0.001 ms a call [", "Trace of 1 workers"):
        assert part in later[-1].prompt, part
    request = list(state.probes.values())[-1]
    assert f"It changes `{request.base}`, which takes " in search_again(journal)
    writing = next(each for each in model.asked if each.purpose is Purpose.PROBE)
    assert "Write a probe" in writing.prompt and "no stores" in writing.prompt
    tables = "\n".join(section_tables(journal.parent))
    assert all(f"{each}, characters" in tables for each in (Purpose.IDEAS, Purpose.CODE, Purpose.PROBE))


def search_again(journal: Path) -> str:
    """The question for ideas of one more round."""
    model = probing()
    run(journal, model, rounds=4)
    return next(each.prompt for each in model.asked if each.purpose is Purpose.IDEAS)


def test_a_probe_is_no_variant_seed_winner_or_row(journal: Path, tmp_path: Path) -> None:
    library = FolderLibrary(tmp_path / "library", seeds=None)
    run(journal, probing(2), library=library)
    state = state_of(journal)
    probes = {each.kernel.id for each in state.probed.values() if each.kernel is not None}
    assert len(probes) == 6
    known = {each.kernel.id for each in state.tree.variants.values()} | set(state.verdicts)
    assert not probes & known
    assert state.finished is not None and state.finished.best is not None
    assert state.finished.best.kernel.id not in probes
    assert not probes & {each.kernel.id for each in library.entries()}
    sources = {each.kernel.source for each in state.probed.values() if each.kernel is not None}
    corpus = Corpus(runs=read_runs([tmp_path], "mit", lambda each, _: each))
    for format in (Sft(), Improvement(), Preference(), Repair(), Trajectory(), Kernelbook()):
        rows = json.dumps([dict(row.values) for row in format.rows(corpus, Counter())])
        assert not [each for each in sources if json.dumps(each.strip())[1:-1] in rows], type(format)
    assert "Probe" not in str({each.type for each in fields(Variant)})


def test_a_round_has_no_more_probes_than_allowed(journal: Path) -> None:
    run(journal, probing(5), keep=2)
    rounds = [each.round for each in state_of(journal).probes.values()]
    assert {number: rounds.count(number) for number in rounds} == {1: 2, 2: 2, 3: 2}


def test_without_probes_nothing_is_said_of_them(journal: Path) -> None:
    model = probing()
    run(journal, model, probes=0)
    assert not any("experiments" in each.prompt for each in model.asked)
    assert not state_of(journal).probes


def test_a_probe_that_is_not_written_is_not_asked_for_again(journal: Path) -> None:
    run(journal, probing(writes=False))
    measured = list(state_of(journal).probed.values())
    assert len(measured) == 3 and {each.kernel for each in measured} == {None}


@pytest.mark.parametrize("parts", [{"evaluator": FakeEvaluator()}, {"proposer": FakeProposer()}])
def test_who_cannot_probe_is_not_asked(
    journal: Path, parts: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    parts = {"proposer": LLMProposer({"one": probing()}), "evaluator": ProbingEvaluator()} | parts
    search(journal, rounds=1, probes=2, **parts)
    assert not state_of(journal).probes
    assert "probes=2 has no effect" in caplog.text


def test_a_resumed_run_finishes_its_probes(journal: Path) -> None:
    """It was stopped when the first had been requested, before it was written."""
    parts = {"ideas": 2, "branch": 2, "keep": 1, "probes": 2, "grace_s": 0.0}
    stopped(
        journal,
        kind=ProbeRequested,
        n=1,
        proposer=LLMProposer({"one": probing()}),
        evaluator=ProbingEvaluator(),
        **parts,
    )
    assert state_of(journal).probes and not state_of(journal).probed
    run(journal, probing(), evaluator := ProbingEvaluator())
    state = state_of(journal)
    assert set(state.probed) == set(state.probes) and len(evaluator.probed) == 3
    requested = [each for each in replay(journal) if isinstance(each, ProbeRequested)]
    assert len(requested) == 3


def test_a_negative_number_is_refused(journal: Path) -> None:
    with Journal(journal) as opened, pytest.raises(ValueError, match="probes is -1"):
        build(opened, probes=-1)


def test_a_probe_does_not_win_where_no_kernel_is_correct(journal: Path) -> None:
    run(journal, probing(), ProbingEvaluator(verdict=lambda kernel: failed(Status.INCORRECT)))
    state = state_of(journal)
    assert state.probed and state.finished is not None and state.finished.best is None
