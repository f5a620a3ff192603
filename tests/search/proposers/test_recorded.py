"""Strategies on the tree of recorded runs: only what was recorded exists, and all of it can be found."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from search.compare import __main__ as compare
from search.proposers.recorded_tree import RecordedTree, recorded_problem
from search.protocols import HasOwnEvaluator, ReportsExhaustion
from search.recordings.verdicts import RECORDINGS
from search.records.journal import replay
from search.records.ranking import MEDIAN
from search.records.run_state import RunState, rebuild
from search.records.tree import LIBRARY
from search.run import __main__ as run
from search.strategies.beam import Beam
from search.strategies.best_of_n import BestOfN
from search.strategies.idea_branching import IdeaBranching
from search.strategies.puct import Puct
from tests.search.fakes import FakeEvaluator, FakeProposer, search, state_of

CONV2D = RECORDINGS / "conv2d_h200"
RECORDED = rebuild(replay(CONV2D / "journal.jsonl"))


def played(
    path: Path, strategy: Any, *, seed: int = 0, runs: Any = ("conv2d_h200",), **keys: Any
) -> RunState:
    """A search on the tree, to its end."""
    proposer = RecordedTree(runs, seed)
    keys = {"rounds": 1000, "ranking": MEDIAN, "library_entries": 0, **keys}
    search(
        path,
        problem=recorded_problem(runs),
        strategy=strategy,
        proposer=proposer,
        evaluator=proposer.evaluator,
        entries=proposer.entries,
        **keys,
    )
    return state_of(path)


def parents(state: RunState) -> Counter[tuple[str, str]]:
    """Of each idea by its text: the kernel that it is on."""
    kernels = {id: each.kernel.id for id, each in state.tree.variants.items()}
    ideas = (each for each in state.tree.ideas.values() if each.proposer != LIBRARY)
    return Counter((each.text, kernels.get(each.parent, "")) for each in ideas)


@pytest.mark.parametrize(
    "strategy",
    [
        IdeaBranching(ideas=3, branch=2, keep=4),
        Beam(ideas=2, branch=2, width=2),
        Puct(ideas=1, branch=2, c=1.0, per_idea=2, buffer=100),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_recorded_kernel_is_found_in_the_end(tmp_path: Path, strategy: Any) -> None:
    state = played(tmp_path / "journal.jsonl", strategy)
    assert state.finished is not None and state.finished.reason == "exhausted"
    assert parents(state) == parents(RECORDED)
    assert state.verdicts == RECORDED.verdicts
    assert [each.kernel for each in state.tree.best()] == [each.kernel for each in RECORDED.tree.best()]
    assert state.evaluations == 42


def test_who_builds_on_nothing_has_what_was_had_on_the_reference(tmp_path: Path) -> None:
    state = played(tmp_path / "journal.jsonl", BestOfN(ideas=4, branch=1, from_library=False))
    recorded = {each.id for each in RECORDED.tree.ideas.values() if not each.parent}
    assert {each.plan for each in state.tree.ideas.values()} == recorded
    assert len(state.tree.variants) == len(recorded) == 3, "of two variants recorded one was asked for"


@pytest.mark.slow
def test_the_seed_sets_the_order(tmp_path: Path) -> None:
    def order(seed: int, name: str) -> list[str]:
        strategy = IdeaBranching(ideas=1, branch=1, keep=1)
        state = played(tmp_path / name, strategy, seed=seed, rounds=3)
        return [each.kernel.id for each in state.tree.variants.values()]

    assert order(0, "a") == order(0, "b")
    assert len({tuple(order(seed, str(seed))) for seed in range(8)}) > 2


def test_it_knows_its_end(tmp_path: Path) -> None:
    proposer = RecordedTree(["conv2d_h200"], seed=0)
    assert isinstance(proposer, ReportsExhaustion) and isinstance(proposer, HasOwnEvaluator)
    state = played(tmp_path / "journal.jsonl", IdeaBranching(ideas=3, branch=2, keep=1), rounds=1)
    assert "" in proposer.exhausted(state.tree), "all three ideas on the reference are in the tree"
    built_on = {kernel for _, kernel in parents(RECORDED)}
    for each in state.tree.variants.values():
        assert (each.kernel.id in proposer.exhausted(state.tree)) == (each.kernel.id not in built_on)


@pytest.mark.slow
def test_several_runs_are_one_tree(tmp_path: Path) -> None:
    """Two searches with few kernels to choose from share some of them."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        search(
            tmp_path / name / "journal.jsonl",
            strategy=IdeaBranching(ideas=3, branch=2, keep=2),
            proposer=FakeProposer(pool=12),
            evaluator=FakeEvaluator(),
            rounds=3,
            seed=1 if name == "one" else 2,
        )
    states = [state_of(tmp_path / name / "journal.jsonl") for name in ("one", "two")]
    state = played(
        tmp_path / "both.jsonl",
        IdeaBranching(ideas=3, branch=9, keep=99),
        runs=[str(tmp_path / name) for name in ("one", "two")],
    )
    assert set(state.verdicts) == {kernel for each in states for kernel in each.verdicts}
    assert {text for text, _ in parents(state)} == {text for each in states for text, _ in parents(each)}


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs recordings; give proposer\.runs="):
        RecordedTree(None, seed=0)
    softmax = str(Path(__file__).parents[1] / "recordings" / "softmax_cpu")
    with pytest.raises(ValueError, match="have different problems: level1/conv2d and level1/softmax"):
        RecordedTree(["conv2d_h200", softmax], seed=0)
    (tmp_path / "journal.jsonl").write_text(
        (CONV2D / "journal.jsonl").read_text().replace("NVIDIA H200", "NVIDIA B200")
    )
    with pytest.raises(ValueError, match=r"was measured on NVIDIA H200, .* on NVIDIA B200"):
        RecordedTree(["conv2d_h200", str(tmp_path)], seed=0)
    other = RecordedTree([softmax], seed=0)
    refusal = other.refusal(recorded_problem(["conv2d_h200"]))
    assert refusal == "proposer=recorded only works with problem=recorded"


@pytest.mark.slow
def test_a_recorded_repair_is_given(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    search(
        run / "journal.jsonl",
        strategy=IdeaBranching(ideas=4, branch=3, keep=2),
        proposer=FakeProposer(),
        evaluator=FakeEvaluator(),
        rounds=3,
        repairs=1,
    )
    recorded = state_of(run / "journal.jsonl")
    repairs = {each.kernel.id for each in recorded.tree.variants.values() if each.repairs}
    assert repairs
    state = played(tmp_path / "x.jsonl", IdeaBranching(ideas=4, branch=3, keep=9), runs=[str(run)], repairs=1)
    assert repairs <= {each.kernel.id for each in state.tree.variants.values() if each.repairs}


CALL = ["problem=recorded", "proposer=recorded", "proposer.runs=[conv2d_h200]", "branch=2", "ideas=3"]


@pytest.mark.slow
def test_a_search_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = [*CALL, "rounds=3", "report=false", "wandb=off", f"hydra.run.dir={tmp_path / 'run'}"]
    assert run.main(call) == 0, capsys.readouterr().err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["problem"] == "level1/conv2d"
    assert run.main(["problem=recorded", "proposer=recorded", f"hydra.run.dir={tmp_path / 'x'}"]) == 2
    assert "needs recordings" in capsys.readouterr().err


@pytest.mark.slow
def test_strategies_are_compared_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "compared"
    keys = ["strategies=[idea_tree,best_of_n]", "seeds=6", "budget.evaluations=20", "report=false"]
    assert compare.main([*CALL, *keys, f"hydra.run.dir={folder}"]) == 0
    assert "idea_tree finds significantly faster kernels than best_of_n" in capsys.readouterr().out
    body = json.loads((folder / "comparison.json").read_text())
    assert (body["searches"], body["problems"]) == (12, ["recorded"])
    assert body["arms"]["best_of_n"]["value"] == 1.0, "nothing on the reference beat eager"
