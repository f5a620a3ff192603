"""A search that judges in two stages: only what may become a seed or the winner is judged in full."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.race import Threshold, after_quick_stage, reaches
from search.engine.race import hopeful, to_judge
from search.recordings.verdicts import RecordedEvaluations
from search.records.budget import Budget
from search.records.events import Event, RunFinished, VariantEvaluated, VariantJudgedInFull
from search.records.journal import replay
from search.records.run_state import RunState, rebuild
from search.records.tree import Tree
from search.strategies.beam import Beam
from search.strategies.best_of_n import BestOfN
from search.strategies.idea_branching import IdeaBranching
from search.strategies.puct import Puct
from tests.search.fakes import (
    Clock,
    FakeEvaluator,
    FakeProposer,
    correct,
    failed,
    pause,
    search,
    state_of,
    verdict_by_hash,
)

Verdict = Callable[[Kernel], Evaluation]


class Racing(FakeEvaluator):
    """Judges in two stages; what is wrong by `verdict` seems right in the quick one if `hides` says so. The
    quick interval is wider than the full one, and lies around another value of it."""

    def __init__(self, *, hides: Callable[[Kernel], bool] = lambda kernel: False, **options: Any) -> None:
        super().__init__(**options)
        self.hides = hides
        self.asked: list[tuple[str, Threshold]] = []
        self.full: set[str] = set()

    async def race(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        threshold: Threshold,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        self.asked.append((kernel.id, threshold))
        if on_stage is not None:
            on_stage("measuring")
        await pause(self.delay_s)
        quick = after_quick_stage(quickly(self.verdict(kernel), hidden=self.hides(kernel)), threshold)
        if threshold != 0 and not reaches(quick, threshold):
            return quick
        self.full.add(kernel.id)
        return self.verdict(kernel)

    async def evaluate(self, problem: Problem, kernel: Kernel, **options: Any) -> Evaluation:
        assert options.get("thorough"), "a race asks for nothing else without a threshold"
        return await super().evaluate(problem, kernel, **options)


def quickly(full: Evaluation, *, hidden: bool) -> Evaluation:
    if hidden:
        return correct(5.0)
    if full.timing is None:
        return full
    value = full.timing.speedup * 1.03
    timing = replace(full.timing, speedup=value, speedup_low=value * 0.94, speedup_high=value * 1.06)
    return replace(full, timing=timing)


def contents(path: Path) -> dict[str, Any]:
    """The verdicts of a search, without what depends on the order of completion."""
    tree = state_of(path).tree
    return {"best": [each.id for each in tree.best(9)], "variants": tree.variants}


@pytest.mark.parametrize("strategy", [IdeaBranching, Beam])
@pytest.mark.parametrize("seed", range(4))
def test_a_race_has_the_same_winner_and_seeds_with_fewer_full_verdicts(
    tmp_path: Path, strategy: Any, seed: int
) -> None:
    width = "keep" if strategy is IdeaBranching else "width"
    how = {"seed": seed, "rounds": 4, "ideas": 4, "branch": 6, "compares_each_round": False}
    how["history"] = "none"  # the proposer must not be told what a race leaves out
    policy = strategy(ideas=4, branch=6, **{width: 2})
    plain = search(tmp_path / "plain.jsonl", strategy=policy, **how)
    evaluator = Racing()
    raced = search(tmp_path / "raced.jsonl", strategy=policy, race=True, evaluator=evaluator, **how)
    assert plain.best is not None
    assert raced.best is not None
    assert raced.best.id == plain.best.id
    one, other = state_of(tmp_path / "plain.jsonl"), state_of(tmp_path / "raced.jsonl")
    assert list(other.tree.ideas) == list(one.tree.ideas)
    assert other.evaluations == one.evaluations
    outpaced = [each for each in other.tree.variants.values() if each.is_outpaced]
    assert len(outpaced) > len(evaluator.full)
    assert len(evaluator.full) < one.statuses[Status.CORRECT] / 2


def test_what_is_right_in_the_quick_stage_only_is_never_a_seed_or_the_winner(tmp_path: Path) -> None:
    """Half of the kernels that fail seem five times as fast as eager until they are judged in full."""
    path = tmp_path / "journal.jsonl"
    evaluator = Racing(hides=lambda kernel: int(kernel.id, 16) % 4 == 0)
    finished = search(path, rounds=4, race=True, evaluator=evaluator)
    state = state_of(path)
    hidden = {
        each.kernel.id: each
        for each in state.tree.variants.values()
        if evaluator.hides(each.kernel) and verdict_by_hash(each.kernel).status is not Status.CORRECT
    }
    assert hidden
    assert finished.best is not None
    assert finished.best.kernel.id not in hidden
    assert not {each.kernel.id for each in state.tree.best(99)} & hidden.keys()
    seeds = {each.parent for each in state.tree.ideas.values()}
    assert not seeds & {each.id for each in hidden.values()}
    assert not set(evaluator.confirmed) & hidden.keys()
    for each in hidden.values():
        assert each.evaluation is not None
        assert each.evaluation.status is not Status.CORRECT
        assert each.evaluation.timing is None
    assert hidden.keys() & evaluator.full  # they had outpaced the others, so they were found out


def test_a_time_of_the_quick_stage_wins_nothing(tmp_path: Path) -> None:
    """Every kernel seems right and five times as fast as eager; what the full stage says counts."""
    path, plain = tmp_path / "raced.jsonl", tmp_path / "plain.jsonl"
    how = {"history": "none", "compares_each_round": False}
    expected = search(plain, **how).best
    evaluator = Racing(hides=lambda kernel: True)
    found = search(path, race=True, evaluator=evaluator, **how).best
    assert found is not None
    assert found == expected
    tree = state_of(path).tree
    assert evaluator.full == {each.kernel.id for each in tree.variants.values()}
    assert all(each.evaluation == verdict_by_hash(each.kernel) for each in tree.variants.values())


def test_a_kernel_found_out_in_the_full_stage_is_repaired(tmp_path: Path) -> None:
    path, proposer = tmp_path / "journal.jsonl", FakeProposer()
    evaluator = Racing(
        hides=lambda kernel: "repaired" not in kernel.source,
        verdict=lambda kernel: correct(3.0) if "repaired" in kernel.source else failed(),
    )
    finished = search(path, rounds=1, race=True, evaluator=evaluator, proposer=proposer, repairs=1)
    assert finished.best is not None
    assert finished.best.repairs
    tree = state_of(path).tree
    assert all(tree.variants[id].round == 1 for id in proposer.repaired)
    assert proposer.repaired


@pytest.mark.parametrize("seed", range(3))
def test_decisions_do_not_depend_on_the_order_of_completion(tmp_path: Path, seed: int) -> None:
    found = []
    for name in ("one", "two", "three"):
        path, evaluator = tmp_path / f"{name}.jsonl", Racing(delay_s=0.005)
        search(path, race=True, seed=seed, evaluator=evaluator, repairs=1, branch=5)
        found.append((contents(path), evaluator.full))
    assert found[0] == found[1] == found[2]


class Tires(FakeProposer):
    """Has ideas for each kernel in one round only."""

    def exhausted(self, tree: Tree) -> frozenset[str]:
        parents = {each.parent for each in tree.ideas.values()}
        return frozenset(each.kernel.id for id, each in tree.variants.items() if id in parents) | {""}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("proposer", [FakeProposer, Tires])
def test_a_search_cut_anywhere_is_resumed_to_the_same_verdicts(
    tmp_path: Path, seed: int, proposer: type[FakeProposer]
) -> None:
    def run(path: Path) -> None:
        how = {"seed": seed, "rounds": 4, "keep": 1, "repairs": 1, "branch": 5}
        search(path, race=True, evaluator=Racing(), proposer=proposer(), **how)

    whole = tmp_path / "whole.jsonl"
    run(whole)
    lines = whole.read_text().splitlines(keepends=True)
    last = [n for n, line in enumerate(lines) if "judged_in_full" in line]
    for cut in sorted({*range(1, len(lines), 11), *last}):
        path = tmp_path / f"{cut}.jsonl"
        path.write_text("".join(lines[: cut + 1]))
        run(path)
        assert contents(path) == contents(whole), f"cut after {cut} lines"


def test_a_raced_search_is_replayed_with_its_verdicts(tmp_path: Path) -> None:
    recorded, again = tmp_path / "recorded.jsonl", tmp_path / "again.jsonl"
    search(recorded, race=True, evaluator=Racing())
    search(again, race=True, evaluator=RecordedEvaluations(state_of(recorded)))
    assert contents(again) == contents(recorded)


def test_a_recording_without_a_race_can_be_raced(tmp_path: Path) -> None:
    recorded, raced = tmp_path / "recorded.jsonl", tmp_path / "raced.jsonl"
    how = {"history": "none", "compares_each_round": False}
    first = search(recorded, **how)
    again = search(raced, race=True, evaluator=RecordedEvaluations(state_of(recorded)), **how)
    assert first.best is not None
    assert again.best is not None
    assert again.best.id == first.best.id
    assert state_of(raced).statuses[Status.OUTPACED] > 0


def test_no_recording_of_a_quick_stage_passes_for_a_verdict() -> None:
    async def asked() -> Evaluation:
        return await RecordedEvaluations(state).evaluate(started.problem, variant.kernel)

    state = rebuild([])
    events = list[Event]()
    finished = _quick_run(events)
    state = rebuild(events)
    started = state.started
    assert started is not None
    assert finished.best is None
    variant = next(iter(state.tree.variants.values()))
    assert asyncio.run(asked()).status is Status.INFRASTRUCTURE_ERROR


def _quick_run(events: list[Event]) -> RunFinished:
    """A run that was stopped before anything was judged in full; its events are added."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        finished = search(path, rounds=1, race=True, evaluator=Stopping(), confirm_s=0.0, grace_s=1.0)
        events += replay(path)
    return finished


class Stopping(Racing):
    """Fails at the first request for a full verdict."""

    async def race(self, problem: Problem, kernel: Kernel, **options: Any) -> Evaluation:
        if options["threshold"] == 0:
            raise RuntimeError("the machine is gone")
        return await super().race(problem, kernel, **options)


def test_a_search_stopped_before_the_full_stage_reports_no_winner(tmp_path: Path) -> None:
    events = list[Event]()
    finished = _quick_run(events)
    assert finished.best is None
    assert not any(isinstance(each, VariantJudgedInFull) for each in events)
    assert any(
        isinstance(each, VariantEvaluated) and each.variant.is_outpaced and not each.variant.timing
        for each in events
    )


def test_a_search_whose_time_is_up_still_judges_its_winner_in_full(tmp_path: Path) -> None:
    clock = Clock()

    class Late(Racing):
        async def race(self, problem: Problem, kernel: Kernel, **options: Any) -> Evaluation:
            found = await super().race(problem, kernel, **options)
            clock.now_s += 100.0 * (len(self.asked) == 12)  # all kernels of the first round
            return found

    path, evaluator = tmp_path / "journal.jsonl", Late(verdict=lambda kernel: correct(own_speed(kernel)))
    budget = Budget(rounds=3, seconds=50.0, clock=clock)
    finished = search(path, race=True, evaluator=evaluator, budget=budget)
    assert finished.reason == "seconds"
    assert finished.best is not None
    assert 1 <= len(evaluator.full) <= 3  # with those that may be as fast
    speeds = [own_speed(each.kernel) for each in state_of(path).tree.variants.values()]
    assert own_speed(finished.best.kernel) == max(speeds)


def own_speed(kernel: Kernel) -> float:
    return 1.0 + int(kernel.id, 16) % 1009 / 100


def test_an_equal_kernel_gets_the_full_verdict_too(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    search(path, race=True, evaluator=Racing(), proposer=FakeProposer(pool=9))
    state = state_of(path)
    by_kernel: dict[str, set[Status]] = {}
    for each in state.tree.variants.values():
        assert each.evaluation is not None
        by_kernel.setdefault(each.kernel.id, set()).add(each.evaluation.status)
    assert all(len(each) == 1 for each in by_kernel.values())
    assert sum(state.statuses.values()) == state.evaluations
    judged = [each for each in state.verdicts.values() if each.quick is None]
    ends = [*state.confirmed.values(), *(own for each in compared(state) for own in each)]
    device_s = sum(each.device_s for each in (*judged, *state.quick.values(), *ends))
    assert state.device_s == pytest.approx(device_s)


def compared(state: RunState) -> list[list[Evaluation]]:
    return [list(each.evaluations.values()) for each in state.tree.ranking.comparisons]


def test_an_outpaced_kernel_has_its_chance_when_the_others_are_exhausted(tmp_path: Path) -> None:
    """The best kernel is exhausted after one round, so the second best, outpaced before, is the seed."""
    path, evaluator = tmp_path / "journal.jsonl", Racing()
    search(path, race=True, evaluator=evaluator, proposer=Tires(), keep=1, rounds=4, branch=6)
    plain = tmp_path / "plain.jsonl"
    search(plain, proposer=Tires(), keep=1, rounds=4, branch=6)
    tree = state_of(path).tree
    promoted = [each for each in replay(path) if isinstance(each, VariantJudgedInFull)]
    assert len({each.parent for each in tree.ideas.values()}) == 4
    assert any(each.variant.round < tree.rounds_closed for each in promoted)


def test_the_hopeful_tree_is_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    search(path, race=True, evaluator=Racing())
    tree = state_of(path).tree
    before = dict(tree.variants)
    best = hopeful(tree).best(99)
    assert len(best) > len(tree.best(99))
    assert tree.variants == before
    assert not to_judge(tree, ())  # the race has settled the winner


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "strategy",
    [
        IdeaBranching(ideas=4, branch=3, keep=2, synchronous=False),
        BestOfN(ideas=4, branch=3, from_library=False),
        Puct(ideas=4, branch=3, c=1.0, per_idea=2, buffer=100),
    ],
)
def test_a_search_without_rounds_sends_a_threshold(tmp_path: Path, strategy: Any, seed: int) -> None:
    path, evaluator = tmp_path / "journal.jsonl", Racing()
    finished = search(path, race=True, evaluator=evaluator, strategy=strategy, seed=seed, outstanding=4)
    state = state_of(path)
    assert finished.best is not None
    thresholds = {each.event.threshold for each in state.asked.values()}
    assert {threshold for _, threshold in evaluator.asked} == thresholds
    for each in state.tree.variants.values():
        if each.is_outpaced:
            quick = each.evaluation and each.evaluation.quick
            assert quick
            assert quick.threshold is not None
            assert quick.timing.speedup_high < quick.threshold <= finished.best.seed.evaluation.speedup_low  # type: ignore[union-attr]
    if isinstance(strategy, Puct):  # any kernel of its may become a seed
        assert thresholds == {0.0}
    else:
        assert any(each.is_outpaced for each in state.tree.variants.values())


def test_a_kernel_is_judged_again_for_a_stricter_request(tmp_path: Path) -> None:
    """The same run, resumed without a race: what was only judged quickly is judged in full if it comes
    again."""
    path = tmp_path / "journal.jsonl"
    search(path, race=True, evaluator=Racing(), proposer=FakeProposer(pool=12), rounds=1)
    outpaced = {each.kernel.id for each in state_of(path).tree.variants.values() if each.is_outpaced}
    copy = tmp_path / "copy.jsonl"
    shutil.copy(path, copy)
    evaluator = FakeEvaluator()
    search(copy, evaluator=evaluator, proposer=FakeProposer(pool=12), rounds=3)
    again = outpaced & set(evaluator.seen)
    assert again
    assert all(state_of(copy).verdicts[each].quick is None for each in again)


def test_a_race_needs_an_evaluator_with_two_stages(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="race=true: the evaluator FakeEvaluator cannot"):
        search(tmp_path / "journal.jsonl", race=True, evaluator=FakeEvaluator())


def test_no_full_verdict_may_be_a_quick_one(tmp_path: Path) -> None:
    class Lazy(Racing):
        async def race(self, problem: Problem, kernel: Kernel, **options: Any) -> Evaluation:
            return after_quick_stage(correct(2.0), None)

    finished = search(tmp_path / "journal.jsonl", race=True, evaluator=Lazy())
    assert finished.best is None
