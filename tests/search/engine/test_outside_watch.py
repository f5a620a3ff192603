"""Searches that only others can advance: they stop, say what they wait for, and continue without loss."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.device.child_processes import UnfitProblem
from evaluators.device.settings import Settings
from evaluators.queue.queue_evaluator import QueueEvaluator
from evaluators.queue.queue_folder import QueueFolder
from evaluators.queue.requests import Operation
from evaluators.queue.verdicts import DeviceVerdict
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from search.engine import outside_watch
from search.engine.engine import Engine
from search.models.providers.mailbox import END, Mailbox
from search.proposers.llm.proposer import LLMProposer
from search.records.budget import Budget
from search.records.events import (
    ASSUMED,
    LeadersCompared,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
)
from search.records.journal import Journal, replay
from search.records.model_calls import Purpose
from search.run.queued_search import QueuedDiagnoser, for_this_search
from tests.search.engine.test_diagnoses import FakeDiagnoser
from tests.search.engine.test_probes import TIMED, probing
from tests.search.fakes import (
    Clock,
    FakeEvaluator,
    FakeProposer,
    ScriptedModel,
    build,
    code_answer,
    contents,
    ideas_answer,
    in_turns,
    search,
    state_of,
    timing,
    verdict_by_hash,
)

pytestmark = [pytest.mark.slow, pytest.mark.core]

CHEAP = {"ideas": 2, "branch": 2, "rounds": 2}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_watch.OutsideWatch.__init__, "__kwdefaults__", {"look_every_s": 0.03})


def advanced(run: Path, **parts: Any) -> tuple[RunFinished, Engine]:
    """The search in a run folder, up to where only others can advance it."""
    with Journal(run / "journal.jsonl") as journal:
        engine = build(journal, stops_when_blocked=True, **parts)
        return asyncio.run(engine.run()), engine


def queued(run: Path, queue: Path) -> QueueEvaluator:
    shared = QueueEvaluator(settings=Settings(), path=str(queue), look_every_s=0.01)
    journal = run / "journal.jsonl"
    return for_this_search(shared, run, list(replay(journal)) if journal.exists() else ())


def serve(
    queue: Path,
    served: Counter[str],
    most: int = 10**9,
    verdict: Callable[[Kernel], Evaluation] = lambda kernel: in_turns(verdict_by_hash(kernel)),
) -> int:
    """Answers pending requests as the fake evaluator does; returns how many."""
    folder = QueueFolder(queue)
    pending = folder.pending()[:most]
    for each in pending:
        asked = folder.read(each)
        found: dict[str, Any] = {"evaluations": tuple(verdict(each) for each in asked.kernels)}
        if asked.operation is Operation.DIAGNOSE:
            found = {"diagnosis": Diagnosis(reached=("static",), occupancy=f"that of {asked.kernels[0].id}")}
        elif asked.operation is Operation.PROBE:
            found = {"probe": TIMED}
        folder.answer(asked.search, DeviceVerdict(request=asked.id, worker="w", device="fake", **found))
        served[asked.title] += 1
    return len(pending)


@pytest.mark.parametrize("kills", [False, True])
def test_a_search_that_meets_its_devices_now_and_then_ends_as_one_beside_them(
    tmp_path: Path, kills: bool
) -> None:
    """Some verdicts arrive at a time. With `kills`, each loses the end of its journal, as by `kill -9`."""
    straight, run, queue = tmp_path / "straight.jsonl", tmp_path / "run", tmp_path / "queue"
    beside = FakeEvaluator(verdict=lambda kernel: in_turns(verdict_by_hash(kernel)))
    expected = search(straight, evaluator=beside, **CHEAP)
    run.mkdir()
    served: Counter[str] = Counter()
    generator = random.Random(3)
    for _ in range(60):
        finished, engine = advanced(run, evaluator=queued(run, queue), **CHEAP)
        if finished.reason != "blocked":
            break
        assert engine.blocked_on is not None and engine.blocked_on.verdicts
        assert len(engine.blocked_on.verdicts) == len(QueueFolder(queue).pending())
        if kills:
            lines = (run / "journal.jsonl").read_text().splitlines(keepends=True)
            lost = generator.randrange(min(4, len(lines)))
            (run / "journal.jsonl").write_text("".join(lines[: len(lines) - lost]))
        serve(queue, served, most=2)
    assert (finished.reason, finished.best, finished.confirmed) == (
        expected.reason,
        expected.best,
        expected.confirmed,
    )
    assert contents(state_of(run / "journal.jsonl").tree) == contents(state_of(straight).tree)
    journal = list(replay(run / "journal.jsonl"))
    judged = Counter(e.variant.id for e in journal if isinstance(e, VariantEvaluated))
    assert set(judged.values()) == {1}, "nothing is judged twice into the journal"
    compared = [e for e in journal if isinstance(e, LeadersCompared)]
    assert len(compared) == len([e for e in replay(straight) if isinstance(e, LeadersCompared)])
    assert all(count == 1 for title, count in served.items() if not title.startswith("compare"))


def test_a_second_session_with_the_same_kernels_is_a_new_measurement(tmp_path: Path) -> None:
    """Also where the first one is in the journal of an earlier call."""
    run, queue = tmp_path / "run", tmp_path / "queue"
    run.mkdir()
    served: Counter[str] = Counter()
    noise = random.Random(1)
    while advanced(run, evaluator=queued(run, queue), **CHEAP)[0].reason == "blocked":
        serve(queue, served, verdict=lambda kernel: unclear(noise))
    compared = [e for e in replay(run / "journal.jsonl") if isinstance(e, LeadersCompared)]
    sessions = [count for title, count in served.items() if title.startswith("compare")]
    assert max(sessions) > 1 and sum(sessions) == len(compared)


def test_a_resumed_search_counts_the_sessions_since_the_last_round(tmp_path: Path) -> None:
    run, queue, noise = tmp_path / "run", tmp_path / "queue", random.Random(1)
    run.mkdir()
    while advanced(run, evaluator=queued(run, queue), comparisons=2, **CHEAP)[0].reason == "blocked":
        serve(queue, Counter(), verdict=lambda kernel: unclear(noise))
    after_round = [0]
    for each in replay(run / "journal.jsonl"):
        after_round[-1] += isinstance(each, LeadersCompared)
        after_round += [0] * isinstance(each, RoundClosed)
    assert max(after_round) == 2


def unclear(noise: random.Random) -> Evaluation:
    """A correct kernel whose times differ so much that no session tells which one is faster."""
    samples = tuple(noise.uniform(0.2, 1.0) for _ in range(8))
    wide = replace(timing(2.0), speedup_low=1.0, speedup_high=4.0)
    wide = replace(wide, kernel_samples_ms=samples, eager_samples_ms=(1.0,) * 8)
    return Evaluation(status=Status.CORRECT, timing=wide)


@pytest.mark.parametrize(("repairs_in", "trips"), [("same_round", 6), ("next_round", 3)])
def test_repairs_can_travel_with_the_next_round(tmp_path: Path, repairs_in: str, trips: int) -> None:
    run, queue = tmp_path / "run", tmp_path / "queue"
    run.mkdir()
    parts = {"ideas": 2, "branch": 4, "rounds": 3, "repairs": 1, "repairs_in": repairs_in}
    met = []
    while True:
        finished, engine = advanced(
            run, evaluator=queued(run, queue), compares_each_round=False, comparisons=0, **parts
        )
        if finished.reason != "blocked":
            break
        assert engine.blocked_on is not None
        met.append({each.split()[1] for each in engine.blocked_on.verdicts})
        serve(queue, Counter())
    assert met == [*[{"evaluate"}] * trips, {"thorough"}]


def test_the_seed_travels_in_the_request(tmp_path: Path) -> None:
    run, queue = tmp_path / "run", tmp_path / "queue"
    run.mkdir()
    companions = Counter[int]()
    parts: dict[str, Any] = {"ideas": 1, "branch": 2, "rounds": 2, "comparisons": 0}
    while advanced(run, evaluator=queued(run, queue), pairs_with_seed=True, **parts)[0].reason == "blocked":
        folder = QueueFolder(queue)
        companions.update(len(folder.read(each).companions) for each in folder.pending())
        serve(queue, Counter())
    variants = state_of(run / "journal.jsonl").tree.variants.values()
    assert companions[1] == sum(bool(each.parent) for each in variants) == 2


def test_a_search_waits_for_its_diagnoses_and_asks_for_all_at_once(tmp_path: Path) -> None:
    run, queue, straight = tmp_path / "run", tmp_path / "queue", tmp_path / "straight.jsonl"
    run.mkdir()
    served: Counter[str] = Counter()
    trips = []
    while True:
        evaluator = queued(run, queue)
        finished, engine = advanced(
            run, evaluator=evaluator, diagnoser=QueuedDiagnoser(evaluator, "static"), **CHEAP
        )
        if finished.reason != "blocked":
            break
        assert engine.blocked_on is not None
        trips.append({each.split()[1] for each in engine.blocked_on.verdicts})
        serve(queue, served)
    assert trips.count({"diagnose"}) == 1, "those before the second round are one trip"
    diagnosed = [title for title in served if title.startswith("diagnose")]
    assert len(diagnosed) > 1 and {served[each] for each in diagnosed} == {1}
    beside = FakeDiagnoser()
    with Journal(straight) as journal:
        turns = FakeEvaluator(verdict=lambda kernel: in_turns(verdict_by_hash(kernel)))
        asyncio.run(build(journal, evaluator=turns, diagnoser=beside, **CHEAP).run())
    found = state_of(run / "journal.jsonl")
    assert set(found.diagnoses) == set(beside.kernels)
    assert contents(found.tree) == contents(state_of(straight).tree)


def test_a_probe_that_waits_for_a_device_is_written_once(tmp_path: Path) -> None:
    """Its kernel is in the journal: a model would write another one."""
    run, queue = tmp_path / "run", tmp_path / "queue"
    run.mkdir()
    model, served = probing(), Counter[str]()
    parts = {**CHEAP, "keep": 1, "probes": 1, "proposer": LLMProposer({"one": model})}
    while advanced(run, evaluator=queued(run, queue), **parts)[0].reason == "blocked":
        if not served:  # the probe waits once more, after the others have their verdicts
            pending = {QueueFolder(queue).read(each).operation for each in QueueFolder(queue).pending()}
            assert pending == {Operation.EVALUATE, Operation.PROBE}
        serve(queue, served, most=1)
    state = state_of(run / "journal.jsonl")
    assert set(state.probed) == set(state.probes) and len(state.probes) == 2
    assert all(each.kernel is not None and each.probe == TIMED for each in state.probed.values())
    assert len([each for each in model.asked if each.purpose is Purpose.PROBE]) == 2
    assert len([title for title in served if title.startswith("probe")]) == 2


def test_a_search_waits_for_an_answer_and_a_verdict_and_says_so(tmp_path: Path) -> None:
    run, queue = tmp_path / "run", tmp_path / "queue"
    run.mkdir()
    told = (run / "mailbox").glob

    def call() -> tuple[RunFinished, Engine]:
        proposer = LLMProposer({"mailbox": Mailbox()})
        return advanced(run, evaluator=queued(run, queue), proposer=proposer, ideas=2, branch=1, rounds=1)

    finished, engine = call()
    assert finished.reason == "blocked" and engine.blocked_on is not None
    (question,) = engine.blocked_on.answers
    assert not engine.blocked_on.verdicts and Path(question).exists()
    Path(question).with_suffix(".answer.md").write_text(ideas_answer("one", "two") + f"\n{END}\n")
    finished, engine = call()
    assert engine.blocked_on is not None and len(engine.blocked_on.answers) == 2
    first = Path(engine.blocked_on.answers[0])
    first.with_suffix(".answer.md").write_text(code_answer("k") + f"\n{END}\n")
    finished, engine = call()
    assert engine.blocked_on is not None
    assert [len(engine.blocked_on.answers), len(engine.blocked_on.verdicts)] == [1, 1]
    lines = "\n".join(engine.blocked_on.lines())
    assert (
        "awaiting an answer (1):" in lines
        and "awaiting a device (1):" in lines
        and "evaluate level1/fake" in lines
    )
    assert len(list(told("[0-9]*.md"))) == 5


class DescribedLater(FakeEvaluator):
    """Its device is described while the search runs, or its reference is found to be unfit."""

    def __init__(self, facts: dict[str, str] | None) -> None:
        super().__init__()
        self._facts = facts

    async def describe(self, problem: Problem) -> dict[str, str]:
        if self._facts is None:
            raise UnfitProblem("zeros would pass")
        return self._facts


def test_a_search_with_assumed_facts_takes_over_the_devices_own(tmp_path: Path) -> None:
    assumed, facts = {"device": "d", ASSUMED: "no worker yet"}, {"device": "d", "torch": "2"}
    with Journal(tmp_path / "journal.jsonl") as journal:
        engine = build(journal, evaluator=DescribedLater(facts), environment=assumed, **CHEAP)
        assert asyncio.run(engine.run()).reason == "rounds"
    assert engine.session.environment == facts
    started = [e.environment for e in replay(journal.path) if isinstance(e, RunStarted)]
    assert started == [assumed, facts]
    found = state_of(journal.path).started
    assert found is not None and found.environment == facts


def test_an_unfit_reference_that_a_worker_finds_later_ends_the_search(tmp_path: Path) -> None:
    parts = {"evaluator": DescribedLater(None), "environment": {ASSUMED: "no worker yet"}}
    reason = search(tmp_path / "journal.jsonl", **parts, **CHEAP).reason
    assert reason == "error: level1/fake cannot be searched: zeros would pass"


def test_a_search_is_not_blocked_while_a_model_answers(tmp_path: Path) -> None:
    """Its last call takes longer than several looks, while the kernel before waits for a device."""
    numbers = iter(range(10))
    model = ScriptedModel(
        lambda question: ideas_answer("one") if question.schema else code_answer(next(numbers))
    )
    complete, delays_s = model.complete, iter((0.0, 0.0, 0.3))

    async def slowly(question: Any) -> Any:
        await asyncio.sleep(next(delays_s))
        return await complete(question)

    model.complete = slowly  # type: ignore[method-assign]
    run = tmp_path / "run"
    run.mkdir()
    parts = {"proposer": LLMProposer({"m": model}), "ideas": 1, "branch": 2, "rounds": 1}
    finished, _ = advanced(run, evaluator=queued(run, tmp_path / "queue"), **parts)
    assert finished.reason == "blocked" and len(QueueFolder(tmp_path / "queue").pending()) == 2
    assert advanced(tmp_path, evaluator=FakeEvaluator(delay_s=0.1), **CHEAP)[0].reason == "rounds"


def test_the_wait_for_a_verdict_is_no_work(tmp_path: Path) -> None:
    clock = Clock()
    budget = Budget(rounds=1, seconds=10.0, clock=clock)
    budget.start()
    clock.now_s += 4
    budget.stand_still(True)
    clock.now_s += 7200
    budget.stand_still(True)
    assert budget.elapsed_s == 4 and not budget.timed_out
    budget.stand_still(False)
    clock.now_s += 5
    assert budget.elapsed_s == 9
    run, queue = tmp_path / "run", tmp_path / "queue"
    run.mkdir()

    async def hours_later() -> RunFinished:
        with Journal(run / "journal.jsonl") as journal:
            engine = build(
                journal,
                evaluator=queued(run, queue),
                proposer=FakeProposer(),
                budget=Budget(rounds=2, seconds=1.0),
                ideas=1,
                branch=2,
            )
            running = asyncio.create_task(engine.run())
            await asyncio.sleep(1.2)
            while not running.done():
                serve(queue, Counter())
                await asyncio.sleep(0.02)
            return await running

    assert asyncio.run(hours_later()).reason == "rounds"
