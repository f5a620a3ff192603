"""The Python interface: arguments, errors, and clean-up. tests/docs runs the examples of its page."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import ideatree
from evaluators.app.words import overrides
from search.records.events import RunFinished
from search.records.run_state import rebuild
from search.strategies.idea_branching import IdeaBranching
from tests.evaluators.scheduler.fake_host import FakeHost

SOURCE = "import torch\nclass ModelNew(torch.nn.Module): ...\n"
REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return x + 1
def get_inputs(): return [torch.rand(3, dtype=torch.float64)]
def get_init_inputs(): return []
"""
REPLAYED: dict[str, Any] = {
    "proposer": "replay",
    "replay": {"run": "conv2d_h200", "evaluations": True},
    "wandb": "off",
    "show": False,
}


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[FakeHost]:
    made: list[FakeHost] = []

    def make(**_: Any) -> FakeHost:
        made.append(FakeHost())
        return made[-1]

    monkeypatch.setattr("ideatree.evaluator.LocalHost", make)
    return made


@pytest.mark.slow
def test_load_problem_by_name_and_by_file(tmp_path: Path) -> None:
    (tmp_path / "my model.py").write_text(REFERENCE)
    own = ideatree.load_problem(tmp_path / "my model.py", device="cpu")
    assert (own.name, own.dtype) == ("file/my model", "float64")
    softmax = ideatree.load_problem("level1/softmax", device="cpu", sizes={"batch": 2}, dtype="bfloat16")
    assert (softmax.overrides["batch"], softmax.dtype) == (2, "bfloat16")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ideatree.load_problem("level1/softmx"), "did you mean level1/softmax?"),
        (lambda: ideatree.load_problem("level1/softmax", dtype="float8"), "problem.dtype is 'float8'"),
        (lambda: ideatree.load_problem(Path("nowhere.py")), "nowhere.py cannot be read"),
        (lambda: ideatree.search("level1/softmax", roundz=3), "did you mean rounds?"),
        (lambda: ideatree.search("level1/softmax", strategy="idea_brnching"), "did you mean idea_branching?"),
        (lambda: ideatree.resume("nowhere"), "not a run folder"),
    ],
)
def test_errors_are_one_line(call: Any, says: str) -> None:
    with pytest.raises(ideatree.UsageError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_an_evaluator_works_only_inside_its_block(hosts: list[FakeHost]) -> None:
    evaluator = ideatree.Evaluator(device="cpu")
    with pytest.raises(RuntimeError, match="with block"):
        evaluator.evaluate("level1/softmax", SOURCE)
    with evaluator:
        assert evaluator.evaluate("level1/softmax", SOURCE).status is ideatree.Status.CORRECT
        found = evaluator.evaluate_many("level1/softmax", [SOURCE, SOURCE + "# other"])
        assert [each.status.value for each in found] == ["correct", "correct"]
        assert len(evaluator.compare("level1/softmax", [SOURCE, SOURCE + "# other"])) == 2
    assert [host.closed for host in hosts] == [1]
    with pytest.raises(RuntimeError, match="with block"):
        evaluator.evaluate("level1/softmax", SOURCE)
    assert [each.name for each in threading.enumerate() if "portal" in each.name] == []


def test_an_evaluator_is_closed_when_its_block_fails(hosts: list[FakeHost]) -> None:
    with pytest.raises(ZeroDivisionError), ideatree.Evaluator(device="cpu"):
        _ = 1 / 0
    assert [host.closed for host in hosts] == [1]


@pytest.mark.slow
def test_an_evaluator_works_inside_a_running_loop(hosts: list[FakeHost]) -> None:
    """As in a notebook."""

    async def cell() -> ideatree.Evaluation:
        with ideatree.Evaluator(device="cpu") as evaluator:
            return evaluator.evaluate("level1/softmax", SOURCE)

    assert asyncio.run(cell()).status is ideatree.Status.CORRECT


def test_keywords_are_the_commands_keys() -> None:
    keys = {
        "rounds": 3,
        "budget": {"seconds": 1.5, "dollars": None},
        "llm": ["openai", "google"],
        "out": Path("it's, here = there"),
        "library": {"use": False},
    }
    assert overrides(keys) == [
        "rounds=3",
        "budget.seconds=1.5",
        "budget.dollars=null",
        "llm=[openai,google]",
        "out='it\\'s, here = there'",
        "library.use=false",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "in a loop", "async"])
def test_a_search_with_a_custom_strategy(tmp_path: Path, way: str) -> None:
    given = {**REPLAYED, "rounds": 2, "out": tmp_path, "strategy": IdeaBranching(ideas=3, branch=2, keep=1)}

    async def in_a_loop() -> ideatree.Run:
        return ideatree.search("level1/conv2d", **given)

    match way:
        case "plain":
            run = ideatree.search("level1/conv2d", **given)
        case "in a loop":
            run = asyncio.run(in_a_loop())
        case _:
            run = asyncio.run(ideatree.search_async("level1/conv2d", **given))
    assert run.folder.is_relative_to(tmp_path)
    assert (run.reason, run.state.tree.rounds_closed, run.problem.name) == ("rounds", 2, "level1/conv2d")
    went_on = ideatree.resume(run.folder, rounds=3, show=False)
    assert (went_on.folder, went_on.state.tree.rounds_closed) == (run.folder, 3)


@pytest.mark.slow
def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run = ideatree.search("level1/conv2d", folder=tmp_path / "mine", rounds=1, **REPLAYED)
    before = (run.folder / "journal.jsonl").read_bytes()
    with pytest.raises(ideatree.UsageError, match="already has a run"):
        ideatree.search("level1/conv2d", folder=tmp_path / "mine", rounds=1, **REPLAYED)
    assert (run.folder / "journal.jsonl").read_bytes() == before


def test_an_opened_run_has_its_records() -> None:
    run = ideatree.open_run("conv2d_h200")
    assert run.best is not None
    assert run.confirmed is not None
    line = run.lineage(run.best)
    assert line[-1].id == run.best.id
    assert len(run.variants) == 42
    assert {idea.round for idea in run.ideas} == set(range(1, 8))
    assert run.events[0] == run.state.started


def test_the_library_finds_by_name() -> None:
    library = ideatree.open_library("nowhere")
    assert library.named("softmax/cpp").kernel.language == "cpp"
    with pytest.raises(LookupError, match="did you mean softmax/triton"):
        library.named("softmax/tritn")
    assert not os.path.exists("nowhere")


def test_the_winner_of_a_run_enters_a_library_as_it_was_measured(tmp_path: Path) -> None:
    run = ideatree.open_run("conv2d_h200")
    library = ideatree.open_library(tmp_path)
    assert library.add(run.entry())
    assert not library.add(run.entry())
    (entry,) = (each for each in library.entries() if not each.name)
    assert run.best is not None
    assert run.confirmed is not None
    assert entry.kernel == run.best.kernel
    assert entry.best.evaluation.timing.speedup == run.confirmed.timing.speedup
    ideas = {idea.id: idea.text for idea in run.ideas}
    assert list(entry.lineage.ideas) == [ideas[each.idea] for each in run.lineage(run.best)]


def test_a_run_in_progress_has_no_entry() -> None:
    ended = ideatree.open_run("conv2d_h200")
    run = ideatree.Run(
        folder=ended.folder, state=rebuild(each for each in ended.events if not isinstance(each, RunFinished))
    )
    assert run.best is not None
    with pytest.raises(ValueError, match="no winner with a final measurement"):
        run.entry()
